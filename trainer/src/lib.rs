//! `forebay-train`: trains a model on a dataset that the cache (or, with `--direct`, the store itself)
//! streams to it, on one or many ranks kept together by PyTorch's own DDP.
//!
//! Started plainly, the process is the launcher: it starts `--nproc` copies of itself, one per rank, and
//! waits. A process with torchrun's variables in its environment (the launcher's copies have them) is one
//! rank. Whatever goes wrong ends all ranks within seconds, with one line on stderr and an exit code other
//! than 0.
//!
//! * [`settings`]: the flags, checked.
//! * [`rank`]: one process: which rank it is, how it meets the others, how it ends.
//! * [`input`]: batches as tensors. [`model`]: the networks. [`train`]: the loop, the step, the optimizer.
//! * [`checkpoint`]: what a run needs to go on, on disk. [`report`]: what people and programs see.

mod checkpoint;
mod input;
mod model;
mod rank;
mod report;
mod settings;
mod train;

use std::process::ExitCode;

use clap::Parser;

use crate::rank::env::RankEnv;
use crate::rank::{failure, launch};

pub use crate::rank::failure::{ERROR_FILE, PREFIX};
pub use crate::report::summary::bytes;
pub use crate::settings::{AUTO_BATCH, Settings};

/// The program: parses the command line and runs as launcher or as rank.
pub fn main() -> ExitCode {
    let settings = Settings::parse();
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into()),
        )
        .with_writer(std::io::stderr)
        .init();
    match RankEnv::from_env() {
        Ok(Some(env)) => {
            failure::tell_panics();
            failure::end_rank(&env, failure::caught(|| one_rank(&settings, &env)))
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

fn one_rank(settings: &Settings, env: &RankEnv) -> anyhow::Result<()> {
    if settings.nproc.is_some() && env.launcher.is_none() {
        anyhow::bail!(
            "--nproc starts ranks, but RANK says that this is one already: leave --nproc to torchrun"
        );
    }
    settings.check(env.world)?;
    if env.is_first() {
        settings.check_report()?;
    }
    train::run::run(settings, env)
}
