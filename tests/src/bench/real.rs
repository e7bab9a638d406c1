//! `make bench-real`: tables as real writers leave them, through every way that reads; what schemas that grow
//! cost those that do not; what a filter reads; how fast a gpt takes documents, packed and padded.
//!
//! Nothing here is changed once figures were seen: a new measurement is a new row.

mod corpus;
mod files;
mod filtered;
mod freezing;
mod growth;
mod packed;

use super::stages::{Stages, wanted};
use clap::{Parser, ValueEnum};
use serde_json::json;
use std::path::PathBuf;

/// Measures tables of real writers.
#[derive(Debug, Clone, Parser)]
#[command(name = "forebay-bench-real", version)]
pub struct RealOptions {
    /// Only these parts, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<RealPart>,
    /// How often each figure is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The share of the rows that there are: for a look at whether it works. Targets are judged at 1 only.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// The program `forebay` of before schemas could grow (tests/before.sh), to compare freezing with.
    #[arg(long)]
    before: Option<PathBuf>,
    /// The repository: its scripts, `.venv` and `.real`.
    #[arg(long, default_value = ".")]
    repository: PathBuf,
    /// Where the report goes.
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
}

/// The measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RealPart {
    /// Values beside pyarrow's and deltalake's.
    Corpus,
    /// Opening a dataset of one schema.
    Freezing,
    /// Bytes that a filter reads.
    Filter,
    /// Warm epochs of a table with growth.
    Growth,
    /// A gpt on documents, packed and padded.
    Packed,
}

/// Runs it; false if a promise was broken.
pub fn run(options: &RealOptions) -> anyhow::Result<bool> {
    let RealOptions { rounds, scale, .. } = *options;
    anyhow::ensure!(scale > 0.0 && scale <= 1.0, "--scale {scale}: between 0 and 1");
    let repository = std::path::absolute(&options.repository)?;
    let mut stages = Stages::default();
    for part in wanted(&options.only) {
        stages.run(part, || match part {
            RealPart::Corpus => corpus::run(&repository),
            RealPart::Freezing => freezing::run(options.before.as_deref(), rounds, scale),
            RealPart::Filter => filtered::run(scale),
            RealPart::Growth => growth::run(rounds, scale),
            RealPart::Packed => packed::run(rounds, scale),
        });
    }
    let described = json!({
        "rounds": rounds,
        "scale": scale,
        "before": options.before.as_ref().map(|_| freezing::BEFORE),
        "targets": {
            "real_unequal": 0,
            "real_datasets": corpus::DATASETS,
            "real_freeze_ratio": freezing::RATIO,
            "real_filter_bytes": filtered::SHARE,
            "real_growth_ratio": growth::RATIO,
        },
    });
    stages.end(&options.folder, "real", described)
}
