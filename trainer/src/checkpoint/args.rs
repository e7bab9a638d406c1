//! The flags of checkpoints.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;

/// Where checkpoints are kept, how often, how many.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Checkpoints")]
pub struct CheckpointArgs {
    /// Keep checkpoints in this directory, and go on from the newest one there
    #[arg(long, value_name = "DIR")]
    pub checkpoint_dir: Option<PathBuf>,
    /// Write one every K steps, besides those at each epoch's end and on SIGTERM
    #[arg(long, value_name = "K", requires = "checkpoint_dir")]
    pub checkpoint_every: Option<u64>,
    /// Number of checkpoints kept, the newest ones
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub keep: usize,
    /// Start over; checkpoints that are there are moved into a directory beside them
    #[arg(long, requires = "checkpoint_dir")]
    pub fresh: bool,
}

impl CheckpointArgs {
    /// Refuses what cannot work.
    pub fn check(&self) -> Result<()> {
        ensure!(self.checkpoint_every != Some(0), "--checkpoint-every must be at least 1 step");
        ensure!(self.keep > 0, "--keep must be at least 1: the newest checkpoint is always kept");
        Ok(())
    }
}
