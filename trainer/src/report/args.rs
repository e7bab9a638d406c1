//! The flags for watching a run while it goes on.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use clap::Args;

/// TensorBoard, and a trace of some steps.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Observation")]
pub struct ObserveArgs {
    /// Write TensorBoard event files into this directory
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,
    /// Write a trace of some steps to this file, for Perfetto or chrome://tracing; rank 1 writes
    /// NAME.rank1.json and so on
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Steps in the trace, after the first one, which is like no other
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub profile_steps: u64,
}

impl ObserveArgs {
    /// Refuses what cannot work.
    pub fn check(&self) -> Result<()> {
        if let Some(folder) = &self.tensorboard {
            ensure!(!folder.is_file(), "--tensorboard {} is a file, not a directory", folder.display());
            if folder == Path::new("") {
                bail!("--tensorboard needs the name of a directory");
            }
        }
        ensure!(self.profile_steps > 0, "--profile-steps must be at least 1");
        self.profile.as_ref().map_or(Ok(()), |file| check_file("--profile", file))
    }
}

/// Refuses a file that cannot be written, better now than after the last step.
pub fn check_file(flag: &str, file: &Path) -> Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        bail!("{flag} {}: there is no folder {}", file.display(), folder.display());
    }
    ensure!(!file.is_dir(), "{flag} {} is a folder", file.display());
    Ok(())
}
