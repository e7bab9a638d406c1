//! `make bench-train`: the trainer measured. How busy an accelerator is kept, how soon a dead rank is noticed, what a
//! resume sees, and whether crashes while a checkpoint is written cost it.
//!
//! Rows that other programs measure (c10d's overlap, the comparison with Python) are taken in from `train-*.json` beside
//! the report, where those programs leave them in the same form.

mod busy;
mod crash;
mod lost;
mod resume;
mod trainer;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use serde_json::{Value, json};

use crate::report::{self, Row};

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

/// Runs it; false if a promise was broken.
pub fn run(options: &Options) -> Result<bool> {
    let mut rows = busy::measure(options.runs)?;
    let lost = lost::measure(options.kills)?;
    rows.extend(lost.rows);
    let resume = resume::measure()?;
    rows.extend(resume.rows);
    let crash = crash::measure(options.crashes, options.seed)?;
    rows.extend(crash.rows);
    rows.extend(others(&options.folder)?);
    let settings = json!({
        "runs": options.runs, "kills": options.kills, "crashes": options.crashes, "seed": options.seed,
        "s3_first_byte_ms": 30, "s3_connection_mb_s": 90,
    });
    report::write(&options.folder, "train", settings, &rows)?;
    let checks = [lost.check, resume.check, crash.check];
    for check in &checks {
        println!("{} {}", if check.kept { "PASS" } else { "FAIL" }, check.text);
    }
    Ok(checks.iter().all(|check| check.kept))
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

/// Rows that other programs have left in `train-*.json`.
fn others(folder: &Path) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("train-") || !name.ends_with(".json") {
            continue;
        }
        let text = std::fs::read(entry.path())?;
        let report: Value = serde_json::from_slice(&text).with_context(|| name.clone())?;
        for row in report["rows"].as_array().into_iter().flatten() {
            rows.push(taken(row).with_context(|| format!("{name}: a row lacks a field: {row}"))?);
        }
    }
    Ok(rows)
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
        assert!(others(folder.path()).expect("nothing").is_empty());
        let report = json!({"rows": [{"name": "comm_overlap_share", "value": 0.7, "unit": "share", "n": 3, "min": 0.6, "max": 0.8}]});
        std::fs::write(folder.path().join("train-ddp.json"), report.to_string()).expect("write");
        std::fs::write(folder.path().join("train.json"), "not mine").expect("write");
        let rows = others(folder.path()).expect("rows");
        assert_eq!((rows[0].name.as_str(), rows[0].value, rows[0].n), ("comm_overlap_share", 0.7, 3));
        std::fs::write(folder.path().join("train-x.json"), r#"{"rows": [{"name": 3}]}"#).expect("write");
        assert!(others(folder.path()).is_err());
    }
}
