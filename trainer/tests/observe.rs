//! What a run leaves for tools to read: TensorBoard's own reader and Perfetto's format are the judges.
//!
//! The Python is that of `scripts/setup.sh tests`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Trains on MNIST's smaller split, to the end; gives what it said on stderr.
fn train(flags: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-train"));
    for variable in ["RANK", "WORLD_SIZE", "FOREBAY_ENDPOINT", "LD_LIBRARY_PATH"] {
        command.env_remove(variable);
    }
    let uri = format!("file://{}/tests/data/mnist/test", root().display());
    command.env("OMP_NUM_THREADS", "1").args(["--direct", "--train", &uri, "--batch", "500"]).args(flags);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

/// Every scalar in a directory of event files, as TensorBoard's EventAccumulator reads them.
fn scalars(folder: &Path) -> Value {
    let script = "
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={'scalars': 0}).Reload()
print(json.dumps({tag: [[s.step, s.value] for s in events.Scalars(tag)] for tag in events.Tags()['scalars']}))
";
    let python = root().join(".venv/bin/python");
    let output = Command::new(&python)
        .args(["-c", script])
        .arg(folder)
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}: run `scripts/setup.sh tests`", python.display()));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "run `scripts/setup.sh tests`?\n{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn tensorboards_own_reader_reads_the_events() {
    let folder = tempfile::tempdir().unwrap();
    let (board, checkpoints) = (folder.path().join("board"), folder.path().join("checkpoints"));
    let (board, checkpoints) = (board.to_str().unwrap(), checkpoints.to_str().unwrap());
    let report = folder.path().join("report.json");
    let flags = ["--tensorboard", board, "--nproc", "2", "--report", report.to_str().unwrap()];
    let kept = ["--checkpoint-dir", checkpoints, "--checkpoint-every", "15", "--keep", "9"];
    train(&[&flags[..], &kept[..], &["--epochs", "1"]].concat());
    let first = scalars(Path::new(board));
    let loss = first["train/loss"].as_array().unwrap();
    assert_eq!((loss.len(), &loss[0][0], &loss[19][0]), (20, &Value::from(1), &Value::from(20)));
    for tag in [
        "data_wait_ms",
        "forward_ms",
        "backward_ms",
        "optimizer_ms",
        "copy_ms",
        "total_ms",
        "samples_per_s",
        "overlap_ms",
    ] {
        let values = first[format!("step/{tag}")].as_array().unwrap_or_else(|| panic!("no {tag} in {first}"));
        assert!(values.len() == 20 && values.iter().all(|value| value[1].as_f64() >= Some(0.0)), "{tag}");
    }
    // The gradients of every step travel, and of every step it is told how long.
    let communication = first["step/communication_ms"].as_array().unwrap();
    assert!(communication.len() == 20 && communication.iter().all(|value| value[1].as_f64() > Some(0.0)));
    let report: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    let close = |event: &Value, said: &Value| {
        let (event, said) = (event.as_f64().unwrap(), said.as_f64().unwrap());
        assert!((event - said).abs() <= 1e-5 * said.abs(), "{event} {said}");
    };
    close(&first["epoch/loss"][0][1], &report["epochs"][0]["loss"]);
    let times = &report["epochs"][0]["times"];
    close(&first["epoch/accelerator_utilisation"][0][1], &times["accelerator_utilisation"]);
    assert!(
        times["ranks"].as_array().unwrap().len() == 2
            && times["ranks"][1]["backward_ms"].as_f64() > Some(0.0)
    );

    // Taken up in the middle: steps done twice are shown once.
    std::fs::remove_dir_all(Path::new(checkpoints).join("step-0000000020")).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1100));
    train(&[&flags[..], &kept[..], &["--epochs", "2"]].concat());
    let steps: Vec<_> = scalars(Path::new(board))["train/loss"]
        .as_array()
        .unwrap()
        .iter()
        .map(|scalar| scalar[0].as_u64().unwrap())
        .collect();
    assert_eq!(steps, (1..=40).collect::<Vec<_>>());
}

#[test]
fn evaluations_between_epochs_and_the_loss_scale_are_seen_and_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, flags: &[&str]| -> Value {
        let file = folder.path().join(name);
        let test = format!("file://{}/tests/data/mnist/test", root().display());
        let base = "--split 0:0.1 --precision fp16 --epochs 2 --test-split 0:0.05 --nproc 2 --test";
        let base: Vec<_> =
            base.split(' ').chain([test.as_str(), "--report", file.to_str().unwrap()]).collect();
        train(&[&base[..], flags].concat());
        serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
    };
    let board = folder.path().join("board");
    let often = run("often.json", &["--eval-every", "1", "--tensorboard", board.to_str().unwrap()]);
    let once = run("once.json", &[]);
    assert_eq!(often["parameter_hashes"], once["parameter_hashes"]);
    assert_eq!(often["test"], once["test"]);
    let epochs = often["epochs"].as_array().unwrap();
    assert!(
        epochs
            .iter()
            .all(|epoch| epoch["test"]["samples"] == 500
                && epoch["scaling"]["loss_scale"].as_f64() > Some(0.0))
    );
    assert_eq!(epochs[1]["test"], often["test"]);
    assert!(once["epochs"][0]["test"].is_null());
    let seen = scalars(&board);
    for (tag, values) in
        [("epoch/test_accuracy", 2), ("epoch/test_loss", 2), ("step/loss_scale", 4), ("step/skipped", 4)]
    {
        assert_eq!(seen[tag].as_array().map(Vec::len), Some(values), "{tag} in {seen}");
    }
    let steps: Vec<_> =
        seen["epoch/test_loss"].as_array().unwrap().iter().map(|value| value[0].as_u64()).collect();
    assert_eq!(steps, [Some(2), Some(4)]);
}

/// The form that Perfetto and chrome://tracing read: "Trace Event Format", complete events.
#[test]
fn a_trace_holds_our_spans_and_libtorchs_operators() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.json");
    train(&["--profile", trace.to_str().unwrap(), "--profile-steps", "3", "--nproc", "2", "--epochs", "1"]);
    for file in [trace.clone(), folder.path().join("trace.rank1.json")] {
        let trace: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let complete: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
        for event in &complete {
            let number = |name: &str| event[name].as_f64().is_some_and(|value| value >= 0.0);
            assert!(number("ts") && number("dur") && event["name"].is_string(), "{event}");
            assert!(!event["pid"].is_null() && !event["tid"].is_null(), "{event}");
        }
        let count = |name: &str| complete.iter().filter(|event| event["name"] == name).count();
        for name in ["data wait", "copy", "forward", "backward", "optimizer"] {
            assert_eq!(count(name), 3, "{name} in {}", file.display());
        }
        assert!(count("aten::convolution") >= 6, "two in each forward pass");
    }
}

#[test]
fn a_run_of_one_step_leaves_a_trace_and_a_run_of_none_says_why_not() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, checkpoints) = (folder.path().join("trace.json"), folder.path().join("checkpoints"));
    let flags = ["--profile", trace.to_str().unwrap(), "--checkpoint-dir", checkpoints.to_str().unwrap()];
    let flags = [&flags[..], &["--split", "0:0.05", "--epochs", "1"]].concat();
    train(&flags);
    let text = std::fs::read_to_string(&trace).unwrap();
    let trace_of: Value = serde_json::from_str(&text).unwrap();
    let events = trace_of["traceEvents"].as_array().unwrap();
    let named =
        |name: &str| events.iter().filter(|event| event["ph"] == "X" && event["name"] == name).count();
    assert_eq!((named("forward"), named("optimizer")), (1, 1));
    // The copy for the checkpoint is made by the same thread; the end of the run waits for the one that
    // writes it.
    assert_eq!((named("snapshot"), named("write checkpoint")), (1, 1));
    std::fs::remove_file(&trace).unwrap();
    let said = train(&flags);
    assert!(said.contains("the trace begins with the second step, and this run had 0"), "{said}");
    assert!(!trace.exists());
}

#[test]
fn what_happens_between_steps_is_no_wait_for_data() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, board) = (folder.path().join("trace.json"), folder.path().join("board"));
    // The trace of steps 2 to 26 is written before step 27, which takes a while.
    let flags = ["--epochs", "2", "--profile", trace.to_str().unwrap(), "--profile-steps", "25"];
    train(&[&flags[..], &["--tensorboard", board.to_str().unwrap()]].concat());
    let seen = scalars(&board);
    let of = |tag: &str| {
        seen[format!("step/{tag}_ms")][26][1].as_f64().unwrap_or_else(|| panic!("no {tag} in {seen}"))
    };
    let parts: f64 = ["data_wait", "copy", "forward", "backward", "optimizer"].map(of).iter().sum();
    let (writing, total) = (of("total") - parts, of("total"));
    assert!(writing > 1.0, "{writing} of {total} ms, {} for data", of("data_wait"));
}
