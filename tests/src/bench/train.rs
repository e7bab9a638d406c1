//! `make bench-train`: the trainer measured. How busy an accelerator is kept, how soon a dead rank is noticed, what a
//! resume sees, and whether crashes while a checkpoint is written cost it.
//!
//! Rows that other programs measure (c10d's overlap, the comparison with Python) are taken in from `train-*.json` beside
//! the report, where those programs leave them in the same form; those of another commit are left out.
//!
//! Every promise is a line, PASS or FAIL: those that the measurements judge themselves, and limits of rows ([`PROMISES`]).

mod busy;
mod crash;
mod lost;
mod resume;
mod trainer;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use forebay_client::origin::UNKNOWN;
use serde_json::{Value, json};

use crate::harness::report::{self, Row};

/// Measures the trainer.
#[derive(Debug, Clone, Parser)]
#[command(name = "forebay-bench-train", version)]
pub struct Options {
    /// How often the accelerator's utilisation is measured.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// How often a rank is killed, with our launcher and without.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    kills: u32,
    /// Measure the accelerator's utilisation alone.
    #[arg(long)]
    only_busy: bool,
    /// How often the trainer is killed while it writes checkpoints.
    #[arg(long, default_value_t = 100)]
    crashes: u32,
    /// What the moments of the crashes depend on.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the report goes.
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
}

/// What a row must be.
struct Promise {
    row: &'static str,
    /// The limit, in the row's unit.
    limit: Limit,
    /// Rows of some programs are there only where somebody ran them.
    needed: bool,
}

#[derive(Clone, Copy)]
enum Limit {
    AtLeast(f64),
    AtMost(f64),
}

const PROMISES: [Promise; 6] = [
    Promise { row: "au_warm", limit: Limit::AtLeast(99.0), needed: true },
    Promise { row: "comm_overlap_share", limit: Limit::AtLeast(0.5), needed: true },
    Promise { row: "accumulation_worst_difference", limit: Limit::AtMost(1e-6), needed: true },
    Promise { row: "parity_bits_convnet", limit: Limit::AtLeast(1.0), needed: false },
    Promise { row: "parity_bits_resnet18", limit: Limit::AtLeast(1.0), needed: false },
    Promise { row: "parity_step_time_ratio", limit: Limit::AtMost(1.0), needed: false },
];

/// Runs it; false if a promise was broken.
pub fn run(options: &Options) -> Result<bool> {
    let mut rows = busy::measure(options.runs)?;
    if options.only_busy {
        report::write(&options.folder, "busy", json!({"runs": options.runs}), &rows)?;
        return Ok(told(&judged(&rows, |name| name == "au_warm")));
    }
    let lost = lost::measure(options.kills)?;
    rows.extend(lost.rows);
    let resume = resume::measure()?;
    rows.extend(resume.rows);
    let crash = crash::measure(options.crashes, options.seed)?;
    rows.extend(crash.rows);
    let (taken, left_out) = others(&options.folder, &report::commit())?;
    rows.extend(taken);
    let settings = json!({
        "runs": options.runs, "kills": options.kills, "crashes": options.crashes, "seed": options.seed,
        "s3_first_byte_ms": 30, "s3_connection_mb_s": 90,
    });
    report::write(&options.folder, "train", settings, &rows)?;
    for line in left_out {
        println!("SKIP {line}");
    }
    let checks: Vec<Check> =
        [lost.check, resume.check, crash.check].into_iter().chain(judged(&rows, |_| true)).collect();
    Ok(told(&checks))
}

/// Prints the checks; true if all promises were kept.
fn told(checks: &[Check]) -> bool {
    for check in checks {
        println!("{} {}", if check.kept { "PASS" } else { "FAIL" }, check.text);
    }
    checks.iter().all(|check| check.kept)
}

/// Figures with the promise that they show kept or broken.
struct Outcome {
    rows: Vec<Row>,
    check: Check,
}

struct Check {
    kept: bool,
    text: String,
}

/// The promises about those of the rows that are there, or should be.
fn judged(rows: &[Row], of: impl Fn(&str) -> bool) -> Vec<Check> {
    let judge = |promise: &Promise| {
        let Promise { row: name, limit, needed } = promise;
        let (words, limit, sign) = match limit {
            Limit::AtLeast(limit) => ("at least", *limit, 1.0),
            Limit::AtMost(limit) => ("at most", *limit, -1.0),
        };
        let Some(row) = rows.iter().find(|row| row.name == *name) else {
            let text = format!("{name}: not measured for this commit");
            return needed.then_some(Check { kept: false, text });
        };
        let text = format!("{name}: {} {}, promised {words} {}", figure(row.value), row.unit, figure(limit));
        // Not a number keeps no promise.
        Some(Check { kept: sign * row.value >= sign * limit, text })
    };
    PROMISES.iter().filter(|promise| of(promise.row)).filter_map(judge).collect()
}

/// A number for people.
fn figure(value: f64) -> String {
    if value == 0.0 || value.abs() >= 1e-3 { format!("{value:.2}") } else { format!("{value:.1e}") }
}

/// Rows that other programs have left in `train-*.json`; and what was left out because it is not of `commit`.
fn others(folder: &Path, commit: &str) -> Result<(Vec<Row>, Vec<String>)> {
    let (mut rows, mut left_out) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("train-") || !name.ends_with(".json") {
            continue;
        }
        let text = std::fs::read(entry.path())?;
        let report: Value = serde_json::from_slice(&text).with_context(|| name.clone())?;
        let theirs = report["commit"].as_str().unwrap_or(UNKNOWN);
        if theirs != commit || theirs == UNKNOWN {
            left_out.push(format!("{name}: it is of commit {theirs}, this is {commit}: measure again"));
            continue;
        }
        for row in report["rows"].as_array().into_iter().flatten() {
            rows.push(taken(row).with_context(|| format!("{name}: a row lacks a field: {row}"))?);
        }
    }
    Ok((rows, left_out))
}

/// A row as another program wrote it.
fn taken(row: &Value) -> Option<Row> {
    let number = |name: &str| row[name].as_f64();
    // Units are few and live as long as the program.
    let unit: &'static str = Box::leak(row["unit"].as_str()?.to_owned().into_boxed_str());
    let mut taken = Row::of(row["name"].as_str()?, unit, &[number("value")?]);
    taken.n = row["n"].as_u64().unwrap_or(1) as usize;
    (taken.min, taken.max) = (number("min").unwrap_or(taken.value), number("max").unwrap_or(taken.value));
    Some(taken)
}

/// A limit that no run of these comes near.
const LIMIT: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_others_are_taken_in() {
        let folder = tempfile::tempdir().expect("make a folder");
        let others = |commit| others(folder.path(), commit);
        assert!(others("abc").expect("nothing").0.is_empty());
        let report = json!({"commit": "abc", "rows": [{"name": "comm_overlap_share", "value": 0.7, "unit": "share", "n": 3, "min": 0.6, "max": 0.8}]});
        std::fs::write(folder.path().join("train-ddp.json"), report.to_string()).expect("write");
        std::fs::write(folder.path().join("train.json"), "not mine").expect("write");
        let (rows, left_out) = others("abc").expect("rows");
        assert!(left_out.is_empty(), "{left_out:?}");
        assert_eq!((rows[0].name.as_str(), rows[0].value, rows[0].n), ("comm_overlap_share", 0.7, 3));
        let (rows, left_out) = others("def").expect("rows");
        assert_eq!(
            (rows.len(), left_out),
            (0, vec!["train-ddp.json: it is of commit abc, this is def: measure again".to_owned()])
        );
        let nameless = r#"{"commit": "abc", "rows": [{"name": 3}]}"#;
        std::fs::write(folder.path().join("train-x.json"), nameless).expect("write");
        assert!(others("abc").is_err());
    }

    #[test]
    fn each_promise_is_judged() {
        let row = |name: &str, value: f64| Row::of(name, "", &[value]);
        let all = |rows: &[Row]| judged(rows, |_| true);
        let verdicts = |rows: &[Row]| all(rows).iter().map(|check| check.kept).collect::<Vec<_>>();
        // What must be measured and is not breaks its promise; what need not be makes none.
        assert_eq!(verdicts(&[]), [false; 3]);
        let good = [
            row("au_warm", 99.0),
            row("comm_overlap_share", 0.5),
            row("accumulation_worst_difference", 1e-6),
            row("parity_bits_convnet", 1.0),
            row("parity_bits_resnet18", 1.0),
            row("parity_step_time_ratio", 1.0),
        ];
        assert_eq!(verdicts(&good), [true; 6]);
        let bad = [98.9, 0.49, 1.1e-6, 0.0, 0.5, 1.01].into_iter().zip(&good);
        let bad: Vec<_> = bad.map(|(value, good)| row(&good.name, value)).collect();
        assert_eq!(verdicts(&bad), [false; 6]);
        assert_eq!(verdicts(&[row("au_warm", f64::NAN)]), [false; 3]);
        let row = Row::of("au_warm", "% of the time", &[98.9]);
        let alone = judged(std::slice::from_ref(&row), |name| name == "au_warm");
        assert_eq!((alone.len(), &alone[0].text), (1, &all(&[row])[0].text));
        assert_eq!(alone[0].text, "au_warm: 98.90 % of the time, promised at least 99.00");
    }
}
