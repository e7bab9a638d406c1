//! The gpt on documents of any length, packed: the same sequences on any number of ranks, over kills and
//! resumes, and less padding than one document a row.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, FixedSizeListArray, ListArray, RecordBatch, UInt8Array};
use arrow::datatypes::{DataType, Field, Int32Type};
use parquet::arrow::ArrowWriter;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(180);

const DOCUMENTS: usize = 330;
const CONTEXT: usize = 16;

/// A steady model: the loss of an epoch then tells which sequences there were.
const STEADY: &str = "--model gpt --vocab 50 --context 16 --layers 1 --heads 2 --width 16 --pack --optimizer sgd \
                      --lr 1e-30 --verify";

/// Tokens of a document: most have few, some more than the context, some none.
fn length(row: usize) -> usize {
    match row % 11 {
        0 => 0,
        5 => 40 + row % 23,
        other => 1 + (other * 7 + row) % 13,
    }
}

fn tokens() -> usize {
    (0..DOCUMENTS).map(length).sum()
}

/// Two objects of documents that count on in steps of their own.
fn documents(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packing").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    for (object, rows) in [0..200, 200..DOCUMENTS].into_iter().enumerate() {
        let text = |row: usize| {
            let tokens = (0..length(row)).map(move |place| Some((((1 + row % 3) * place + row) % 50) as i32));
            (!row.is_multiple_of(22)).then_some(tokens)
        };
        let list = ListArray::from_iter_primitive::<Int32Type, _, _>(rows.clone().map(text));
        let item = Arc::new(Field::new("item", DataType::UInt8, true));
        let fixed = UInt8Array::from(vec![1; 17 * rows.len()]);
        let fixed = FixedSizeListArray::new(item, 17, Arc::new(fixed), None);
        let columns: Vec<(&str, ArrayRef)> = vec![("tokens", Arc::new(list)), ("fixed", Arc::new(fixed))];
        let batch = RecordBatch::try_from_iter_with_nullable(
            columns.into_iter().map(|(name, column)| (name, column, true)),
        )
        .unwrap();
        let file = File::create(folder.join(format!("part-{object}.parquet"))).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }
    folder
}

/// A run on documents, with its checkpoints and its report.
struct Run {
    data: [String; 2],
    folder: tempfile::TempDir,
}

impl Run {
    fn new(data: &Path) -> Self {
        let data = ["--train".to_owned(), format!("file://{}", data.display())];
        Self { data, folder: tempfile::tempdir().unwrap() }
    }

    /// Of two datasets, 7 to 3.
    fn of_mix(first: &Path, second: &Path) -> Self {
        let mix = format!("file://{}=0.7,file://{}=0.3", first.display(), second.display());
        Self { data: ["--mix".to_owned(), mix], folder: tempfile::tempdir().unwrap() }
    }

    fn command(&self, flags: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-train"));
        for variable in ["RANK", "WORLD_SIZE", "FOREBAY_ENDPOINT", "LD_LIBRARY_PATH"] {
            command.env_remove(variable);
        }
        command.env("OMP_NUM_THREADS", "1").arg("--direct").args(&self.data);
        command.arg("--checkpoint-dir").arg(self.folder.path().join("checkpoints"));
        command.arg("--report").arg(self.folder.path().join("report.json"));
        command.args(flags.split_whitespace());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn end(&self, flags: &str) -> Value {
        ended(&self.command(flags).output().unwrap(), flags);
        self.report()
    }

    fn report(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.folder.path().join("report.json")).unwrap()).unwrap()
    }

    fn last_step(&self) -> Option<u64> {
        let entries = std::fs::read_dir(self.folder.path().join("checkpoints")).ok()?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        names.filter_map(|name| name.strip_prefix("step-")?.parse().ok()).max()
    }

    /// Starts it, and waits for the checkpoint of a step.
    fn start_until(&self, flags: &str, step: u64) -> Child {
        let mut child = self.command(flags).spawn().unwrap();
        let began = Instant::now();
        while self.last_step().is_none_or(|last| last < step) {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("{status}: {}", String::from_utf8_lossy(&child.wait_with_output().unwrap().stderr));
            }
            assert!(began.elapsed() < PATIENCE, "no checkpoint of step {step}");
            sleep(Duration::from_millis(5));
        }
        child
    }
}

fn ended(output: &Output, flags: &str) -> String {
    assert!(output.status.success(), "{flags}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn signal(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, signal).unwrap();
}

/// What an epoch was: its documents, their values, its sequences and their mean loss.
fn seen(epoch: &Value) -> (String, String, u64, u64, f64) {
    let text = |name: &str| epoch[name].as_str().unwrap().to_owned();
    let number = |name: &str| epoch[name].as_u64().unwrap();
    let loss = epoch["loss"].as_f64().unwrap();
    (text("order_digest"), text("content_digest"), number("samples"), number("sequences"), loss)
}

fn same(a: &Value, b: &Value) {
    let (a, b) = (seen(a), seen(b));
    assert_eq!((&a.0, &a.1, a.2, a.3), (&b.0, &b.1, b.2, b.3));
    assert!((a.4 - b.4).abs() < 1e-5 * a.4, "{a:?} against {b:?}");
}

#[test]
fn any_number_of_ranks_trains_on_the_same_sequences() {
    let data = documents("ranks");
    let flags = format!("{STEADY} --epochs 2 --batch 12");
    let run = |ranks: u64| Run::new(&data).end(&format!("{flags} --nproc {ranks}"));
    let one = run(1);
    let sequences = tokens().div_ceil(CONTEXT) as u64;
    assert_eq!(one["steps_per_epoch"], sequences.div_ceil(12));
    for epoch in one["epochs"].as_array().unwrap() {
        let (.., samples, made, _) = seen(epoch);
        assert_eq!((samples, made), (DOCUMENTS as u64, sequences));
        assert_eq!(epoch["tokens"].as_u64(), Some(tokens() as u64), "each token once");
        let places = one["steps_per_epoch"].as_u64().unwrap() * 12 * CONTEXT as u64;
        let padding = 1.0 - tokens() as f64 / places as f64;
        assert!((epoch["padding_share"].as_f64().unwrap() - padding).abs() < 1e-9);
        assert!(epoch["tokens_per_s"].as_f64().unwrap() > 0.0);
    }
    assert_ne!(one["epochs"][0]["order_digest"], one["epochs"][1]["order_digest"]);
    for ranks in [2, 3] {
        let other = run(ranks);
        assert_eq!(other["steps"], one["steps"]);
        for epoch in [0, 1] {
            same(&other["epochs"][epoch], &one["epochs"][epoch]);
        }
    }
}

#[test]
fn killed_and_taken_up_by_other_ranks_each_token_is_seen_once() {
    let data = documents("killed");
    let flags = |ranks: u64, batch: u64| {
        format!("{STEADY} --epochs 2 --batch {batch} --nproc {ranks} --checkpoint-every 3")
    };
    let straight = Run::new(&data).end(&flags(1, 6));
    let run = Run::new(&data);
    let mut killed = run.start_until(&flags(2, 6), 6);
    signal(&killed, Signal::KILL);
    killed.wait().unwrap();
    let before = run.last_step().unwrap();
    let mut killed = run.start_until(&flags(1, 6), before + 3);
    signal(&killed, Signal::KILL);
    killed.wait().unwrap();
    let ended = run.end(&flags(3, 9));
    assert_eq!(ended["order_digest"], straight["order_digest"]);
    let epochs = |report: &Value| {
        let both = ["earlier_epochs", "epochs"].map(|name| report[name].as_array().unwrap().clone());
        both.concat()
    };
    // The epoch under way when it was killed is told by whom it was ended.
    for epoch in epochs(&ended).iter().filter(|epoch| epoch["samples"] == DOCUMENTS) {
        let number = epoch["epoch"].as_u64().unwrap() as usize;
        let sequences = epoch["sequences"].as_u64().unwrap();
        assert_eq!(epoch["content_digest"], straight["epochs"][number]["content_digest"]);
        assert_eq!(sequences, tokens().div_ceil(CONTEXT) as u64);
        if epoch.get("loss").is_some() {
            same(epoch, &straight["epochs"][number]);
        }
    }
    assert!(epochs(&ended).iter().any(|epoch| epoch["loss"].is_number()));
}

#[test]
fn a_mix_is_packed_alike_by_any_ranks_and_over_kills() {
    let (first, second) = (documents("mix-first"), documents("mix-second"));
    let flags = |ranks: u64, batch: u64| {
        format!("{STEADY} --epochs 3 --batch {batch} --nproc {ranks} --checkpoint-every 3")
    };
    let run = |ranks| Run::of_mix(&first, &second).end(&flags(ranks, 6));
    let straight = run(1);
    let epochs = straight["epochs"].as_array().unwrap();
    assert!(epochs.iter().all(|epoch| epoch["samples"] == 470), "47 blocks of 7 and 3 rows");
    let tokens: Vec<u64> = epochs.iter().map(|epoch| epoch["tokens"].as_u64().unwrap()).collect();
    assert!(tokens.iter().any(|tokens| *tokens != epochs[0]["tokens"]), "epochs differ: {tokens:?}");
    for (epoch, tokens) in epochs.iter().zip(&tokens) {
        assert_eq!(epoch["sequences"].as_u64(), Some(tokens.div_ceil(CONTEXT as u64)));
    }
    let steps: u64 = tokens.iter().map(|tokens| tokens.div_ceil(6 * CONTEXT as u64)).sum();
    assert_eq!(straight["steps"].as_u64(), Some(steps));
    let other = run(3);
    assert_eq!(other["steps"], straight["steps"]);
    for (own, other) in epochs.iter().zip(other["epochs"].as_array().unwrap()) {
        same(other, own);
    }
    // Killed in the first and in a later epoch, and taken up by others.
    let run = Run::of_mix(&first, &second);
    for (ranks, more) in [(2, 6), (1, steps / 2)] {
        let mut killed = run.start_until(&flags(ranks, 6), run.last_step().unwrap_or(0).max(more));
        signal(&killed, Signal::KILL);
        killed.wait().unwrap();
    }
    let ended = run.end(&flags(3, 6));
    assert_eq!(ended["steps"], straight["steps"]);
    assert_eq!(ended["order_digest"], straight["order_digest"]);
}

#[test]
fn a_packed_training_loses_no_step_to_ctrl_c() {
    let data = documents("ctrl-c");
    let flags = "--model gpt --vocab 50 --context 16 --layers 2 --heads 2 --width 32 --pack --batch 6 --optimizer adamw \
                 --lr 0.005 --epochs 3 --checkpoint-every 4 --nproc 2 --verify";
    let straight = Run::new(&data).end(flags);
    let losses: Vec<_> = straight["epochs"].as_array().unwrap().iter().map(|e| e["loss"].as_f64()).collect();
    assert!(losses[2] < losses[0].map(|loss| 0.95 * loss), "{losses:?}");

    let run = Run::new(&data);
    let stopped = run.start_until(flags, 8);
    signal(&stopped, Signal::INT);
    let said = ended(&stopped.wait_with_output().unwrap(), flags);
    let steps = run.report()["steps"].as_u64();
    if run.report()["stopped"] == true {
        assert!(said.contains(" is written; the same command goes on from there"), "{said}");
        assert_eq!(steps, run.last_step());
    }
    let resumed = run.end(flags);
    assert_eq!(resumed["resumed"]["step"].as_u64(), steps);
    assert_eq!(resumed["steps"], straight["steps"]);
    assert_eq!(resumed["order_digest"], straight["order_digest"]);
    assert_eq!(resumed["parameter_hashes"], straight["parameter_hashes"], "bit for bit");
}

#[test]
fn packed_and_padded_are_reported_alike_and_what_cannot_be_packed_is_refused() {
    let data = documents("padded");
    let flags =
        "--model gpt --vocab 50 --context 16 --layers 1 --heads 2 --width 16 --optimizer adamw --batch 8";
    let test = format!("--epochs 1 --test file://{}", data.display());
    let padded = Run::new(&data).end(&format!("{flags} {test}"));
    let padded = &padded["epochs"][0];
    // A row's last token is only predicted, and what lies behind the context is cut.
    let read: usize = (0..DOCUMENTS).filter(|row| row % 22 > 0).map(|row| length(row).min(CONTEXT)).sum();
    assert_eq!(padded["tokens"].as_u64(), Some(read as u64), "{padded}");
    assert!(padded["padding_share"].as_f64() > Some(0.3) && padded["sequences"].is_null(), "{padded}");
    let packed = Run::new(&data).end(&format!("{flags} {test} --pack"));
    assert!(packed["epochs"][0]["padding_share"].as_f64() < Some(0.05), "{packed}");
    assert_eq!(packed["test"]["samples"].as_u64(), Some(DOCUMENTS as u64), "one document a row");
    assert_eq!(packed["settings"]["model"]["pack"], true);
    let found =
        Run::new(&data).end(&format!("{} --pack --batch auto --epochs 1", flags.replace(" --batch 8", "")));
    assert!(found["global_batch"].as_u64().unwrap().is_power_of_two());

    let refused = |flags: &str| {
        let output = Run::new(&data).command(flags).output().unwrap();
        assert!(!output.status.success(), "{flags} was accepted");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let error = refused(&format!("{flags} --pack --token-column fixed"));
    assert!(error.contains("`fixed` of") && error.contains("there is nothing to --pack"), "{error}");
    let error = refused(&format!("{} --pack", flags.replace(" --context 16", "")));
    assert!(error.contains("--context"), "{error}");
    let error = refused("--pack --context 16");
    assert!(error.contains("--pack is for the documents of a --model gpt"), "{error}");
    let run = Run::new(&data);
    run.end(&format!("{flags} --pack --epochs 1"));
    let error = String::from_utf8_lossy(&run.command(flags).output().unwrap().stderr).into_owned();
    assert!(error.contains("it is of the model") && error.contains("--fresh"), "{error}");
}
