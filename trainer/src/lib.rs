//! `forebay-train`: trains a model on a dataset that the cache (or, with `--direct`, the object store itself)
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
#[cfg(test)]
#[path = "../tests/ports/mod.rs"]
mod ports;
mod rank;
mod report;
mod settings;
mod train;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::Parser;
use forebay_proto::LogVariable;

use crate::rank::env::RankEnv;
use crate::rank::{failure, launch};

pub use crate::rank::failure::{ERROR_FILE, PREFIX};
pub use crate::settings::{AUTO_BATCH, Settings};

/// The exit code of a wrong command line, as clap has it.
const MISUSED: u8 = 2;

/// What to log.
const LOG: LogVariable =
    LogVariable { name: "RUST_LOG", default: "warn", examples: "debug or forebay_client=debug" };

/// The program: parses the command line and runs as launcher or as rank.
pub fn main() -> ExitCode {
    let settings = Settings::parse();
    match LOG.filter(forebay_client::variable(LOG.name)) {
        Ok(filter) => {
            let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
            logs.with_ansi(std::io::stderr().is_terminal()).init();
        }
        Err(error) => return failure::end_launcher(Err(error.into())),
    }
    match RankEnv::from_env() {
        Ok(Some(env)) => {
            failure::tell_panics();
            failure::end_rank(&env, failure::caught(|| one_rank(&settings, &env)))
        }
        Ok(None) => launcher(&settings),
        Err(error) => failure::end_launcher(Err(error)),
    }
}

fn launcher(settings: &Settings) -> ExitCode {
    let world = settings.nproc.unwrap_or(1);
    match settings.check(world).and_then(|()| settings.check_report()) {
        Ok(()) => failure::end_launcher(launch::run(world, settings.max_restarts)),
        Err(error) => {
            failure::end_launcher(Err(error));
            ExitCode::from(MISUSED)
        }
    }
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

#[cfg(test)]
mod tests {
    use super::LOG;

    #[test]
    fn a_log_that_cannot_be_understood_is_told() {
        let told = |value: &str| LOG.filter(Some(value.to_owned())).map(|filter| filter.to_string());
        let e = told("forebay_client=debgu").unwrap_err().to_string();
        assert!(e.starts_with("RUST_LOG=forebay_client=debgu: "), "{e}");
        assert_eq!(told("forebay_client=debug").unwrap(), "forebay_client=debug");
        assert_eq!(LOG.filter(None).unwrap().to_string(), "warn");
    }
}
