//! Batches for one rank, and the inputs made of them.
//!
//! The training loop is plain sequential code; the loader lives on a tokio runtime and prefetches there, and
//! inputs that take work are made by a thread of their own ([`crate::input::ahead`]). This is the one place
//! where they meet, so the time spent here is exactly the time that training stands still for data. With each
//! input that is taken, the next one is sent to the device, if it is ready: it travels while the step
//! computes.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use forebay_c10d::Span;
use forebay_client::loader::LoaderState;
use forebay_client::{Access, Batch, Dataset, Event, Loader, LoaderSettings, delay};
use tokio::runtime::Handle;

use super::ahead::{Ahead, Item};
use super::prepare::Preparer;
use super::rows::Input;
use super::transfer::{Compute, Sent, Stall};
use crate::report::progress::tell_of_waiting;

/// A loader, called from outside its runtime.
#[derive(Debug)]
pub struct Feed {
    runtime: Handle,
    source: BatchSource,
    preparer: Arc<Preparer>,
    compute: Compute,
    state: LoaderState,
    /// The input of the batch that was handed out last, until it is asked for.
    current: Option<Sent>,
    /// The next item to hand out, if its input is on its way already.
    next: Option<Item<Sent>>,
    /// Where the device waited for the input that was handed out last.
    stall: Option<Stall>,
    teller: Teller,
}

/// Says why data does not come.
#[derive(Debug, Clone)]
pub enum Teller {
    /// One rank says it for all.
    Silent,
    /// Data comes from here.
    Of(Access),
}

impl Teller {
    fn wait<T>(&self, runtime: &Handle, work: impl Future<Output = T>) -> T {
        match self {
            Self::Silent => runtime.block_on(work),
            Self::Of(access) => runtime.block_on(delay::told(access, work, tell_of_waiting)),
        }
    }
}

#[derive(Debug)]
enum BatchSource {
    /// Inputs are made when they are asked for: nothing to do for them, or nobody wants any.
    Loader(Box<Loader>),
    Ahead(Ahead),
}

impl Feed {
    /// Starts to prefetch. Inputs, for `compute`, are made ahead only if `with_inputs`, and if that is work;
    /// they then have half of the bytes that are prefetched.
    pub fn start(
        runtime: &Handle,
        dataset: &Dataset,
        mut settings: LoaderSettings,
        preparer: &Arc<Preparer>,
        with_inputs: bool,
        (compute, teller): (Compute, Teller),
    ) -> Result<Self> {
        let ahead = with_inputs && (preparer.decodes() || compute.copies());
        let ready_bytes = if ahead { settings.prefetch_bytes / 2 } else { 0 };
        settings.prefetch_bytes -= ready_bytes;
        let loader = {
            let _inside = runtime.enter();
            Loader::start(dataset, settings)?
        };
        let state = loader.state();
        let source = match ahead {
            true => {
                let preparer = preparer.clone();
                let make = move |batch: &Batch| {
                    let input = {
                        let _span = Span::new("make input")?;
                        preparer.input(batch)?
                    };
                    let _span = Span::new("stage")?;
                    compute.stage(input)
                };
                BatchSource::Ahead(Ahead::start(runtime, loader, ready_bytes, make)?)
            }
            false => BatchSource::Loader(Box::new(loader)),
        };
        let (runtime, preparer) = (runtime.clone(), preparer.clone());
        let (current, next, stall) = (None, None, None);
        Ok(Self { runtime, source, preparer, compute, state, current, next, stall, teller })
    }

    /// The next batch, or an epoch's end. It is an error if there is none: the caller knows how many epochs
    /// it asked for.
    pub fn next_event(&mut self) -> Result<Event> {
        let next = self.next.take().map_or_else(|| self.wait(), Ok)?;
        let Item { event, input, state } = next;
        (self.current, self.state) = (input, state);
        Ok(event)
    }

    fn wait(&mut self) -> Result<Item<Sent>> {
        let none = "the loader ended before the last epoch did";
        let (runtime, teller) = (&self.runtime, &self.teller);
        match &mut self.source {
            BatchSource::Ahead(ahead) => {
                let item = ahead.next_item(|ready| teller.wait(runtime, ready.recv()))?.context(none)?;
                self.send(item)
            }
            BatchSource::Loader(loader) => {
                let event = teller.wait(runtime, loader.next())?.context(none)?;
                Ok(Item { event, input: None, state: loader.state() })
            }
        }
    }

    /// Takes what comes next, if it is there already: while a device computes there is time for that.
    pub fn look_ahead(&mut self) -> Result<()> {
        if self.next.is_some() {
            return Ok(());
        }
        self.next = match &mut self.source {
            BatchSource::Ahead(ahead) => {
                let ready = ahead.ready_item();
                ready.map(|item| self.send(item)).transpose()?
            }
            BatchSource::Loader(loader) => {
                loader.ready().map(|event| Item { event, input: None, state: loader.state() })
            }
        };
        Ok(())
    }

    fn send(&self, item: Item<Input>) -> Result<Item<Sent>> {
        let _span = Span::new("send ahead")?;
        let Item { event, input, state } = item;
        let input = input.map(|staged| self.compute.send(staged)).transpose()?;
        Ok(Item { event, input, state })
    }

    /// The input of the batch that was handed out last, on the device.
    pub fn input(&mut self, batch: &Batch) -> Result<Input> {
        let sent = match self.current.take() {
            Some(sent) => sent,
            None => self.compute.send(self.compute.stage(self.preparer.input(batch)?)?)?,
        };
        let (input, stall) = self.compute.receive(sent)?;
        self.stall = stall;
        if let BatchSource::Ahead(_) = &self.source {
            self.look_ahead()?;
        }
        Ok(input)
    }

    /// For how long the device stood still because the input that was handed out last was still on its way.
    /// To be asked when what was computed on it is through.
    pub fn stalled(&mut self) -> Result<Duration> {
        self.stall.take().map_or(Ok(Duration::ZERO), |stall| stall.time())
    }

    /// Where the run stands after what was handed out so far.
    pub fn state(&self) -> LoaderState {
        self.state
    }
}
