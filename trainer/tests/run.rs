//! `forebay-train` itself, as a user starts it: real ranks on real MNIST, read without a cache.
//!
//! The smaller split (10,000 samples) serves as the training dataset, so that a run takes seconds.

mod ports;

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use ports::free_port;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A failure must have ended the whole run by then. The promise is 10 s, which the benchmark looks after:
/// here a busy machine may start and end processes slowly.
const SOON: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(120);

fn uri(split: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    format!("file://{}/tests/data/mnist/{split}", root.display())
}

fn command(flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-train"));
    for variable in ["RANK", "WORLD_SIZE", "FOREBAY_ENDPOINT", "LD_LIBRARY_PATH", "RUST_BACKTRACE"] {
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
fn gradients_travel_as_the_flags_say() {
    let trained = |flags: &[&str], name: &str| {
        let base = ["--nproc", "2", "--epochs", "1", "--batch", "500"];
        let (report, _) = report(&[&base, flags].concat(), name);
        let hashes = report["parameter_hashes"].as_array().unwrap();
        assert_eq!(hashes[0], hashes[1], "{report}");
        (hashes[0].as_str().unwrap().to_owned(), report["epochs"][0]["loss"].as_f64().unwrap(), report)
    };
    let (plain, loss, report) = trained(&[], "plain.json");
    let told = &report["settings"]["gradients"];
    assert_eq!(
        (told["gradient_compression"].as_str(), told["bucket_bytes"].as_u64()),
        (Some("none"), Some(25 << 20))
    );
    assert!(told["nccl"].is_null(), "{told}");

    let (rounded, rounded_loss, report) = trained(&["--gradient-compression", "bf16"], "bf16.json");
    assert_eq!(report["settings"]["gradients"]["gradient_compression"], "bf16");
    assert!(rounded != plain && (rounded_loss - loss).abs() < 0.1 * loss, "{rounded_loss} against {loss}");

    // Sums of two ranks do not depend on how they are packed, nor on how the passes are prepared.
    let packed =
        ["--bucket-bytes", "16KiB", "--first-bucket-bytes", "1KiB", "--gradient-as-bucket-view", "false"];
    assert_eq!(trained(&packed, "packed.json").0, plain);
    assert_eq!(trained(&["--static-graph"], "static.json").0, plain);
    assert_eq!(trained(&["--find-unused"], "unused.json").0, plain);
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
    // More than any machine can address: libtorch panics.
    let vast = ["--model", "mlp", "--feature-columns", "image", "--hidden", "40000000000000"];
    let cases: [(&[&str], &str); 9] = [
        (&["--nproc", "0"], "the world size is 0: --nproc must be at least 1"),
        (&["--batch", "0"], "the global batch is 0: --batch must be at least 1"),
        (&["--batch", "9", "--nproc", "2"], "--batch 9 cannot be shared evenly by 2 ranks: it leaves 1 over"),
        (&["--image-column", "picture", "--nproc", "2"], "picture"),
        (&["--image-column", "label", "--label-column", "image"], "is Int64, but the convnet takes"),
        (&["--test", &nowhere, "--nproc", "2"], "nowhere"),
        (&["--lr", "1e30", "--nproc", "2"], "the loss is NaN: the training diverged"),
        (&["--report", "/nowhere/r.json"], "there is no folder /nowhere"),
        (&vast, "too little memory: take a smaller --batch, or --batch auto"),
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
    signal(pid, Signal::KILL);
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, signal).unwrap();
}

/// One rank without a launcher; rank 0 serves the store.
fn place(flags: &[&str], rank: usize, world: usize, port: u16) -> Command {
    let mut command = command(flags);
    let (rank, world) = (rank.to_string(), world.to_string());
    command.envs([
        ("RANK", &rank),
        ("LOCAL_RANK", &rank),
        ("WORLD_SIZE", &world),
        ("LOCAL_WORLD_SIZE", &world),
    ]);
    command.env("MASTER_PORT", port.to_string());
    command.envs([("MASTER_ADDR", "127.0.0.1"), ("GLOO_SOCKET_IFNAME", "lo")]);
    command.env("TORCH_CPP_LOG_LEVEL", "FATAL");
    command
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

/// Once a checkpoint is there, all ranks train, and watch each other.
fn wait_for_a_step(checkpoints: &Path) {
    let began = Instant::now();
    let step = |name: &str| name.strip_prefix("step-").is_some_and(|step| step.parse::<u64>().is_ok());
    let entries = || std::fs::read_dir(checkpoints).into_iter().flatten().flatten();
    while !entries().any(|entry| entry.file_name().to_str().is_some_and(step)) {
        assert!(began.elapsed() < PATIENCE, "no checkpoint");
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_frozen_rank_is_named_by_those_that_wait_for_it() {
    // Its connections stay as they are: no operation of the others fails. Rank 0 has the store with it.
    for victim in [0, 1] {
        let port = free_port();
        let folder = tempfile::tempdir().unwrap();
        let kept = ["--checkpoint-every", "1", "--checkpoint-dir", folder.path().to_str().unwrap()];
        let flags = ["--epochs", "500", "--batch", "96", "--peer-silence-s", "3"];
        let flags = [&flags[..], &kept].concat();
        let ranks: Vec<_> = (0..3).map(|rank| place(&flags, rank, 3, port).spawn().unwrap()).collect();
        wait_for_a_step(folder.path());
        let frozen = ranks[victim].id();
        signal(frozen, Signal::STOP);
        let (began, mut watches) = (Instant::now(), 0);
        for (rank, child) in ranks.into_iter().enumerate().filter(|(rank, _)| *rank != victim) {
            let output = child.wait_with_output().unwrap();
            let message = failure(&output);
            assert_eq!(output.status.code(), Some(3), "{message}");
            // Each finds out by itself; an operation of the second to end may already break over the first.
            let (mine, dead) = (format!("rank {rank} of 3: "), format!("rank {victim} gave no sign of life"));
            let watched = message.ends_with(&format!("{mine}watch over the ranks: {dead}"));
            let told = message.contains(&mine)
                && (message.ends_with(&format!("; {dead}"))
                    || message.ends_with(&format!("; rank {victim}, which serves the store, is gone")));
            assert!(watched || told, "{message}");
            watches += usize::from(watched);
        }
        assert!(watches > 0, "the watch is what notices");
        assert!(began.elapsed() < SOON, "took {:?}", began.elapsed());
        kill(frozen);
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
    let port = free_port();
    let ranks = [0, 1].map(|rank| place(&["--epochs", "1"], rank, 2, port).spawn().unwrap());
    let ranks = ranks.map(|rank| rank.wait_with_output().unwrap());
    for output in &ranks {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let said = |index: usize| String::from_utf8_lossy(&ranks[index].stdout);
    assert!(said(0).contains("order digest") && said(1).is_empty(), "only rank 0 speaks: {}", said(1));
}

#[test]
fn ranks_that_cannot_meet_say_why() {
    let told = |world: [usize; 2], port: u16| {
        let began = Instant::now();
        // A batch that both numbers of ranks can share.
        let ranks = [0, 1].map(|rank| place(&["--batch", "120"], rank, world[rank], port).spawn().unwrap());
        let told = ranks.map(|rank| failure(&rank.wait_with_output().unwrap()));
        assert!(began.elapsed() < PATIENCE, "took {:?}", began.elapsed());
        told
    };
    let port = free_port();
    for message in told([2, 3], port) {
        let expected = "join the other ranks: rank 1 has WORLD_SIZE=3, but rank 0 has WORLD_SIZE=2";
        assert!(message.contains(expected), "{message}");
    }
    let taken = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let [first, second] = told([2, 2], port);
    assert!(first.ends_with(&format!("port {port} is in use by another program")), "{first}");
    assert!(second.contains(&format!("what listens at 127.0.0.1:{port} is no TCP store")), "{second}");
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

#[test]
fn a_wrong_command_line_has_an_exit_code_of_its_own() {
    for (flags, says) in [
        (["--nproc", "0"], "--nproc must be"),
        (["--lr", "nan"], "--lr must be"),
        (["--keep", "0"], "--keep must be"),
    ] {
        let output = run(&flags);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {output:?}");
        let said = failure(&output);
        assert!(said.contains(says), "{flags:?}: {said}");
    }
    let output = command(&[]).env("RUST_LOG", "forebay_train=debgu").output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = failure(&output);
    assert!(said.starts_with("RUST_LOG=forebay_train=debgu: "), "{said}");
}
