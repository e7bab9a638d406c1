//! Batch streams: the messages that a ticket asks for, made from segments.
//!
//! The same code stands behind the server's `DoGet` and the client's direct mode, so both yield the same rows
//! in the same order.
//!
//! * `walk` checks a plan ticket, once, and holds the plan's order.
//! * `cursor` goes through the rows that a ticket asks for, `read_ahead` gets the plan's next segments.
//! * `builder` holds a message's segments, gathers its rows and hands the message to the reader.
//! * [`wire`] is a message's form, [`gather`] the copying of rows.
//! * `source` is what a stream needs from its surroundings: segments, and hooks for progress and memory.
//!
//! A stream keeps a bounded number of segments ahead of itself, gathers off the async threads, and waits when
//! its reader does: in flight are [`StreamBudget::messages`] messages of about
//! [`StreamBudget::message_bytes`]. Dropping the [`BatchStream`] ends the work.

mod builder;
mod cursor;
pub mod gather;
mod read_ahead;
mod reading;
mod source;
mod walk;
pub mod wire;

use arrow::datatypes::SchemaRef;
use builder::MessageBuilder;
use forebay_proto::{Error, Result, v1};
use futures::FutureExt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tokio::sync::mpsc;

pub use reading::Reading;
pub use source::{NoHooks, SegmentSource, StreamBudget, StreamHooks};
pub use walk::{Orders, PlanWalk};
pub use wire::Message;

/// What a stream reads, from where, and within which bounds.
#[derive(Clone)]
pub struct StreamSetup {
    /// The dataset and the columns that are read.
    pub reading: Reading,
    /// Yields the segments.
    pub segments: Arc<dyn SegmentSource>,
    /// Hears of progress and grants memory.
    pub hooks: Arc<dyn StreamHooks>,
    /// Bounds what the stream holds.
    pub budget: StreamBudget,
}

/// The messages that a ticket asks for.
#[derive(Debug)]
pub struct BatchStream {
    /// The projected schema, columns in the dataset's order.
    pub schema: SchemaRef,
    /// The messages; ends after the last, or after an error.
    pub messages: mpsc::Receiver<Result<Message>>,
}

impl StreamSetup {
    /// A stream that nobody watches, within the default budget.
    pub fn new(reading: Reading, segments: Arc<dyn SegmentSource>) -> Self {
        Self { reading, segments, hooks: Arc::new(NoHooks), budget: StreamBudget::default() }
    }
}

impl BatchStream {
    /// The rows of a plan that a rank reads, step by step.
    #[tracing::instrument(name = "plan", level = "trace", skip_all)]
    pub fn plan(setup: StreamSetup, walk: PlanWalk) -> Self {
        Self::start(setup, |builder| cursor::follow_plan(walk, builder))
    }

    /// Rows in file order, each message a stretch of one segment.
    pub fn scan(setup: StreamSetup, ticket: &v1::ScanTicket) -> Self {
        let limit = if ticket.limit == 0 { u64::MAX } else { ticket.limit };
        Self::start(setup, move |builder| cursor::scan(builder, limit))
    }

    /// Explicit rows in the order asked for, as step 0. `Invalid` names the first that does not exist.
    pub fn rows(setup: StreamSetup, ticket: &v1::RowsTicket) -> Result<Self> {
        let samples = walk::explicit_rows(&setup.reading.manifest, ticket)?;
        Ok(Self::start(setup, move |builder| cursor::rows(builder, samples)))
    }

    fn start<F, W>(setup: StreamSetup, work: F) -> Self
    where
        F: FnOnce(MessageBuilder) -> W,
        W: Future<Output = Result<()>> + Send + 'static,
    {
        let schema = setup.reading.projected.clone();
        let (sender, messages) = mpsc::channel(setup.budget.messages.max(1));
        let StreamSetup { reading, segments, hooks, budget } = setup;
        let builder = MessageBuilder::new(reading, segments, hooks, budget, sender.clone());
        // A stream that broke off must not look like one that is over.
        let work = AssertUnwindSafe(work(builder)).catch_unwind().map(|done| {
            done.unwrap_or_else(|_| {
                Err(Error::corrupt("making the stream failed: the log of the process says why"))
            })
        });
        tokio::spawn(async move {
            tokio::select! {
                done = work => if let Err(e) = done {
                    // The reader may have gone: then nobody is left to tell.
                    sender.send(Err(e)).await.ok();
                },
                () = sender.closed() => {}
            }
        });
        Self { schema, messages }
    }
}

#[cfg(test)]
mod tests;
