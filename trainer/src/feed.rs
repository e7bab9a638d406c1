//! Batches for one rank, and the time it spends waiting for them.
//!
//! The training loop is plain sequential code; the loader lives on a tokio runtime and prefetches there. This is the
//! one place where the two meet, so what is measured here is exactly the time that training stands still for data.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use forebay_client::{Dataset, Event, Loader, LoaderSettings};
use tokio::runtime::Handle;

/// A loader, called from outside its runtime.
#[derive(Debug)]
pub struct Feed {
    runtime: Handle,
    loader: Loader,
    waited: Duration,
}

impl Feed {
    /// Starts to prefetch.
    pub fn start(runtime: &Handle, dataset: &Dataset, settings: LoaderSettings) -> Result<Self> {
        let _inside = runtime.enter();
        Ok(Self {
            runtime: runtime.clone(),
            loader: Loader::start(dataset, settings)?,
            waited: Duration::ZERO,
        })
    }

    /// The next batch, or an epoch's end. It is an error if there is none: the caller knows how many epochs it asked for.
    pub fn next_event(&mut self) -> Result<Event> {
        let began = Instant::now();
        let event = self.runtime.block_on(self.loader.next());
        self.waited += began.elapsed();
        event?.context("the loader ended before the last epoch did")
    }

    /// The time spent in [`Feed::next_event`] since this was last asked.
    pub fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }
}
