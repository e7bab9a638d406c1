//! Answers: the messages that a ticket asks for, made from segments.
//!
//! The same code stands behind the server's `DoGet` and the client's direct mode, so both yield the same rows in the
//! same order. An answer walks the plan in step order, keeps a bounded number of segments ahead of itself being made,
//! gathers off the async threads, and waits when its reader does: what is in flight is [`Budget::messages`] messages of
//! about [`Budget::message_bytes`]. Dropping the [`Answer`] ends the work.

mod walk;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use forebay_proto::manifest::Manifest;
use forebay_proto::{Error, Result, v1};
use futures::FutureExt;
use futures::future::BoxFuture;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tokio::sync::mpsc;

use crate::wire::Message;

/// Where an answer gets its segments.
pub trait Segments: Send + Sync + 'static {
    /// All rows of a segment in file order, with the columns of `projection` (ascending indices into the dataset's
    /// schema).
    fn get<'a>(
        &'a self,
        manifest: &'a Arc<Manifest>,
        segment: u32,
        projection: &'a [usize],
    ) -> BoxFuture<'a, Result<Arc<RecordBatch>>>;

    /// Whether what was got is still what was checked: segments may lie in files, which others can damage while they are
    /// read. Asked after each use, off the async threads; what is not sound any more is got anew.
    fn is_sound(&self, _segment: &RecordBatch) -> bool {
        true
    }
}

/// Bounds on what one answer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Body bytes that a message aims at. 1 to 4 MiB ride the plateau of HTTP/2 throughput.
    pub message_bytes: usize,
    /// Messages waiting for the reader.
    pub messages: usize,
    /// Segments made ready beyond the window that is being read.
    pub segments_ahead: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { message_bytes: 1536 << 10, messages: 2, segments_ahead: 4 }
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
    F: FnOnce(walk::Maker) -> W,
    W: Future<Output = Result<()>> + Send + 'static,
{
    let projection = crate::schema::projection(schema, columns).map_err(|e| e.context(manifest.uri()))?;
    let projected =
        Arc::new(schema.project(&projection).map_err(|e| Error::invalid(format!("project columns: {e}")))?);
    let (sender, messages) = mpsc::channel(budget.messages.max(1));
    let maker = walk::Maker {
        segments,
        manifest,
        projection: projection.into(),
        schema: projected.clone(),
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
    Ok(Answer { schema: projected, messages })
}

#[cfg(test)]
mod tests;
