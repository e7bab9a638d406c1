//! Batches for one rank, and the inputs made of them.
//!
//! The training loop is plain sequential code; the loader lives on a tokio runtime and prefetches there, and inputs that
//! take work are made by a thread of their own ([`crate::input::ahead`]). This is the one place where they meet, so the
//! time spent here is exactly the time that training stands still for data.

use std::sync::Arc;

use anyhow::{Context, Result};
use forebay_client::loader::LoaderState;
use forebay_client::{Batch, Dataset, Event, Loader, LoaderSettings};
use tokio::runtime::Handle;

use crate::input::ahead::{Ahead, Item};
use crate::input::{Input, Preparer};

/// A loader, called from outside its runtime.
#[derive(Debug)]
pub struct Feed {
    runtime: Handle,
    source: Source,
    preparer: Arc<Preparer>,
    state: LoaderState,
    /// The input of the batch that was handed out last, until it is asked for.
    current: Option<Input>,
}

#[derive(Debug)]
enum Source {
    /// Inputs are made when they are asked for: nothing to do for them, or nobody wants any.
    Loader(Box<Loader>),
    Ahead(Ahead),
}

impl Feed {
    /// Starts to prefetch. Inputs are made ahead only if `with_inputs`, and if that is work.
    pub fn start(
        runtime: &Handle,
        dataset: &Dataset,
        settings: LoaderSettings,
        preparer: &Arc<Preparer>,
        with_inputs: bool,
    ) -> Result<Self> {
        let loader = {
            let _inside = runtime.enter();
            Loader::start(dataset, settings)?
        };
        let state = loader.state();
        let source = match with_inputs && preparer.decodes() {
            true => Source::Ahead(Ahead::start(runtime, loader, preparer.clone())?),
            false => Source::Loader(Box::new(loader)),
        };
        Ok(Self { runtime: runtime.clone(), source, preparer: preparer.clone(), state, current: None })
    }

    /// The next batch, or an epoch's end. It is an error if there is none: the caller knows how many epochs it asked for.
    pub fn next_event(&mut self) -> Result<Event> {
        let none = "the loader ended before the last epoch did";
        let Item { event, input, state } = match &mut self.source {
            Source::Ahead(ahead) => ahead.next_item()?.context(none)?,
            Source::Loader(loader) => {
                let event = self.runtime.block_on(loader.next())?.context(none)?;
                Item { event, input: None, state: loader.state() }
            }
        };
        (self.current, self.state) = (input, state);
        Ok(event)
    }

    /// The input of the batch that was handed out last.
    pub fn input(&mut self, batch: &Batch) -> Result<Input> {
        self.current.take().map_or_else(|| self.preparer.input(batch), Ok)
    }

    /// Where the run stands after what was handed out so far.
    pub fn state(&self) -> LoaderState {
        self.state
    }
}
