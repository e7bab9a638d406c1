//! `forebay-train` itself, as a user starts it: real ranks on real MNIST, read without a cache.
//!
//! The smaller split (10,000 samples) serves as the training dataset, so that a run takes seconds.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

/// A failure must have ended the whole run by then.
const SOON: Duration = Duration::from_secs(10);

fn uri(split: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    format!("file://{}/tests/data/mnist/{split}", root.display())
}

fn command(flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-train"));
    for variable in ["RANK", "WORLD_SIZE", "FOREBAY_ENDPOINT", "LD_LIBRARY_PATH"] {
        command.env_remove(variable);
    }
    command.args(["--direct", "--train", &uri("test")]).args(flags);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(flags: &[&str]) -> Output {
    command(flags).output().unwrap()
}

/// Runs to success and reads the report.
fn report(flags: &[&str], name: &str) -> (Value, String) {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let output = run(&[flags, &["--report", file.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    (report, String::from_utf8(output.stdout).unwrap())
}

/// The only line on stderr of a run that was to fail.
fn failure(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.status.code().is_some(), "{:?}: {text}", output.status);
    let errors: Vec<_> = text.lines().filter(|line| !line.contains("samples/s")).collect();
    assert_eq!(errors.len(), 1, "{text}");
    errors[0].strip_prefix("forebay-train: ").unwrap_or_else(|| panic!("{text}")).to_owned()
}

fn digests(report: &Value) -> Vec<&str> {
    report["epochs"].as_array().unwrap().iter().map(|epoch| epoch["order_digest"].as_str().unwrap()).collect()
}

#[test]
fn two_ranks_learn_alike_and_see_the_samples_that_one_rank_sees() {
    let (two, stdout) = report(&["--nproc", "2", "--epochs", "2", "--test", &uri("test")], "two.json");
    assert_eq!((two["world_size"].as_u64(), two["global_batch"].as_u64()), (Some(2), Some(128)));
    assert_eq!(two["steps_per_epoch"], 79);
    assert!(two["test_accuracy"].as_f64().unwrap() > 0.9, "{two}");
    let hashes = two["parameter_hashes"].as_array().unwrap();
    assert!(hashes.len() == 2 && hashes[0] == hashes[1], "{two}");
    let cold = &two["epochs"][0];
    assert_eq!((cold["epoch"].as_u64(), cold["samples"].as_u64()), (Some(0), Some(10_000)));
    assert_eq!(cold["source"], "S3");
    // Without a cache each rank reads the dataset for itself.
    assert_eq!(cold["s3_bytes"].as_u64(), cold["projected_bytes"].as_u64().map(|bytes| 2 * bytes));
    assert!(two["epochs"][1]["loss"].as_f64() < cold["loss"].as_f64(), "{two}");
    assert!(stdout.contains("epoch 1/2  from S3") && stdout.contains("test accuracy: "), "{stdout}");

    let (one, stdout) = report(&["--data-only", "--epochs", "2"], "one.json");
    assert_eq!(digests(&one), digests(&two));
    assert_ne!(digests(&one)[0], digests(&one)[1], "each epoch has its own order");
    assert!(one["epochs"][0]["loss"].is_null() && one["test_accuracy"].is_null());
    assert!(stdout.contains(digests(&one)[1]), "{stdout}");
}

#[test]
fn the_order_follows_the_flags() {
    let read = |flags: &[&str], name| {
        let (report, _) =
            report(&[flags, &["--data-only", "--epochs", "1", "--batch", "100"]].concat(), name);
        digests(&report)[0].to_owned()
    };
    // The split has two segments: a larger window would mix them all.
    let window = read(&["--seed", "5", "--window", "1"], "window.json");
    assert_ne!(window, read(&["--seed", "6", "--window", "1"], "seed.json"));
    assert_ne!(window, read(&["--seed", "5", "--shuffle", "full"], "full.json"));
    assert_eq!(
        read(&["--shuffle", "none", "--seed", "5"], "none5.json"),
        read(&["--shuffle", "none", "--nproc", "2"], "none.json")
    );
}

#[test]
fn bad_input_is_one_line_and_an_exit_code() {
    let nowhere = uri("nowhere");
    let cases: [(&[&str], &str); 8] = [
        (&["--nproc", "0"], "the world size is 0: --nproc must be at least 1"),
        (&["--batch", "0"], "the global batch is 0: --batch must be at least 1"),
        (&["--batch", "9", "--nproc", "2"], "--batch 9 cannot be shared evenly by 2 ranks: it leaves 1 over"),
        (&["--image-column", "picture", "--nproc", "2"], "picture"),
        (&["--image-column", "label", "--label-column", "image"], "is Int64, but the convnet takes"),
        (&["--test", &nowhere, "--nproc", "2"], "nowhere"),
        (&["--lr", "1e30", "--nproc", "2"], "the loss is NaN: the training diverged"),
        (&["--report", "/nowhere/r.json"], "there is no folder /nowhere"),
    ];
    for (flags, expected) in cases {
        let message = failure(&run(flags));
        assert!(message.contains(expected), "{flags:?}: {message}");
    }
    let diverged = failure(&run(&["--lr", "1e30"]));
    assert!(diverged.starts_with("epoch 1 step "), "{diverged}");
}

/// A run with its launcher's and its ranks' process ids.
struct Running {
    launcher: Child,
    ranks: Vec<u32>,
}

fn start(flags: &[&str], world: usize) -> Running {
    let mut running = Running { launcher: command(flags).spawn().unwrap(), ranks: Vec::new() };
    let pid = running.launcher.id();
    let deadline = Instant::now() + SOON;
    while running.ranks.len() < world {
        assert!(Instant::now() < deadline, "the ranks did not start");
        sleep(Duration::from_millis(20));
        let children =
            std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        running.ranks = children.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    }
    // Let them come as far as training.
    sleep(Duration::from_secs(2));
    running.ranks.sort_by_key(|pid| rank_of(*pid));
    running
}

fn rank_of(pid: u32) -> u32 {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    let mut variables = environment.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    variables.find_map(|variable| variable.strip_prefix("RANK=").map(|rank| rank.parse().unwrap())).unwrap()
}

fn kill(pid: u32) {
    assert!(Command::new("sh").args(["-c", &format!("kill -9 {pid}")]).status().unwrap().success());
}

/// Gone, or a zombie that nobody has collected.
fn ended(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

fn all_ended(ranks: &[u32]) -> bool {
    let deadline = Instant::now() + SOON;
    while !ranks.iter().all(|pid| ended(*pid)) {
        if Instant::now() > deadline {
            return false;
        }
        sleep(Duration::from_millis(20));
    }
    true
}

#[test]
fn a_killed_rank_ends_the_run_and_is_named() {
    for flags in
        [&["--nproc", "2", "--epochs", "500"][..], &["--nproc", "2", "--epochs", "50000", "--data-only"]]
    {
        let running = start(flags, 2);
        kill(running.ranks[1]);
        let began = Instant::now();
        let output = running.launcher.wait_with_output().unwrap();
        assert!(began.elapsed() < SOON, "took {:?}", began.elapsed());
        let message = failure(&output);
        assert!(message.starts_with("rank 1 of 2 ended without a word (signal: 9"), "{message}");
        assert!(all_ended(&running.ranks));
    }
}

#[test]
fn ranks_do_not_outlive_their_launcher() {
    let mut running = start(&["--nproc", "2", "--epochs", "500"], 2);
    kill(running.launcher.id());
    running.launcher.wait().unwrap();
    assert!(all_ended(&running.ranks));
}

#[test]
fn torchruns_environment_makes_a_rank() {
    // A port that was free a moment ago; rank 0 serves the store there.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let rank = |rank: &str| {
        let mut command = command(&["--epochs", "1"]);
        command.envs([("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")]);
        command.envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port), ("GLOO_SOCKET_IFNAME", "lo")]);
        command.spawn().unwrap()
    };
    let ranks = [rank("0"), rank("1")].map(|rank| rank.wait_with_output().unwrap());
    for output in &ranks {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let said = |index: usize| String::from_utf8_lossy(&ranks[index].stdout);
    assert!(said(0).contains("order digest") && said(1).is_empty(), "only rank 0 speaks: {}", said(1));
}

#[test]
fn under_torchrun_a_rank_speaks_for_itself() {
    let error_file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("error.json");
    let mut command = command(&["--batch", "3"]);
    command.envs([("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")]);
    let output = command.env("TORCHELASTIC_ERROR_FILE", &error_file).output().unwrap();
    assert!(failure(&output).starts_with("rank 1 of 2: --batch 3 cannot be shared"));
    let mut text = String::new();
    std::fs::File::open(error_file).unwrap().read_to_string(&mut text).unwrap();
    assert!(text.contains("--batch 3 cannot be shared"), "{text}");

    command.args(["--nproc", "2"]);
    assert!(failure(&command.output().unwrap()).contains("--nproc"));
}
