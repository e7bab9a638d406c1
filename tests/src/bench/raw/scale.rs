//! How large the benchmark is, and how its ratios are judged.

use super::kills::RawKillsSettings;
use super::overwrites::OverwritesSettings;
use crate::harness::check::Findings;
use crate::harness::report::Row;

/// How large it is.
#[derive(Debug, Clone, Copy)]
pub struct RawScale {
    pub rounds: u32,
    /// How long a load lasts.
    pub seconds: f64,
    /// Bytes of an object that is read warm, of one that is read cold, of one that three nodes read.
    pub warm_bytes: usize,
    pub cold_bytes: usize,
    pub spread_bytes: usize,
    pub keys: usize,
    /// Segments of the table that is trained on, of a MiB each.
    pub segments: u64,
    pub kills: RawKillsSettings,
    pub overwrites: OverwritesSettings,
}

pub const FULL: RawScale = RawScale {
    rounds: 5,
    seconds: 4.0,
    warm_bytes: 256 << 20,
    cold_bytes: 1 << 30,
    spread_bytes: 512 << 20,
    keys: 1_000_000,
    segments: 256,
    kills: RawKillsSettings { kills: 200, small: 32, large: 9, large_bytes: 1 << 30, seed: 1 },
    overwrites: OverwritesSettings { each: 500, seed: 1 },
};

pub const SHORT: RawScale = RawScale {
    rounds: 1,
    seconds: 0.5,
    warm_bytes: 16 << 20,
    cold_bytes: 32 << 20,
    spread_bytes: 16 << 20,
    keys: 10_000,
    segments: 16,
    kills: RawKillsSettings { kills: 5, small: 2, large: 2, large_bytes: 16 << 20, seed: 1 },
    overwrites: OverwritesSettings { each: 20, seed: 1 },
};

/// A ratio that must be at least, or at most, so much.
pub fn judge(found: &mut Findings, row: Row, least: Option<f64>, most: Option<f64>) {
    let (name, value) = (row.name.clone(), row.value);
    if let Some(least) = least {
        found.check(value >= least, format!("{name} = {value:.3}, at least {least}"));
    }
    if let Some(most) = most {
        found.check(value <= most, format!("{name} = {value:.3}, at most {most}"));
    }
    found.rows.push(row);
}
