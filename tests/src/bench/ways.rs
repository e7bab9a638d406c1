//! `forebay-bench-ways`: the same training four ways, timed: from an empty cache, from a full one, in new
//! processes on a full one, and without a cache.
//!
//! Each way is a run of `forebay-train` with the flags that were given, so the times are those that a user
//! gets. It leaves one table, one page with a chart, and a report of rows.

mod page;
mod way;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::harness::origin;
use crate::harness::report::Row;
use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use forebay_client::ENDPOINT_VARIABLE;
use forebay_client::Node;
use forebay_client::survey;
use forebay_proto::v1::FreeRequest;
use forebay_train::{AUTO_BATCH, ERROR_FILE, PREFIX, Settings};
use serde_json::{Value, json};

use self::way::{DEFINITIONS, Epoch, HEADS, UTILISATION_WORDS, Way, cells};

/// Time epochs of a training: cold, warm, restarted, and direct
///
/// Takes all flags of a training, those of the cache and those for reading the object store directly at once.
/// --report FILE has what bench.json has: the trainings' own reports are not kept.
#[derive(Debug, Clone, Parser)]
#[command(name = "forebay-bench-ways", version)]
pub struct Options {
    /// The training.
    #[command(flatten)]
    pub settings: Settings,
    /// How often each way is taken; the table shows medians
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Write bench.json and bench.html into this directory
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub out: PathBuf,
}

/// Flags that the benchmark sets by itself, or that have no place in it; with a value or without.
const OWN: [(&str, bool); 17] = [
    ("--runs", true),
    ("--out", true),
    ("--epochs", true),
    ("--report", true),
    ("--test", true),
    ("--test-split", true),
    ("--eval-every", true),
    ("--checkpoint-dir", true),
    ("--checkpoint-every", true),
    ("--keep", true),
    ("--fresh", false),
    ("--max-restarts", true),
    ("--tensorboard", true),
    ("--profile", true),
    ("--profile-steps", true),
    ("--direct", false),
    ("--fallback", true),
];
/// Flags of reading the object store directly.
const SOURCE: [(&str, bool); 10] = [
    ("--s3-endpoint", true),
    ("--s3-region", true),
    ("--s3-profile", true),
    ("--s3-path-style", true),
    ("--s3-anonymous", false),
    ("--s3-ca", true),
    ("--s3-max-requests", true),
    ("--s3-max-bytes-per-s", true),
    ("--patience-s", true),
    ("--direct-memory-bytes", true),
];
/// Flags of the cache.
const CACHE: [(&str, bool); 2] = [("--endpoint", true), ("--zone", true)];

/// Trains each way and writes the table, the page and the report.
pub fn run(args: &Options) -> Result<()> {
    ensure!(
        args.settings.batch != AUTO_BATCH,
        "bench compares runs of one batch: give --batch a number, such as the one that --batch auto chose"
    );
    // Before the cache is emptied.
    args.settings.check_training(args.settings.nproc.unwrap_or(1))?;
    args.settings.check_report()?;
    std::fs::create_dir_all(&args.out).with_context(|| format!("--out {}", args.out.display()))?;
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let cached = without(&without(&words, &OWN), &SOURCE);
    let direct = without(&without(&words, &OWN), &CACHE);
    let asked_ms = args.settings.emulate_step_ms;
    let train = |flags: &[OsString], more: &[&str], direct| train(flags, more, direct, asked_ms);
    let way = |name, what| Way { name, what, epochs: Vec::new() };
    let mut ways = [
        way("cold", "the cache holds nothing of the dataset"),
        way("warm", "the next epoch of the same run"),
        way("restarted", "new processes, the cache as it was left"),
        way("direct", "without a cache, from the object store itself"),
    ];
    let mut failed = None;
    for run in 0..args.runs {
        free(&args.settings).context("empty the cache")?;
        eprintln!("run {} of {}: cold and warm", run + 1, args.runs);
        let epochs = train(&cached, &["--epochs", "2"], false)?;
        ways[0].epochs.push(epochs[0]);
        ways[1].epochs.push(*epochs.get(1).context("the second epoch")?);
        eprintln!("run {} of {}: restarted", run + 1, args.runs);
        ways[2].epochs.push(train(&cached, &["--epochs", "1"], false)?[0]);
        if failed.is_none() {
            eprintln!("run {} of {}: direct", run + 1, args.runs);
            match train(&direct, &["--epochs", "1", "--direct"], true) {
                Ok(epochs) => ways[3].epochs.push(epochs[0]),
                // A user of a cache need not have access to the object store.
                Err(error) => failed = Some(format!("direct was not measured: {error:#}")),
            }
        }
    }
    println!("{}\n{}", table(&ways), UTILISATION_WORDS.join("\n"));
    if let Some(failed) = &failed {
        println!("{failed}");
    }
    println!("written: {}", write(args, &ways)?);
    Ok(())
}

/// Writes the report and the page, and the report to the file of `--report` too. Names the files.
fn write(args: &Options, ways: &[Way]) -> Result<String> {
    let report = format!("{:#}\n", report(args, ways));
    let mut files = vec![
        (args.out.join("bench.json"), report.clone()),
        (args.out.join("bench.html"), page::html(&args.settings, ways)),
    ];
    files.extend(args.settings.report.clone().map(|file| (file, report)));
    for (file, text) in &files {
        std::fs::write(file, text).with_context(|| format!("write {}", file.display()))?;
    }
    let names: Vec<_> = files.iter().map(|(file, _)| file.display().to_string()).collect();
    Ok(names.join(", "))
}

/// Has the cache forget the dataset.
fn free(settings: &Settings) -> Result<()> {
    let endpoints = settings.access.endpoint.endpoints()?;
    let mut uris: Vec<_> = settings.mix.iter().map(|part| part.uri.clone()).collect();
    if uris.is_empty() {
        uris.push(settings.train.clone());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // The channel connects by tasks of the runtime.
        for node in survey::topology(&endpoints).await?.nodes {
            let node = Node::new(&node.address)?;
            for uri in uris.clone() {
                node.client()
                    .free(FreeRequest { uri, ..Default::default() })
                    .await
                    .map_err(|status| node.error(status))?;
            }
        }
        Ok(())
    })
}

/// Trains in processes of their own; gives the epochs. `asked_ms` is the emulated step.
fn train(flags: &[OsString], more: &[&str], direct: bool, asked_ms: Option<f64>) -> Result<Vec<Epoch>> {
    let folder = tempfile::tempdir()?;
    let (report, errors) = (folder.path().join("report.json"), folder.path().join("stderr"));
    let own = std::env::current_exe().context("find this program's own file")?;
    let mut command = Command::new(own.with_file_name("forebay-train"));
    command.args(flags).args(more).arg("--report").arg(&report);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(std::fs::File::create(&errors)?);
    command.env_remove(ERROR_FILE);
    if direct {
        command.env_remove(ENDPOINT_VARIABLE);
    }
    if !command.status()?.success() {
        let said = std::fs::read_to_string(&errors).unwrap_or_default();
        let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it ended without a word");
        bail!("{}", last.strip_prefix(PREFIX).unwrap_or(last));
    }
    let report: Value = serde_json::from_slice(&std::fs::read(&report)?)?;
    let epochs = report["epochs"].as_array().context("the report has no epochs")?;
    let steps = report["steps_per_epoch"].as_f64().context("the report has no steps")?;
    let epochs = epochs.iter().map(|epoch| Epoch::of(epoch, steps, asked_ms));
    epochs.collect::<Option<Vec<_>>>().context("the report lacks figures")
}

/// The words of a command line without some flags and their values.
fn without(words: &[OsString], flags: &[(&str, bool)]) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        let name = text.split('=').next().unwrap_or_default();
        match flags.iter().find(|(flag, _)| *flag == name) {
            Some((_, true)) if !text.contains('=') => drop(words.next()),
            Some(_) => {}
            None => kept.push(word.clone()),
        }
    }
    kept
}

fn table(ways: &[Way]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED).set_header(HEADS);
    for way in ways {
        table.add_row(std::iter::once(way.name.to_owned()).chain(cells(way)));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// The rows, in the form that all benchmark reports of the project have.
fn report(args: &Options, ways: &[Way]) -> Value {
    let mut rows = Vec::new();
    for way in ways.iter().filter(|way| !way.epochs.is_empty()) {
        let mut row = |name: &str, unit: &'static str, values: Vec<f64>| {
            rows.push(Row::of(format!("{}_{name}", way.name), unit, &values));
        };
        let all = |figure: fn(&Epoch) -> f64| way.epochs.iter().map(figure).collect::<Vec<_>>();
        row("seconds", "s", all(|epoch| epoch.seconds));
        row("samples_per_s", "samples/s", all(|epoch| epoch.samples_per_s));
        row("data_wait", "share", all(|epoch| epoch.wait_share));
        row("s3_bytes", "bytes", all(|epoch| epoch.s3_bytes));
        for (name, definition) in DEFINITIONS {
            if let Some(values) = way.utilisations(definition) {
                row(name, "share", values);
            }
        }
    }
    let settings = json!({
        "train": args.settings.train, "batch": args.settings.batch, "ranks": args.settings.nproc.unwrap_or(1),
        "emulate_step_ms": args.settings.emulate_step_ms, "runs": args.runs,
    });
    json!({
        "name": "forebay-train bench", "version": env!("CARGO_PKG_VERSION"), "commit": origin::commit(),
        "machine": origin::machine(), "settings": settings, "rows": rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::train::utilisation::Utilisation;
    use forebay_client::args::DirectArgs;

    #[test]
    fn flags_are_left_out_with_their_values() {
        let words =
            ["--train", "s3://b/d", "--runs", "3", "--out=x", "--fresh", "--s3-region", "r", "--batch", "8"];
        let words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
        let own = without(&words, &OWN);
        assert_eq!(own, ["--train", "s3://b/d", "--s3-region", "r", "--batch", "8"]);
        assert_eq!(without(&own, &SOURCE), ["--train", "s3://b/d", "--batch", "8"]);
        let all = <DirectArgs as clap::Args>::augment_args(clap::Command::new("all"));
        for flag in all.get_arguments().filter_map(|arg| Some((format!("--{}", arg.get_long()?), arg))) {
            let takes = flag.1.get_action().takes_values();
            assert!(SOURCE.iter().any(|(name, value)| (*name, *value) == (&flag.0, takes)), "{}", flag.0);
        }
    }

    #[test]
    fn the_folder_of_the_report_is_made() {
        let folder = tempfile::tempdir().expect("a folder");
        let out = folder.path().join("new/below");
        let settings = clap::Parser::parse_from(["x", "--train", "s3://b/d", "--endpoint", "127.0.0.1:1"]);
        let error = run(&Options { settings, runs: 1, out: out.clone() }).expect_err("there is no cache");
        assert!(out.is_dir() && format!("{error:#}").contains("empty the cache"), "{error:#}");
    }

    #[test]
    fn a_table_and_a_page_of_what_was_measured() {
        let epoch = |speed: f64| Epoch {
            seconds: 60_000.0 / speed,
            samples_per_s: speed,
            wait_share: 0.25,
            utilisation: None,
            s3_requests: 8.0,
            s3_bytes: 10.6e6,
        };
        let busy = Utilisation { dlio: 0.75, nominal: Some(0.5), all_steps: 0.25 };
        let busy = |speed| Epoch { utilisation: Some(busy), ..epoch(speed) };
        let cold =
            Way { name: "cold", what: "nothing there", epochs: vec![epoch(1e4), epoch(3e4), epoch(2e4)] };
        let warm = Way { name: "warm", what: "all there", epochs: vec![busy(1e4), busy(3e4), busy(2e4)] };
        let direct = Way { name: "direct", what: "<no cache>", epochs: Vec::new() };
        let ways = [cold, warm, direct];
        assert_eq!(cells(&ways[0]), ["3.00", "20000", "25.0 %", "-", "-", "-", "8", "10.6 MB"]);
        assert_eq!(cells(&ways[1])[3..6], ["75.0 %", "50.0 %", "25.0 %"]);
        assert_eq!(cells(&ways[2]), ["-"; 8]);
        let settings = clap::Parser::parse_from(["x", "--train", "s3://b/<d>", "--direct"]);
        let html = page::html(&settings, &ways);
        for wanted in
            ["<svg", "&lt;no cache&gt;", "<th>AU (all steps)</th>", "<td>75.0 %</td>", "MLPerf Storage"]
        {
            assert!(html.contains(wanted), "no {wanted}: {html}");
        }
        assert!(!html.contains("<d>"), "{html}");
        let args = Options { settings, runs: 3, out: ".".into() };
        let rows = report(&args, &ways);
        assert_eq!(rows["rows"][1]["name"], "cold_samples_per_s");
        assert!(rows["commit"].is_string() && rows["machine"].as_str().unwrap().contains(" cores"));
        assert_eq!((&rows["rows"][1]["value"], &rows["rows"][1]["max"]), (&json!(2e4), &json!(3e4)));
        let found = |name: &str| {
            let row = rows["rows"].as_array()?.iter().find(|row| row["name"] == name)?;
            row["value"].as_f64()
        };
        let utilisations = ["warm_au", "warm_au_nominal", "warm_au_all_steps", "cold_au"].map(found);
        assert_eq!(utilisations, [Some(0.75), Some(0.5), Some(0.25), None]);
    }

    #[test]
    fn the_report_goes_where_the_command_line_says() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, nowhere) = (folder.path().join("mine.json"), folder.path().join("nowhere/mine.json"));
        let options = |file: &std::path::Path| {
            let line = ["x", "--train", "s3://b/d", "--endpoint", "127.0.0.1:1", "--report"];
            let line = line.map(OsString::from).into_iter().chain([file.into()]);
            Options { settings: clap::Parser::parse_from(line), runs: 1, out: folder.path().into() }
        };
        let written = write(&options(&file), &[]).expect("written");
        assert!(written.ends_with("mine.json"), "{written}");
        let read = |file: PathBuf| std::fs::read_to_string(file).expect("a report");
        assert_eq!(read(file), read(folder.path().join("bench.json")));
        // Before the cache is emptied, which cannot be reached here.
        let error = run(&options(&nowhere)).expect_err("there is no such folder");
        assert!(format!("{error:#}").contains("there is no folder"), "{error:#}");
    }
}
