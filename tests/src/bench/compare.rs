//! Figures that are kept in the repository, for a comparison with those of later code. Ratios only: they
//! depend least on the machine.

use super::stages::Stages;
use crate::harness::check::Findings;
use crate::harness::report::{Row, commit, machine};
use anyhow::Context;
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What a ratio may have lost.
const LOSS: f64 = 0.1;

/// What becomes of the ratios of a run.
#[derive(Debug, Clone, Args)]
pub struct FiguresOptions {
    /// Compares ratios with the stored ones, and fails if one has lost more than 10 %.
    #[arg(long)]
    pub check: bool,
    /// Stores the ratios for `--check`.
    #[arg(long, conflicts_with = "check")]
    pub store: bool,
    /// Where the ratios are stored [default: tests/figures/NAME.json, with the name of the report].
    #[arg(long)]
    figures: Option<PathBuf>,
}

impl FiguresOptions {
    /// The end of a benchmark: compares, writes the report, and stores, as was asked for. `is_ratio` says
    /// which rows are ratios of which more is better. False if a promise was broken.
    pub fn end(
        &self,
        mut stages: Stages,
        folder: &Path,
        name: &str,
        settings: Value,
        is_ratio: fn(&Row) -> bool,
    ) -> anyhow::Result<bool> {
        let by_name = || PathBuf::from(format!("tests/figures/{name}.json"));
        let path = self.figures.clone().unwrap_or_else(by_name);
        let ratios = ratios(&stages.found().rows, is_ratio);
        if self.check {
            stages.run("Compare", || check(&path, &ratios));
        }
        let kept = stages.end(folder, name, settings)?;
        if self.store {
            store(&path, ratios)?;
        }
        Ok(kept)
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Figures {
    commit: String,
    machine: String,
    /// By the row's name.
    ratios: BTreeMap<String, f64>,
}

fn store(path: &Path, ratios: BTreeMap<String, f64>) -> anyhow::Result<()> {
    let figures = Figures { commit: commit(), machine: machine(), ratios };
    anyhow::ensure!(!figures.ratios.is_empty(), "there are no ratios to store");
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, format!("{}\n", serde_json::to_string_pretty(&figures)?))?;
    println!("stored: {}", path.display());
    Ok(())
}

/// Compares ratios with those that are stored. One that is not stored is new.
fn check(path: &Path, ratios: &BTreeMap<String, f64>) -> anyhow::Result<Findings> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("{}: store figures with --store first", path.display()))?;
    let before: Figures = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    println!("  compared with {} on {}", before.commit, before.machine);
    let mut found = Findings::default();
    for (name, now) in ratios {
        if let Some(was) = before.ratios.get(name) {
            let text = format!("{name} = {now:.3}, was {was:.3}, at most {:.0} % less allowed", 100.0 * LOSS);
            found.check(*now >= was * (1.0 - LOSS), text);
        }
    }
    anyhow::ensure!(!found.checks.is_empty(), "{}: none of these rows is stored", path.display());
    Ok(found)
}

fn ratios(rows: &[Row], is_ratio: fn(&Row) -> bool) -> BTreeMap<String, f64> {
    let kept = rows.iter().filter(|row| is_ratio(row) && row.value.is_finite());
    kept.map(|row| (row.name.clone(), row.value)).collect()
}

#[test]
fn a_loss_of_more_than_a_tenth_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("figures/warm.json");
    let rows = |a, b| {
        let rows = [Row::of("a", "ratio", &[a]), Row::of("b", "ratio", &[b]), Row::of("c", "MB/s", &[9.0])];
        ratios(&rows, |row| row.unit == "ratio")
    };
    assert!(check(&path, &rows(1.0, 1.0)).is_err(), "nothing is stored");
    store(&path, rows(1.0, 2.0)).expect("stored");
    assert_eq!(check(&path, &rows(0.91, 3.0)).expect("compared").broken(), "");
    let broken = check(&path, &rows(1.0, 1.79)).expect("compared").broken();
    assert!(broken.starts_with("b = 1.790, was 2.000"), "{broken}");
    assert_eq!(broken.lines().count(), 1);
}
