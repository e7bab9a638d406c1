//! `make bench-store`: the disk cache and the plan, measured. How many reads are hits when the cache is
//! smaller than the data, how often a byte leaves S3 and is written, the cost of a restart; and whether
//! kills, damaged files, full disks and a failing S3 ever lead to a wrong value.
//!
//! Each part can be run by itself (`--only`), and the tests run the faster ones at a smaller size.

pub mod amplification;
mod cold;
pub mod faults;
pub mod flips;
pub mod folder;
pub mod hang;
mod hits;
pub mod kills;
mod memory;
mod narrow;
pub(super) mod node;
pub mod outages;
mod replay;
pub mod restart;
mod ticker;
mod trainer;

use super::compare::FiguresOptions;
use super::stages::{Stages, runtime, wanted};
use crate::harness::check::Findings;
use crate::harness::report::Row;
use clap::{Parser, ValueEnum};
use serde_json::json;
use std::path::PathBuf;
use tokio::runtime::Runtime;

/// Measures the disk cache.
#[derive(Debug, Clone, Parser)]
#[command(name = "forebay-bench-store", version)]
pub struct DiskOptions {
    /// Only these parts, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// A tenth of everything: a look at whether it works.
    #[arg(long, conflicts_with = "store")]
    short: bool,
    /// What the orders of hits, the moments of kills and the places of flips depend on.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    figures: FiguresOptions,
    /// Where the report goes.
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
}

/// The parts of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Hits,
    Amplification,
    Restart,
    Kills,
    Flips,
    Faults,
    Outages,
    /// A disk that hangs under its readers.
    Hang,
    Memory,
    /// Memory, with segments of the default size.
    MemoryLarge,
    Ticker,
    Cold,
    /// Cold, behind slow connections.
    Narrow,
}

/// Runs it; false if a promise was broken.
pub fn run(options: &DiskOptions) -> anyhow::Result<bool> {
    let is_cold = |part: &Part| matches!(part, Part::Cold | Part::Narrow);
    let name = if !options.only.is_empty() && options.only.iter().all(is_cold) { "cold" } else { "store" };
    let FiguresOptions { check, store, .. } = options.figures;
    anyhow::ensure!(name == "cold" || !(check || store), "--check and --store: only cold epochs have ratios");
    let is_all = [Part::Cold, Part::Narrow].iter().all(|part| options.only.contains(part));
    anyhow::ensure!(is_all || !store, "--store: with --only cold,narrow");
    let runtime = runtime()?;
    let mut stages = Stages::default();
    for part in wanted(&options.only) {
        stages.run(part, || one(part, &runtime, options));
    }
    let settings = json!({"seed": options.seed, "short": options.short});
    options.figures.end(stages, &options.folder, name, settings, is_ratio)
}

/// Whether a row is the speed of cold epochs over that of reading directly, or over what connections carry.
fn is_ratio(row: &Row) -> bool {
    let is_speed = ["_vs_direct", "_vs_stock"].iter().any(|end| row.name.ends_with(end));
    let is_other = ["_cpu_", "_ttfb_"].iter().any(|what| row.name.contains(what));
    is_speed && !is_other || row.name == "cold_narrow_s3_taken"
}

fn cold_settings(options: &DiskOptions) -> cold::ColdSettings {
    let (objects, runs) = if options.short { (2, 1) } else { (20, 5) };
    cold::ColdSettings { objects, runs }
}

fn memory_settings(options: &DiskOptions, part: Part) -> memory::MemorySettings {
    let small = memory::MemorySettings {
        budget_mib: 64,
        segments: 20 * 64,
        segment_mib: 1,
        epochs: 2,
        runs: 3,
        kind: "",
    };
    let kind = "_large_segments";
    let large =
        memory::MemorySettings { budget_mib: 512, segments: 128, segment_mib: 32, epochs: 1, runs: 1, kind };
    match (part, options.short) {
        (Part::MemoryLarge, false) => large,
        (Part::MemoryLarge, true) => memory::MemorySettings { segments: 48, ..large },
        (_, false) => small,
        (_, true) => memory::MemorySettings { budget_mib: 16, segments: 20 * 16, runs: 1, ..small },
    }
}

fn one(part: Part, runtime: &Runtime, options: &DiskOptions) -> anyhow::Result<Findings> {
    let share = |full: u64, short: u64| if options.short { short } else { full };
    match part {
        Part::Hits => {
            let (segments, epochs) = (share(1000, 600), share(7, 4));
            hits::run(runtime, &hits::HitsSettings { segments, epochs, seed: options.seed })
        }
        Part::Amplification => amplification::run(
            runtime,
            &amplification::AmplificationSettings { segments: share(128, 32), runs: share(5, 1) },
        ),
        Part::Restart => restart::run(
            runtime,
            &restart::RestartSettings { segments: share(64, 16), tiny_segments: share(50_000, 2_000) },
        ),
        Part::Kills => {
            let (kills, segments) = (share(200, 10), share(64, 32));
            kills::run(runtime, &kills::KillsSettings { kills, segments, seed: options.seed })
        }
        Part::Flips => {
            let (flips, segments) = (share(1000, 60), share(64, 32));
            flips::run(runtime, &flips::FlipsSettings { flips, segments, seed: options.seed })
        }
        Part::Faults => faults::run(
            runtime,
            &faults::FaultsSettings {
                segments: share(64, 32),
                outage_s: share(30, 8),
                trainer: true,
                seed: options.seed,
            },
        ),
        Part::Outages => outages::run(
            runtime,
            &outages::OutagesSettings {
                segments: share(64, 16),
                outage_s: share(30, 8),
                request_timeout_s: share(30, 5),
                trainer: true,
                hasty: true,
                seed: options.seed,
            },
        ),
        Part::Hang => hang::run(
            runtime,
            &hang::HangSettings { segments: share(64, 16), rounds: share(5, 1), seed: options.seed },
        ),
        Part::Ticker => ticker::run(&ticker::TickerSettings { segments: share(512, 64), runs: share(5, 2) }),
        Part::Cold => cold::run(runtime, &cold_settings(options)),
        // Less than all objects would be read before all requests are in use.
        Part::Narrow => narrow::run(&cold::ColdSettings { objects: 20, ..cold_settings(options) }),
        Part::Memory | Part::MemoryLarge => memory::run(runtime, &memory_settings(options, part)),
    }
}

#[test]
fn speeds_of_cold_epochs_are_compared() {
    let is_kept = |name: &str| is_ratio(&Row::of(name, "", &[1.0]));
    for name in ["cold_vs_direct", "cold_32_untaken_vs_stock", "cold_1_vs_direct", "cold_narrow_s3_taken"] {
        assert!(is_kept(name), "{name}");
    }
    for name in ["cold_1_node_cpu_vs_direct", "cold_2_ttfb_vs_direct", "cold_narrow_direct_s3_taken"] {
        assert!(!is_kept(name), "{name}: less is better, or it is not ours");
    }
    let run = |arguments: &str| run(&DiskOptions::parse_from(arguments.split(' ')));
    assert!(run("bench --check").is_err() && run("bench --only cold --store").is_err());
}
