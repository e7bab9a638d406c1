//! Checkpoints of the real trainer: killed, stopped and resumed runs end as undisturbed ones do.
//!
//! MNIST's smaller split (10,000 samples), read without a cache; what needs one is tested in
//! `tests/tests/e2e`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(120);

fn uri() -> String {
    mnist("test")
}

fn mnist(split: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    format!("file://{}/tests/data/mnist/{split}", root.display())
}

fn command(flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-train"));
    for variable in ["RANK", "WORLD_SIZE", "FOREBAY_ENDPOINT", "LD_LIBRARY_PATH"] {
        command.env_remove(variable);
    }
    // More than one rank at a time shares the cores; and sums must not depend on how many threads there are.
    command.env("OMP_NUM_THREADS", "1").args(["--direct", "--train", &uri()]).args(flags);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A run with its directory of checkpoints and its report.
struct Run {
    _folder: tempfile::TempDir,
    checkpoints: PathBuf,
    report: PathBuf,
}

impl Run {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (checkpoints, report) = (folder.path().join("checkpoints"), folder.path().join("report.json"));
        Self { _folder: folder, checkpoints, report }
    }

    fn command(&self, flags: &[&str]) -> Command {
        let mut command = command(flags);
        command.arg("--checkpoint-dir").arg(&self.checkpoints).arg("--report").arg(&self.report);
        command
    }

    fn end(&self, flags: &[&str]) -> (Value, String) {
        let output = self.command(flags).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report = serde_json::from_slice(&std::fs::read(&self.report).unwrap()).unwrap();
        (report, String::from_utf8(output.stdout).unwrap())
    }

    fn steps(&self) -> Vec<u64> {
        let Ok(entries) = std::fs::read_dir(&self.checkpoints) else { return Vec::new() };
        let step = |name: String| name.strip_prefix("step-").and_then(|step| step.parse().ok());
        let mut steps: Vec<u64> =
            entries.flatten().filter_map(|entry| step(entry.file_name().into_string().ok()?)).collect();
        steps.sort_unstable();
        steps
    }

    /// Starts it and waits until a checkpoint of this step or a later one is there.
    fn start_until(&self, flags: &[&str], step: u64) -> Child {
        let mut child = self.command(flags).spawn().unwrap();
        let began = Instant::now();
        while self.steps().last().is_none_or(|last| *last < step) {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("{status}: {}", String::from_utf8_lossy(&child.wait_with_output().unwrap().stderr));
            }
            assert!(began.elapsed() < PATIENCE, "no checkpoint of step {step}");
            sleep(Duration::from_millis(5));
        }
        child
    }
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, signal).unwrap();
}

fn failure(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{text}");
    text.lines().last().unwrap().to_owned()
}

fn children(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.split_whitespace().map(|child| child.parse().unwrap()).collect()
}

/// Digest and samples of every epoch, whichever process ended it.
fn epochs(report: &Value) -> Vec<(u64, String, u64)> {
    let seen = |epoch: &Value| {
        let digest = epoch["order_digest"].as_str().unwrap().to_owned();
        (epoch["epoch"].as_u64().unwrap(), digest, epoch["samples"].as_u64().unwrap())
    };
    let ended: Vec<_> = report["epochs"].as_array().unwrap().iter().map(seen).collect();
    let earlier = report["earlier_epochs"].as_array().unwrap().iter().map(seen);
    let mut all: Vec<_> = earlier.filter(|(epoch, ..)| ended.iter().all(|(own, ..)| own != epoch)).collect();
    all.extend(ended);
    all
}

#[test]
fn a_killed_run_goes_on_to_the_very_same_parameters() {
    let flags = ["--epochs", "2", "--batch", "100", "--seed", "3", "--checkpoint-every", "10"];
    let (straight, stdout) = Run::new().end(&flags);
    assert!(!stdout.contains("resumed"), "{stdout}");
    assert_eq!((straight["steps"].as_u64(), straight["resumed"].is_null()), (Some(200), true));

    let run = Run::new();
    // The second time well before the end, for a busy machine kills late; the second epoch begins at 100.
    for step in [20, 102] {
        let mut child = run.start_until(&flags, step);
        signal(child.id(), Signal::KILL);
        child.wait().unwrap();
    }
    let (resumed, stdout) = run.end(&flags);
    assert!(stdout.contains("resumed after step 1"), "{stdout}");
    assert_eq!(resumed["parameter_hashes"], straight["parameter_hashes"]);
    assert_eq!(resumed["order_digest"], straight["order_digest"]);
    assert_eq!(epochs(&resumed), epochs(&straight));
    assert_eq!(resumed["steps"], 200);
    let second = &resumed["epochs"][0];
    assert!(second["samples_before_resume"].as_u64() >= Some(500), "{second}");
    assert!(
        (second["loss"].as_f64().unwrap() - straight["epochs"][1]["loss"].as_f64().unwrap()).abs() < 1e-9
    );
    // The three newest are kept.
    assert_eq!(run.steps(), [180, 190, 200]);

    // Nothing is left to train; the earlier results are told again.
    let (again, _) = run.end(&flags);
    assert_eq!(again["parameter_hashes"], straight["parameter_hashes"]);
    assert_eq!((again["epochs"].as_array().unwrap().len(), epochs(&again)), (0, epochs(&straight)));
}

#[test]
fn stopped_and_resumed_by_other_ranks_at_another_batch_each_sample_is_seen_once() {
    let flags = |nproc: &'static str, batch: &'static str| {
        ["--nproc", nproc, "--batch", batch, "--epochs", "2", "--checkpoint-every", "7"]
    };
    let (straight, _) = Run::new().end(&flags("2", "60"));
    let run = Run::new();
    let mut killed = run.start_until(&flags("2", "60"), 14);
    signal(killed.id(), Signal::KILL);
    killed.wait().unwrap();

    let before = run.steps();
    let stopped = run.start_until(&flags("1", "60"), before.last().unwrap() + 14);
    signal(stopped.id(), Signal::TERM);
    let output = stopped.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("stopped by SIGTERM after step ") && said.contains(" is written;"), "{said}");
    let report: Value = serde_json::from_slice(&std::fs::read(&run.report).unwrap()).unwrap();
    assert_eq!((report["stopped"].as_bool(), report["steps"].as_u64()), (Some(true), run.steps().pop()));
    let last = run.checkpoints.join(format!("step-{:010}/checkpoint.json", run.steps().pop().unwrap()));
    let last: Value = serde_json::from_slice(&std::fs::read(last).unwrap()).unwrap();
    assert_eq!(report["order_digest"], last["order_digest"], "the report and the checkpoint agree");

    let (resumed, _) = run.end(&flags("3", "90"));
    assert_eq!(resumed["order_digest"], straight["order_digest"]);
    assert_eq!(epochs(&resumed), epochs(&straight));
    assert_eq!(resumed["resumed"]["world_size"], 1);
    assert_eq!(resumed["resumed"]["global_batch"], 60);
    assert_eq!(resumed["stopped"], false);
}

#[test]
fn ctrl_c_stops_with_a_checkpoint_and_the_second_at_once() {
    let flags = ["--nproc", "2", "--batch", "60", "--epochs", "200", "--checkpoint-every", "7"];
    let run = Run::new();
    let stopped = run.start_until(&flags, 14);
    signal(stopped.id(), Signal::INT);
    let output = stopped.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains(" is written; the same command goes on from there"), "{said}");
    let report: Value = serde_json::from_slice(&std::fs::read(&run.report).unwrap()).unwrap();
    assert_eq!((report["stopped"].as_bool(), report["steps"].as_u64()), (Some(true), run.steps().pop()));

    let mut twice = run.start_until(&flags, run.steps().pop().unwrap() + 14);
    // A rank that stands still keeps the first signal from ending the run.
    let rank = children(twice.id())[0];
    signal(rank, Signal::STOP);
    signal(twice.id(), Signal::INT);
    sleep(Duration::from_millis(500));
    assert!(twice.try_wait().unwrap().is_none(), "the first asks for a checkpoint");
    signal(twice.id(), Signal::INT);
    assert_eq!(twice.wait().unwrap().code(), Some(130));
    signal(rank, Signal::KILL);
}

#[test]
fn sigterm_ends_the_evaluation_too_and_the_same_command_takes_it_up() {
    let flags = ["--nproc", "2", "--epochs", "1", "--batch", "500", "--test"];
    let run = Run::new();
    // Six times the rows that were trained on: it lasts long enough to be met.
    let stopped = run.start_until(&[&flags[..], &[&mnist("train")]].concat(), 20);
    let began = Instant::now();
    signal(stopped.id(), Signal::TERM);
    let output = stopped.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("stopped by SIGTERM in the evaluation"), "after {:?}: {said}", began.elapsed());
    let report: Value = serde_json::from_slice(&std::fs::read(&run.report).unwrap()).unwrap();
    assert_eq!((report["stopped"].as_bool(), report["test"].is_null()), (Some(true), true));
    assert_eq!(run.steps(), [20]);

    let (whole, _) = run.end(&[&flags[..], &[&uri()]].concat());
    assert_eq!((whole["stopped"].as_bool(), whole["steps"].as_u64()), (Some(false), Some(20)));
    assert_eq!(whole["test"]["samples"], 10_000);
    assert_eq!(whole["parameter_hashes"], report["parameter_hashes"]);
}

#[test]
fn a_killed_rank_is_started_anew_with_all_others() {
    let flags = ["--nproc", "2", "--epochs", "2", "--batch", "100", "--seed", "3", "--checkpoint-every", "5"];
    let (straight, _) = Run::new().end(&flags);
    let run = Run::new();
    let flags = [&flags[..], &["--max-restarts", "2", "--fresh"]].concat();
    let launcher = run.start_until(&flags, 20);
    signal(children(launcher.id())[0], Signal::KILL);
    let output = launcher.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("ended without a word (signal: 9 (SIGKILL))"), "{stderr}");
    assert!(stderr.contains("; restart 1 of 2"), "{stderr}");
    let report: Value = serde_json::from_slice(&std::fs::read(&run.report).unwrap()).unwrap();
    assert_eq!(report["order_digest"], straight["order_digest"]);
    assert!(report["resumed"]["step"].as_u64() >= Some(15), "{report}");
    assert_eq!(report["parameter_hashes"], straight["parameter_hashes"]);
}

#[test]
fn another_run_s_checkpoint_is_refused_by_name_and_fresh_starts_anew() {
    let run = Run::new();
    let flags = ["--epochs", "1", "--batch", "500"];
    run.end(&flags);
    let refused = |more: &[&str]| failure(&run.command(&[&flags[..], more].concat()).output().unwrap());
    let seed = refused(&["--seed", "9"]);
    assert!(seed.contains("it is of --seed 1, but this run has --seed 9"), "{seed}");
    let model = refused(&["--data-only"]);
    assert!(
        model.contains("it is of the model ") && model.contains("but this run has the model none"),
        "{model}"
    );
    let dataset = refused(&["--split", "0:0.5"]);
    assert!(dataset.contains("it is of the dataset "), "{dataset}");
    assert!(refused(&["--keep", "0"]).contains("--keep must be at least 1"));
    let file = run.report.to_str().unwrap();
    let output = command(&["--checkpoint-dir", file]).output().unwrap();
    assert!(failure(&output).contains(&format!("--checkpoint-dir {file}")), "{}", failure(&output));

    let (fresh, stdout) = run.end(&[&flags[..], &["--seed", "9", "--fresh"]].concat());
    assert!(stdout.contains("starting over: the checkpoints so far are now in "), "{stdout}");
    assert!(fresh["resumed"].is_null() && run.checkpoints.join("before-1/step-0000000020").is_dir());
}

#[test]
fn other_settings_at_a_resume_are_told_and_another_optimizer_is_refused() {
    let run = Run::new();
    let flags = ["--batch", "500", "--epochs"];
    run.end(&[&flags[..], &["1", "--lr", "0.1"]].concat());
    let adam = run.command(&[&flags[..], &["2", "--optimizer", "adam"]].concat()).output().unwrap();
    let adam = failure(&adam);
    assert!(adam.contains("it is of --optimizer sgd, but this run has --optimizer adam"), "{adam}");
    let (_, said) = run.end(&[&flags[..], &["2", "--lr", "0.05", "--clip-norm", "3"]].concat());
    let expected = "other settings than before: clip_norm none -> 3.0, schedule.lr 0.1 -> 0.05, schedule.steps 20 -> 40\n";
    assert!(said.contains(expected), "{said}");
    let (_, said) = run.end(&[&flags[..], &["2", "--lr", "0.05", "--clip-norm", "3"]].concat());
    assert!(said.contains("resumed after step 40") && !said.contains("other settings"), "{said}");
}

#[test]
fn crashes_while_writing_never_cost_the_last_checkpoint() {
    let flags = ["--epochs", "1000", "--batch", "100", "--checkpoint-every", "1", "--keep", "2"];
    let run = Run::new();
    let mut last = 0;
    for crash in 0..8 {
        let mut child = run.start_until(&flags, last + 2);
        // Somewhere within the writing of one of the next checkpoints.
        sleep(Duration::from_micros(3_700 * crash));
        signal(child.id(), Signal::KILL);
        child.wait().unwrap();
        let steps = run.steps();
        assert!(*steps.last().unwrap() >= last + 2, "{steps:?} after {last}");
        last = *steps.last().unwrap();
    }
    let child = run.start_until(&flags, last + 1);
    signal(child.id(), Signal::TERM);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && said.contains(&format!("resumed after step {last}:")),
        "{last}: {said}"
    );
    assert!(String::from_utf8_lossy(&output.stderr).lines().all(|line| !line.contains("damaged")));
}

#[test]
fn damage_is_told_and_the_checkpoint_before_is_used() {
    let run = Run::new();
    let flags = ["--epochs", "1", "--batch", "500", "--checkpoint-every", "5"];
    run.end(&flags);
    assert_eq!(run.steps(), [10, 15, 20]);
    let weights = run.checkpoints.join("step-0000000020/weights.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    let output = run.command(&flags).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("resumed after step 15:"), "{out}{err}");
    assert!(err.contains("step-0000000020 is damaged and is passed over: weights.safetensors"), "{err}");
}

#[test]
fn a_loss_that_is_no_number_names_its_samples_and_the_command_that_shows_them() {
    let output = command(&["--lr", "1e30", "--seed", "4"]).output().unwrap();
    let message = failure(&output);
    assert!(message.contains("the loss is ") && message.contains("; its samples are the rows "), "{message}");
    assert!(message.contains("`forebay plan file:///") && message.ends_with("` shows them"), "{message}");
    assert!(
        message.contains(" --direct --seed 4 --epoch 0 --batch 128 --shuffle 'window(4)' --step "),
        "{message}"
    );
}
