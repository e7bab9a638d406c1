//! The demo: real MNIST travels from S3 through one cache node into a training run of two ranks.
//!
//! It starts an S3 server behind a proxy that makes it remote, one `forebay-server` with an empty cache, then
//! `forebay-train`; at the end it reads the same epochs by one rank, prints one table and the checks, and
//! leaves `report.json` and `report.html`. Everything it starts, it stops.

mod checks;
mod figures;
mod job;
mod page;
mod report;
mod table;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;

use crate::harness::check::Check;

/// MNIST from S3 through the cache into a training run of two ranks.
#[derive(Clone, Debug, Parser)]
#[command(name = "forebay-demo", version)]
pub struct DemoOptions {
    /// One cold and one warm epoch, and a lower bar for the accuracy: for CI.
    #[arg(long)]
    short: bool,
    /// Epochs to train for [default: 3, with --short 2].
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=1000))]
    epochs: Option<u32>,
    /// Ranks on this machine.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    nproc: u32,
    /// Samples per step, over all ranks together.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    batch: u64,
    /// What the order of samples and the first parameters depend on.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Segments that are shuffled together.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    window: u32,
    /// Where cache, logs and reports go; the cache in it is emptied first.
    #[arg(long, default_value = "target/demo")]
    folder: PathBuf,
}

impl DemoOptions {
    fn epochs(&self) -> u32 {
        self.epochs.unwrap_or(if self.short { 2 } else { 3 })
    }

    /// The share of the test split that must be recognised. Two epochs reach about 98.5 %, but not at every
    /// seed.
    fn accuracy_bar(&self) -> f64 {
        if self.short { 0.96 } else { 0.98 }
    }

    /// How long training may take before it counts as hung.
    fn patience(&self) -> Duration {
        Duration::from_secs(300 + 240 * u64::from(self.epochs()))
    }
}

/// Runs the demo and tells whether all checks passed; an error says why it could not be run to its end.
pub fn run(options: &DemoOptions) -> anyhow::Result<bool> {
    let outcome = job::run(options)?;
    let checks = checks::all(options, &outcome);
    println!("\n{}", table::epochs(&outcome));
    println!("{}", table::checks(&checks));
    let json = options.folder.join("report.json");
    let html = options.folder.join("report.html");
    let report = report::json(options, &outcome, &checks);
    let write = |path: &PathBuf, text: String| {
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
    };
    write(&json, format!("{report:#}\n"))?;
    write(&html, page::html(options, &outcome, &checks))?;
    println!("reports: {} and {}", json.display(), html.display());
    Ok(!checks.iter().any(Check::is_broken))
}
