//! `forebay-train`: trains a model on a dataset that the cache (or, with `--direct`, the store itself) streams to it,
//! on one or many ranks kept together by PyTorch's own DDP.
//!
//! Started plainly, the process is the launcher: it starts `--nproc` copies of itself, one per rank, and waits. A
//! process with torchrun's variables in its environment (the launcher's copies have them) is one rank. Whatever goes
//! wrong ends all ranks within seconds, with one line on stderr and an exit code other than 0.
//!
//! * [`settings`]: the flags, checked. [`place`]: which rank this is. [`meet`]: where ranks come together.
//!   [`device`]: where a rank computes. [`launch`]: the other ranks. [`failure`]: how a rank tells why it ended.
//! * [`bench`]: the same training several ways, timed.
//! * [`rank`]: one rank's run, from opening the datasets to the report; `run`: the training loop within it.
//! * [`feed`]: batches from the loader, and what is made of them. [`input`]: a batch as tensors.
//!   [`fit`]: how many rows at a time.
//! * [`model`], [`optim`], [`precision`], [`train`], [`evaluate`]: what is computed. [`learning`]: with
//!   which settings. [`gradients`]: how gradients travel.
//! * [`checkpoint`]: what a run needs to go on, on disk. [`keep`]: when it is written. [`standing`]: where a run is,
//!   over all its restarts. [`suspect`]: which samples were in a step gone wrong. [`stop`]: how all ranks end after the same step.
//! * [`account`]: what an epoch cost, merged over the ranks. [`timing`]: where a step's time goes. [`progress`],
//!   [`report`], [`events`], [`observe`]: what people and programs see.

pub mod account;
pub mod bench;
pub mod checkpoint;
pub mod device;
pub mod evaluate;
pub mod events;
pub mod failure;
pub mod feed;
pub mod fit;
pub mod gradients;
pub mod input;
pub mod keep;
pub mod launch;
pub mod learning;
pub mod meet;
pub mod model;
pub mod observe;
pub mod optim;
pub mod place;
pub mod precision;
pub mod progress;
pub mod rank;
pub mod report;
mod run;
pub mod settings;
pub mod standing;
pub mod stop;
pub mod suspect;
pub mod timing;
pub mod train;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::bench::BenchArgs;
use crate::place::Place;
use crate::settings::Settings;

/// Train a model on a Parquet dataset that the cache streams, on one or several ranks
#[derive(Debug, Parser)]
#[command(
    name = "forebay-train",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
struct CommandLine {
    #[command(flatten)]
    settings: Settings,
    #[command(subcommand)]
    command: Option<Task>,
}

#[derive(Debug, Subcommand)]
enum Task {
    Bench(Box<BenchArgs>),
}

/// The program: parses the command line and runs as launcher or as rank.
pub fn main() -> ExitCode {
    let CommandLine { settings, command } = CommandLine::parse();
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into()),
        )
        .with_writer(std::io::stderr)
        .init();
    if let Some(Task::Bench(args)) = command {
        return failure::end_launcher(bench::run(&args));
    }
    match Place::from_env() {
        Ok(Some(place)) => {
            failure::tell_panics();
            failure::end_rank(&place, failure::caught(|| one_rank(&settings, &place)))
        }
        Ok(None) => failure::end_launcher(launcher(&settings)),
        Err(error) => failure::end_launcher(Err(error)),
    }
}

fn launcher(settings: &Settings) -> anyhow::Result<()> {
    let world = settings.nproc.unwrap_or(1);
    settings.check(world)?;
    settings.check_report()?;
    launch::run(world, settings.max_restarts)
}

fn one_rank(settings: &Settings, place: &Place) -> anyhow::Result<()> {
    if settings.nproc.is_some() && place.launcher.is_none() {
        anyhow::bail!(
            "--nproc starts ranks, but RANK says that this is one already: leave --nproc to torchrun"
        );
    }
    settings.check(place.world)?;
    if place.is_first() {
        settings.check_report()?;
    }
    rank::run(settings, place)
}
