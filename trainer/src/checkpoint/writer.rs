//! Writes checkpoints while training goes on: one at a time, the next one waiting for it.

use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::disk;
use super::folder::Folder;
use super::state::Checkpoint;
use crate::rank::failure::Writing;

/// Writes checkpoints on a thread of its own, one at a time; rank 0 has it.
#[derive(Debug)]
pub struct Writer {
    folder: Folder,
    keep: usize,
    pub(super) under_way: Option<JoinHandle<Result<PathBuf>>>,
    waited: Duration,
}

impl Writer {
    /// Keeps the `keep` newest checkpoints of the folder.
    pub fn new(folder: Folder, keep: usize) -> Self {
        Self { folder, keep, under_way: None, waited: Duration::ZERO }
    }

    /// Begins to write; waits for the one before it, whose error is this call's. The checkpoint's tensors
    /// must be copies that the training does not change.
    pub fn begin(&mut self, checkpoint: Checkpoint) -> Result<()> {
        self.finish()?;
        let (path, keep) = (self.folder.path().to_owned(), self.keep);
        let steps = self.folder.steps()?;
        let writing = Writing::begin();
        let write = move || {
            let _writing = writing;
            let place = disk::write(&path, &checkpoint)?;
            let mut steps = steps;
            if !steps.contains(&checkpoint.meta.step) {
                steps.push(checkpoint.meta.step);
            }
            // A newer one was passed over as damaged: it must not push out checkpoints that are whole.
            steps.retain(|step| *step <= checkpoint.meta.step);
            steps.sort_unstable_by(|a, b| b.cmp(a));
            Folder::prune(&path, keep, &steps);
            Ok(place)
        };
        self.under_way = Some(std::thread::Builder::new().name("checkpoint".to_owned()).spawn(write)?);
        Ok(())
    }

    /// Waits until what was begun is on disk; gives its directory.
    pub fn finish(&mut self) -> Result<Option<PathBuf>> {
        let Some(writing) = self.under_way.take() else { return Ok(None) };
        let began = Instant::now();
        let written = writing.join();
        self.waited += began.elapsed();
        match written {
            Ok(written) => written.map(Some),
            Err(_) => bail!("writing a checkpoint failed: its thread panicked"),
        }
    }

    /// How long training stood still for checkpoints that were not yet on disk.
    pub fn waited(&self) -> Duration {
        self.waited
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Of a run that failed: what was begun is good, and its error would only hide the first one.
        if let Some(writing) = self.under_way.take() {
            let _ = writing.join();
        }
    }
}
