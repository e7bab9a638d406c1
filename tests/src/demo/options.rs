//! The command line of the demo.

use clap::Parser;
use std::path::PathBuf;
use std::time::Duration;

/// MNIST from S3 through the cache into a training run of two ranks.
#[derive(Clone, Debug, Parser)]
#[command(name = "forebay-demo", version)]
pub struct DemoOptions {
    /// One cold and one warm epoch, and a lower bar for the accuracy: for CI.
    #[arg(long)]
    pub(super) short: bool,
    /// Epochs to train for [default: 3, with --short 2].
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub(super) epochs: Option<u32>,
    /// Ranks on this machine.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(super) nproc: u32,
    /// Samples per step, over all ranks together.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub(super) batch: u64,
    /// What the order of samples and the first parameters depend on.
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Segments that are shuffled together.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) window: u32,
    /// Where cache, logs and reports go; the cache in it is emptied first.
    #[arg(long, default_value = "target/demo")]
    pub(super) folder: PathBuf,
}

impl DemoOptions {
    pub(super) fn epochs(&self) -> u32 {
        self.epochs.unwrap_or(if self.short { 2 } else { 3 })
    }

    /// The share of the test split that must be recognised. Two epochs reach about 98.5 %, but not at every
    /// seed.
    pub(super) fn accuracy_bar(&self) -> f64 {
        if self.short { 0.96 } else { 0.98 }
    }

    /// The flags of `forebay-train` that all its runs have.
    pub(super) fn run_flags(&self) -> [String; 4] {
        [
            format!("--nproc={}", self.nproc),
            format!("--batch={}", self.batch),
            format!("--seed={}", self.seed),
            format!("--window={}", self.window),
        ]
    }

    /// How long training may take before it counts as hung.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_secs(300 + 240 * u64::from(self.epochs()))
    }
}
