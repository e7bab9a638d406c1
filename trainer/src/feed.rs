//! Batches for one rank.
//!
//! The training loop is plain sequential code; the loader lives on a tokio runtime and prefetches there. This is the
//! one place where the two meet, so the time spent here is exactly the time that training stands still for data.

use anyhow::{Context, Result};
use forebay_client::loader::LoaderState;
use forebay_client::{Dataset, Event, Loader, LoaderSettings};
use tokio::runtime::Handle;

/// A loader, called from outside its runtime.
#[derive(Debug)]
pub struct Feed {
    runtime: Handle,
    loader: Loader,
}

impl Feed {
    /// Starts to prefetch.
    pub fn start(runtime: &Handle, dataset: &Dataset, settings: LoaderSettings) -> Result<Self> {
        let _inside = runtime.enter();
        Ok(Self { runtime: runtime.clone(), loader: Loader::start(dataset, settings)? })
    }

    /// The next batch, or an epoch's end. It is an error if there is none: the caller knows how many epochs it asked for.
    pub fn next_event(&mut self) -> Result<Event> {
        self.runtime.block_on(self.loader.next())?.context("the loader ended before the last epoch did")
    }

    /// Where the run stands after what was handed out so far.
    pub fn state(&self) -> LoaderState {
        self.loader.state()
    }
}
