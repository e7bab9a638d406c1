//! Answers: the messages that a ticket asks for, made from segments.
//!
//! The same code stands behind the server's `DoGet` and the client's direct mode, so both yield the same rows in the
//! same order. An answer walks the plan in step order, keeps a bounded number of segments ahead of itself being made,
//! gathers off the async threads, and waits when its reader does: what is in flight is [`Budget::messages`] messages of
//! about [`Budget::message_bytes`]. Dropping the [`Answer`] ends the work.

pub mod gather;
mod maker;
mod walk;
pub mod wire;

use arrow::datatypes::SchemaRef;
use forebay_proto::manifest::Manifest;
use forebay_proto::{Error, Result, v1};
use futures::FutureExt;
use futures::future::BoxFuture;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tokio::sync::mpsc;

use crate::ready::{MemoryGuard, ReadySegment};
use crate::stream::wire::Message;

/// What is read of a dataset: some of its columns.
#[derive(Debug, Clone)]
pub struct Reading {
    /// The dataset.
    pub manifest: Arc<Manifest>,
    /// All its columns.
    pub schema: SchemaRef,
    /// The columns that are read: ascending indices into `schema`.
    pub projection: Arc<[usize]>,
    /// Just those.
    pub projected: SchemaRef,
}

impl Reading {
    /// Of a dataset with all columns `schema`, those named; none named = all. `Invalid` names one that does not exist.
    pub fn new(manifest: Arc<Manifest>, schema: &SchemaRef, columns: &[String]) -> Result<Self> {
        let projection = crate::schema::projection(schema, columns).map_err(|e| e.context(manifest.uri()))?;
        let projected = schema.project(&projection);
        let projected = projected.map_err(|e| Error::invalid(format!("project columns: {e}")))?;
        let (schema, projected) = (schema.clone(), Arc::new(projected));
        Ok(Self { manifest, schema, projection: projection.into(), projected })
    }

    /// The names of the columns that are read.
    pub fn columns(&self) -> impl Iterator<Item = &String> {
        self.projected.fields().iter().map(|f| f.name())
    }
}

/// Where an answer gets its segments, and whom it tells how far it has come.
pub trait Segments: Send + Sync + 'static {
    /// A segment with the columns of `reading`.
    fn get<'a>(&'a self, reading: &'a Reading, segment: u32) -> BoxFuture<'a, Result<ReadySegment>>;

    /// A plan's answer needs no row of a position before this one any more; after its last message it says `u64::MAX`.
    fn reached(&self, _position: u64) {}

    /// Bytes of segments outside of files that an answer may hold at once, by now. It always holds one.
    fn held_bytes(&self) -> usize {
        usize::MAX
    }

    /// Waits until there is memory for a message of about so many bytes; the message holds the guard.
    fn room(&self, _bytes: usize) -> BoxFuture<'_, MemoryGuard> {
        std::future::ready(None).boxed()
    }
}

/// Bounds on what one answer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Body bytes that a message aims at. 1 to 4 MiB ride the plateau of HTTP/2 throughput.
    pub message_bytes: usize,
    /// Messages waiting for the reader.
    pub messages: usize,
    /// Segments made ready beyond the window that is being read; `None`: whoever gives the segments sees to that.
    pub segments_ahead: Option<usize>,
}

impl Default for Budget {
    fn default() -> Self {
        Self { message_bytes: 1536 << 10, messages: 2, segments_ahead: Some(4) }
    }
}

/// The messages that a ticket asks for.
#[derive(Debug)]
pub struct Answer {
    /// The projected schema, columns in the dataset's order.
    pub schema: SchemaRef,
    /// The messages; ends after the last, or after an error.
    pub messages: mpsc::Receiver<Result<Message>>,
}

/// Checks a plan ticket without answering it.
pub fn check(manifest: &Manifest, ticket: &v1::PlanTicket) -> Result<()> {
    walk::PlanWalk::new(manifest, ticket).map(drop)
}

/// Answers a plan ticket. `schema` is the dataset's, with all columns.
pub fn plan(
    segments: Arc<dyn Segments>,
    manifest: Arc<Manifest>,
    schema: &SchemaRef,
    ticket: &v1::PlanTicket,
    budget: Budget,
) -> Result<Answer> {
    let work = walk::PlanWalk::new(&manifest, ticket)?;
    start(segments, manifest, schema, &ticket.columns, budget, |maker| work.run(maker))
}

/// Answers a scan ticket: rows in file order, each message a stretch of one segment.
pub fn scan(
    segments: Arc<dyn Segments>,
    manifest: Arc<Manifest>,
    schema: &SchemaRef,
    ticket: &v1::ScanTicket,
    budget: Budget,
) -> Result<Answer> {
    let limit = if ticket.limit == 0 { u64::MAX } else { ticket.limit };
    start(segments, manifest, schema, &ticket.columns, budget, move |maker| walk::scan(maker, limit))
}

/// Answers a rows ticket: explicit rows in the order asked for, as step 0.
pub fn rows(
    segments: Arc<dyn Segments>,
    manifest: Arc<Manifest>,
    schema: &SchemaRef,
    ticket: &v1::RowsTicket,
    budget: Budget,
) -> Result<Answer> {
    let picks = walk::explicit_rows(&manifest, ticket)?;
    start(segments, manifest, schema, &ticket.columns, budget, move |maker| walk::rows(maker, picks))
}

fn start<F, W>(
    segments: Arc<dyn Segments>,
    manifest: Arc<Manifest>,
    schema: &SchemaRef,
    columns: &[String],
    budget: Budget,
    work: F,
) -> Result<Answer>
where
    F: FnOnce(maker::Maker) -> W,
    W: Future<Output = Result<()>> + Send + 'static,
{
    let reading = Reading::new(manifest, schema, columns)?;
    let schema = reading.projected.clone();
    let (sender, messages) = mpsc::channel(budget.messages.max(1));
    let maker = maker::Maker {
        segments,
        reading,
        budget,
        sender: sender.clone(),
        held: Default::default(),
        share: 1.0,
    };
    // An answer that broke off must not look like one that is over.
    let work = AssertUnwindSafe(work(maker)).catch_unwind().map(|done| {
        done.unwrap_or_else(|_| {
            Err(Error::corrupt("making the answer failed: the log of the process says why"))
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
    Ok(Answer { schema, messages })
}

#[cfg(test)]
mod tests;
