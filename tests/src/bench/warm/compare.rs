//! Figures that are kept in the repository, for a comparison with those of later code. Ratios only: they
//! depend least on the machine.

use super::rounds::RATIO;
use crate::harness::check::Findings;
use crate::harness::report::{Row, commit, machine};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// What a ratio may have lost.
const LOSS: f64 = 0.1;

#[derive(Debug, Serialize, Deserialize)]
struct Figures {
    commit: String,
    machine: String,
    /// By the row's name.
    ratios: BTreeMap<String, f64>,
}

/// Stores the ratios among some rows.
pub fn store(path: &Path, rows: &[Row]) -> anyhow::Result<()> {
    let figures = Figures { commit: commit(), machine: machine(), ratios: ratios(rows) };
    anyhow::ensure!(!figures.ratios.is_empty(), "there are no ratios to store");
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, format!("{}\n", serde_json::to_string_pretty(&figures)?))?;
    println!("stored: {}", path.display());
    Ok(())
}

/// Compares the ratios among some rows with those that are stored. A row that is not stored is new.
pub fn check(path: &Path, rows: &[Row]) -> anyhow::Result<Findings> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("{}: store figures with --store first", path.display()))?;
    let before: Figures = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    println!("  compared with {} on {}", before.commit, before.machine);
    let mut found = Findings::default();
    for (name, now) in ratios(rows) {
        if let Some(was) = before.ratios.get(&name) {
            let text = format!("{name} = {now:.3}, was {was:.3}, at most {:.0} % less allowed", 100.0 * LOSS);
            found.check(now >= was * (1.0 - LOSS), text);
        }
    }
    anyhow::ensure!(!found.checks.is_empty(), "{}: none of these rows is stored", path.display());
    Ok(found)
}

fn ratios(rows: &[Row]) -> BTreeMap<String, f64> {
    rows.iter().filter(|row| row.unit.starts_with(RATIO)).map(|row| (row.name.clone(), row.value)).collect()
}

#[test]
fn a_loss_of_more_than_a_tenth_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("figures/warm.json");
    let rows = |a, b| {
        [
            Row::of("a", "of floor.tcp", &[a]),
            Row::of("b", "of floor.memcpy", &[b]),
            Row::of("c", "MB/s", &[9.0]),
        ]
    };
    assert!(check(&path, &rows(1.0, 1.0)).is_err(), "nothing is stored");
    store(&path, &rows(1.0, 2.0)).expect("stored");
    assert_eq!(check(&path, &rows(0.91, 3.0)).expect("compared").broken(), "");
    let broken = check(&path, &rows(1.0, 1.79)).expect("compared").broken();
    assert!(broken.starts_with("b = 1.790, was 2.000"), "{broken}");
    assert_eq!(broken.lines().count(), 1);
}
