//! Batch streams: the messages that a ticket asks for, made from segments.
//!
//! The same code stands behind the server's `DoGet` and the client's direct mode, so both yield the same rows
//! in the same order.
//!
//! * `walk` checks a plan ticket, once, and holds the plan's order.
//! * `cursor` goes through the rows that a ticket asks for, `read_ahead` gets the plan's next segments.
//! * `whole_steps` says where a message can leave out which rows it has, `step_range` makes it.
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
mod setup;
mod source;
mod step_range;
mod walk;
mod whole_steps;
pub mod wire;

use crate::packed::Form;
use arrow::datatypes::SchemaRef;
use builder::MessageBuilder;
use forebay_proto::{Error, Result, v1};
use futures::FutureExt;
use std::panic::AssertUnwindSafe;
use tokio::sync::mpsc;

pub use reading::Reading;
pub use setup::StreamSetup;
pub use source::{SegmentSource, StreamBudget, StreamHooks, Unwatched};
pub use walk::{Orders, PlanWalk};
pub use wire::Message;

/// The messages that a ticket asks for.
#[derive(Debug)]
pub struct BatchStream {
    /// The schema of the messages: the projected one, columns in the dataset's order, or the form in which
    /// its narrow columns are packed.
    pub schema: SchemaRef,
    /// The messages; ends after the last, or after an error.
    pub messages: mpsc::Receiver<Result<Message>>,
}

impl BatchStream {
    /// The rows of a plan that a rank reads, step by step.
    #[tracing::instrument(name = "plan", level = "trace", skip_all)]
    pub fn plan(setup: StreamSetup, walk: PlanWalk) -> Self {
        let form = walk.form;
        Self::start(setup, form, |builder| cursor::follow_plan(walk, builder))
    }

    /// Rows in file order, each message a stretch of one segment.
    pub fn scan(setup: StreamSetup, ticket: &v1::ScanTicket) -> Self {
        let limit = if ticket.limit == 0 { u64::MAX } else { ticket.limit };
        Self::start(setup, Form::Columns, move |builder| cursor::scan(builder, limit))
    }

    /// Explicit rows in the order asked for, as step 0. `Invalid` names the first that does not exist.
    pub fn rows(mut setup: StreamSetup, ticket: &v1::RowsTicket) -> Result<Self> {
        setup.reading.is_sparse = true;
        let samples = walk::explicit_rows(&setup.reading.manifest, ticket)?;
        Ok(Self::start(setup, Form::Columns, move |builder| cursor::rows(builder, samples)))
    }

    fn start<F, W>(setup: StreamSetup, form: Form, work: F) -> Self
    where
        F: FnOnce(MessageBuilder) -> W,
        W: Future<Output = Result<()>> + Send + 'static,
    {
        let schema = match form {
            Form::Columns => setup.reading.projected.clone(),
            Form::Packed => setup.reading.packed.physical.clone(),
        };
        let (sender, messages) = mpsc::channel(setup.budget.messages.max(1));
        let builder = MessageBuilder::new(setup, form, sender.clone());
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
