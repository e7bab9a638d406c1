//! `forebay-train`: trains a model on a dataset that the cache (or, with `--direct`, the store itself) streams to it,
//! on one or many ranks kept together by PyTorch's own DDP.
//!
//! Started plainly, the process is the launcher: it starts `--nproc` copies of itself, one per rank, and waits. A
//! process with torchrun's variables in its environment (the launcher's copies have them) is one rank. Whatever goes
//! wrong ends all ranks within seconds, with one line on stderr and an exit code other than 0.
//!
//! * [`settings`]: the flags, checked. [`place`]: which rank this is. [`device`]: where it computes. [`launch`]: the other ranks. [`failure`]: how a
//!   rank tells why it ended.
//! * [`rank`]: one rank's run, from opening the datasets to the report.
//! * [`feed`]: batches from the loader and the time spent waiting for them. [`input`]: a batch as tensors, uncopied.
//! * [`model`], [`optim`], [`train`], [`evaluate`]: what is computed.
//! * [`account`]: what an epoch cost, merged over the ranks. [`progress`], [`report`]: what people and programs see.
//!
//! The trainer writes nothing but the report: no checkpoints yet.

pub mod account;
pub mod device;
pub mod evaluate;
pub mod failure;
pub mod feed;
pub mod input;
pub mod launch;
pub mod model;
pub mod optim;
pub mod place;
pub mod progress;
pub mod rank;
pub mod report;
pub mod settings;
pub mod train;

use std::process::ExitCode;

use clap::Parser;

use crate::place::Place;
use crate::settings::Settings;

/// The program: parses the command line and runs as launcher or as rank.
pub fn main() -> ExitCode {
    let settings = Settings::parse();
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into()),
        )
        .with_writer(std::io::stderr)
        .init();
    match Place::from_env() {
        Ok(Some(place)) => failure::end_rank(&place, one_rank(&settings, &place)),
        Ok(None) => failure::end_launcher(launcher(&settings)),
        Err(error) => failure::end_launcher(Err(error)),
    }
}

fn launcher(settings: &Settings) -> anyhow::Result<()> {
    let world = settings.nproc.unwrap_or(1);
    settings.check(world)?;
    launch::run(world)
}

fn one_rank(settings: &Settings, place: &Place) -> anyhow::Result<()> {
    if settings.nproc.is_some() && place.launcher.is_none() {
        anyhow::bail!(
            "--nproc starts ranks, but RANK says that this is one already: leave --nproc to torchrun"
        );
    }
    settings.check(place.world)?;
    rank::run(settings, place)
}
