//! `make bench-train`: the trainer, measured. How busy an accelerator is kept, how soon a dead rank is
//! noticed, which samples a resume sees, and whether crashes in the middle of a checkpoint lose it.
//!
//! Other programs (c10d's overlap, the comparison with Python) leave their rows in `train-*.json` beside the
//! report. They are taken in, unless they are of another commit.
//!
//! Every promise is a line, PASS or FAIL: those that the measurements judge, and limits of rows
//! ([`PROMISES`]).

mod busy;
mod crash;
mod lost;
mod resume;
pub(super) mod trainer;
pub(super) mod utilisation;

use std::path::{Path, PathBuf};

use crate::harness::origin::UNKNOWN;
use anyhow::{Context, Result};
use clap::Parser;
use serde::Deserialize;
use serde_json::json;

use super::stages::Stages;
use crate::harness::check::{Check, Findings};
use crate::harness::report::{self, Row};

/// Measures the trainer.
#[derive(Debug, Clone, Parser)]
#[command(name = "forebay-bench-train", version)]
pub struct TrainOptions {
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
    /// Decides the moments of the crashes.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the report goes.
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
}

/// The limit of a row.
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
pub fn run(options: &TrainOptions) -> Result<bool> {
    let mut stages = Stages::default();
    stages.run("Busy", || busy::measure(options.runs));
    if options.only_busy {
        let found = stages.found();
        found.checks.extend(judged(&found.rows, |name| name == "au_warm"));
        return stages.end(&options.folder, "busy", json!({"runs": options.runs}));
    }
    stages.run("Lost", || lost::measure(options.kills));
    stages.run("Resume", resume::measure);
    stages.run("Crash", || crash::measure(options.crashes, options.seed));
    stages.run("Others", || others(&options.folder, &report::commit()));
    let found = stages.found();
    found.checks.extend(judged(&found.rows, |_| true));
    let settings = json!({
        "runs": options.runs, "kills": options.kills, "crashes": options.crashes, "seed": options.seed,
        "s3_first_byte_ms": 30, "s3_connection_mb_s": 90,
    });
    stages.end(&options.folder, "train", settings)
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
            return needed.then_some(Check::of(text, "", false));
        };
        let text = format!("{name}: {} {}, promised {words} {}", figure(row.value), row.unit, figure(limit));
        // Not a number keeps no promise.
        Some(Check::of(text, "", sign * row.value >= sign * limit))
    };
    PROMISES.iter().filter(|promise| of(promise.row)).filter_map(judge).collect()
}

/// A number for people.
fn figure(value: f64) -> String {
    if value == 0.0 || value.abs() >= 1e-3 { format!("{value:.2}") } else { format!("{value:.1e}") }
}

/// A report as another program wrote it.
#[derive(Deserialize)]
struct OthersReport {
    #[serde(default)]
    commit: String,
    rows: Vec<Row>,
}

/// Rows that other programs have left in `train-*.json`. Those that are not of `commit` are left out, which
/// is said.
fn others(folder: &Path, commit: &str) -> Result<Findings> {
    let mut found = Findings::default();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("train-") || !name.ends_with(".json") {
            continue;
        }
        let text = std::fs::read(entry.path())?;
        let report: OthersReport = serde_json::from_slice(&text).with_context(|| name.clone())?;
        let theirs = report.commit;
        if theirs == commit && theirs != UNKNOWN {
            found.rows.extend(report.rows);
        } else {
            found.leave_out(format!("{name}: it is of commit {theirs}, this is {commit}: measure again"));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_others_are_taken_in() {
        let folder = tempfile::tempdir().expect("make a folder");
        let others = |commit| others(folder.path(), commit);
        assert!(others("abc").expect("nothing").rows.is_empty());
        let row = json!({
            "name": "comm_overlap_share", "value": 0.7, "unit": "share", "n": 3, "min": 0.6, "max": 0.8,
        });
        let report = json!({"commit": "abc", "rows": [row]});
        std::fs::write(folder.path().join("train-ddp.json"), report.to_string()).expect("write");
        std::fs::write(folder.path().join("train.json"), "not mine").expect("write");
        let Findings { rows, checks } = others("abc").expect("rows");
        assert!(checks.is_empty(), "{checks:?}");
        assert_eq!((rows[0].name.as_str(), rows[0].value, rows[0].n), ("comm_overlap_share", 0.7, 3));
        let left_out = others("def").expect("no rows");
        assert_eq!((left_out.rows.len(), left_out.checks[0].passed), (0, None));
        assert_eq!(
            left_out.checks[0].claim,
            "train-ddp.json: it is of commit abc, this is def: measure again"
        );
        let nameless = r#"{"commit": "abc", "rows": [{"name": 3}]}"#;
        std::fs::write(folder.path().join("train-x.json"), nameless).expect("write");
        assert!(others("abc").is_err());
    }

    #[test]
    fn each_promise_is_judged() {
        let row = |name: &str, value: f64| Row::of(name, "", &[value]);
        let all = |rows: &[Row]| judged(rows, |_| true);
        let verdicts = |rows: &[Row]| all(rows).iter().map(|check| !check.is_broken()).collect::<Vec<_>>();
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
        assert_eq!((alone.len(), &alone[0].claim), (1, &all(&[row])[0].claim));
        assert_eq!(alone[0].claim, "au_warm: 98.90 % of the time, promised at least 99.00");
    }
}
