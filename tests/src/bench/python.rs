//! `make bench-python`: warm epochs into dicts of torch tensors, beside the same epochs by the Rust loader in
//! the same minutes: the data, the node and the processes of `make bench-warm`. And kills of a process that
//! reads.
//!
//! Nothing here is changed once figures were seen: a new measurement is a new row.

mod kills;
mod process;
mod rounds;
mod settings;
mod stage;

use super::stages::{Stages, wanted};
use super::warm::{SEED, Shape};
use clap::Parser;
use serde_json::json;
use settings::PythonSettings;
use std::path::PathBuf;

/// Measures `forebay.torch.Loader` beside the Rust loader.
#[derive(Debug, Clone, Parser)]
#[command(name = "forebay-bench-python", version)]
pub struct PythonOptions {
    /// Only these shapes of rows, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Shape>,
    /// How often each figure is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The share of the data and the kills that there are: for a look at whether it works. Speeds and memory
    /// are judged at 1 only.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Epochs over which memory is watched.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(3..))]
    epochs: u32,
    /// SIGKILLs of a process that reads X.
    #[arg(long, default_value_t = 50)]
    kills: u32,
    /// The repository: its package, its `.venv` with Python and its `.torch`.
    #[arg(long, default_value = ".")]
    repository: PathBuf,
    /// Where the report goes.
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
}

/// Runs it; false if a promise was broken.
pub fn run(options: &PythonOptions) -> anyhow::Result<bool> {
    let PythonOptions { rounds, scale, epochs, kills, .. } = *options;
    anyhow::ensure!(scale > 0.0 && scale <= 1.0, "--scale {scale}: between 0 and 1");
    let settings = PythonSettings {
        shapes: wanted(&options.only).collect(),
        rounds,
        scale,
        epochs,
        kills: (f64::from(kills) * scale).ceil() as u32,
        repository: std::path::absolute(&options.repository)?,
    };
    let mut stages = Stages::default();
    stages.run("Python", || rounds::run(&settings));
    if settings.kills > 0 && settings.shapes.contains(&Shape::X) {
        stages.run("Kills", || kills::run(&settings));
    }
    let described = json!({
        "rounds": rounds,
        "scale": scale,
        "memory_epochs": epochs,
        "kills": settings.kills,
        "kills_batch_rows": kills::BATCH_ROWS,
        "seed": SEED,
        "window": stage::WINDOW,
        "targets": {
            "vs_rust": rounds::VS_RUST,
            "handover_us": rounds::HANDOVER_US,
            "rss_growth_mb": rounds::RSS_GROWTH_MB,
        },
    });
    stages.end(&options.folder, "python", described)
}
