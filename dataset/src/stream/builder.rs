//! Builds messages of rows: the segments that the rows lie in are held, the rows gathered, the message sent.

use super::gather::{Pick, gather};
use super::reading::Reading;
use super::setup::StreamSetup;
use super::source::{SegmentSource, StreamBudget, StreamHooks};
use super::step_range::StepRange;
use super::wire::Message;
use crate::off_thread::{blocking, on_disk};
use crate::packed::{Form, PackedSchema, RowLayout};
use crate::ready::{ReadySegment, drop_aside};
use crate::segment_batch::SegmentBatch;
use crate::shared::MessagePool;
use forebay_proto::digest::OrderDigest;
use forebay_proto::manifest::{Manifest, Segment};
use forebay_proto::plan::Sample;
use forebay_proto::{Error, Result, RowRun, v1};
use futures::future::BoxFuture;
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::sync::mpsc;

/// Rows that no message exceeds, so that narrow rows do not make huge indices.
pub(super) const MESSAGE_ROWS: usize = 64 << 10;

/// Segments that are got at once for a message.
const CONCURRENCY: usize = 8;

/// Times that a message is made at most, where segments are damaged in between.
const ATTEMPTS: usize = 5;

/// Builds a stream's messages and hands them to the reader.
pub(super) struct MessageBuilder {
    pub reading: Reading,
    pub segments: Arc<dyn SegmentSource>,
    pub hooks: Arc<dyn StreamHooks>,
    pub budget: StreamBudget,
    form: Form,
    pool: MessagePool,
    sender: mpsc::Sender<Result<Message>>,
    /// Segments that the last message used.
    held: HashMap<u32, ReadySegment>,
    /// Body bytes for each byte that the manifest estimates, as in the last message; 1 before it.
    share: f64,
}

/// The rows of the message being collected.
#[derive(Default)]
pub(super) struct MessageRows {
    pub digest: OrderDigest,
    first_step: u64,
    samples: Vec<Sample>,
    runs: Vec<RowRun>,
    /// What the manifest estimates the rows at, all columns.
    bytes: f64,
}

/// Those of a message's rows that lie in the segments held now.
struct HeldRows {
    sources: Vec<ReadySegment>,
    /// Their numbers in the message.
    numbers: Vec<Range<usize>>,
    /// For each row where it lies.
    picks: Vec<Pick>,
}

impl MessageRows {
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Adds rows of one segment, at least one.
    pub fn push(&mut self, step: u64, samples: impl Iterator<Item = Sample>, of: &Segment) {
        let before = self.samples.len();
        if before == 0 {
            self.first_step = step;
        }
        self.samples.extend(samples);
        let (added, step) = (self.samples.len() - before, (step - self.first_step) as u32);
        let Some(Sample { segment, .. }) = self.samples.last().copied() else { return };
        self.bytes += row_bytes(of) * added as f64;
        let rows = added as u32;
        match self.runs.last_mut() {
            Some(run) if run.step == step && run.segment == segment => run.rows += rows,
            _ => self.runs.push(RowRun { step, segment, rows }),
        }
    }

    /// These rows as a message, out of the picks of `sources` that hold them.
    fn message(
        &self,
        wanted: &PackedSchema,
        sources: &[&SegmentBatch],
        picks: &[Pick],
        form: Form,
        pool: &MessagePool,
    ) -> Result<Message> {
        let batch = gather(wanted, sources, picks, form, pool)?.to_form(wanted, form)?;
        let meta = v1::MessageMeta {
            runs: RowRun::to_wire(&self.runs),
            first_step: self.first_step,
            digest: self.digest.to_bytes().to_vec().into(),
            ..Default::default()
        };
        Message::new(&batch, meta, pool)
    }
}

impl Drop for MessageBuilder {
    fn drop(&mut self) {
        self.drop_held();
    }
}

impl MessageBuilder {
    pub fn new(setup: StreamSetup, form: Form, sender: mpsc::Sender<Result<Message>>) -> Self {
        let StreamSetup { reading, segments, hooks, budget, pool } = setup;
        Self { reading, segments, hooks, budget, form, pool, sender, held: HashMap::new(), share: 1.0 }
    }

    /// The segment of this number, if it is held now.
    pub fn held(&self, segment: u32) -> Option<&ReadySegment> {
        self.held.get(&segment)
    }

    /// How many rows of a segment the message has room for; 0 once the collected rows are a message's worth.
    /// Each row counts as its own segment's rows do, so that small rows before large ones do not make a
    /// message of gigabytes.
    pub fn room(&self, rows: &MessageRows, of: &Segment) -> usize {
        let bytes = self.budget.message_bytes as f64 / self.share - rows.bytes;
        // A row that begins within the message's bytes belongs to it, and each message has one, whatever was
        // estimated.
        let fit = (bytes / row_bytes(of)).ceil() as usize;
        fit.max(usize::from(rows.is_empty())).min(MESSAGE_ROWS.saturating_sub(rows.samples.len()))
    }

    /// Gathers and sends the collected rows.
    #[tracing::instrument(level = "trace", skip_all)]
    pub async fn send(&mut self, rows: MessageRows) -> Result<()> {
        let rows = Arc::new(rows);
        for _ in 0..ATTEMPTS {
            let Some(message) = self.message(&rows).await? else {
                self.drop_held();
                continue;
            };
            if rows.bytes > 0.0 {
                self.share = message.body_bytes() as f64 / rows.bytes;
            }
            return self.deliver(message).await;
        }
        Err(unsound(&self.reading.manifest))
    }

    /// Where the rows lie packed, if there are no other columns, and the reader copies rows out of files.
    pub fn packed_alone(&self) -> Option<&RowLayout> {
        let PackedSchema { layout, physical, .. } = &*self.reading.packed;
        let is_alone = self.form == Form::Packed && physical.fields().len() == 1 && self.pool.takes_files();
        layout.as_ref().filter(|_| is_alone)
    }

    /// Sends all rows of some steps, whose reader copies them out of files and knows which they are. False if
    /// some of them lie elsewhere.
    #[tracing::instrument(level = "trace", skip_all)]
    pub async fn send_whole(&mut self, steps: &StepRange) -> Result<bool> {
        let Some(layout) = self.packed_alone().cloned() else { return Ok(false) };
        for _ in 0..ATTEMPTS {
            if !self.hold(&steps.segments.iter().copied().collect()).await?.is_empty() {
                return Ok(false);
            }
            let permit = self.hooks.permit(steps.rows * layout.width).await;
            let (numbers, sources): (Vec<u32>, Vec<ReadySegment>) =
                self.held.iter().map(|(number, ready)| (*number, ready.clone())).unzip();
            let (steps, wanted) = (steps.clone(), self.reading.packed.clone());
            let (layout, pool) = (layout.clone(), self.pool.clone());
            let make =
                move |sources: &[ReadySegment]| steps.message(&wanted, &layout, (&numbers, sources), &pool);
            match made_of(sources, make, self.hooks.stuck()).await? {
                Some(Some(message)) => {
                    self.deliver(message.guarded(permit)).await?;
                    return Ok(true);
                }
                Some(None) => return Ok(false),
                None => self.drop_held(),
            }
        }
        Err(unsound(&self.reading.manifest))
    }

    /// A message of consecutive rows of a segment.
    pub async fn stretch(
        &mut self,
        segment: u32,
        first: usize,
        rows: usize,
        bytes: usize,
    ) -> Result<Message> {
        for _ in 0..ATTEMPTS {
            self.hold(&HashSet::from([segment])).await?;
            let sources: Vec<_> = self.held.values().cloned().collect();
            let permit = self.hooks.permit(bytes).await;
            let runs = RowRun::to_wire(&[RowRun { step: 0, segment, rows: rows as u32 }]);
            let (meta, pool) = (v1::MessageMeta { runs, ..Default::default() }, self.pool.clone());
            let make = move |sources: &[ReadySegment]| {
                let source = &sources[0];
                let message = Message::new(&source.batch.to_record_batch(first..first + rows)?, meta, &pool)?;
                let message = Message { lender: Some(source.clone()), ..message };
                Ok(message.guarded(source.guard.clone()).guarded(permit))
            };
            match made_of(sources, make, self.hooks.stuck()).await? {
                Some(message) => return Ok(message),
                None => self.drop_held(),
            }
        }
        Err(unsound(&self.reading.manifest))
    }

    pub async fn deliver(&self, message: Message) -> Result<()> {
        let sent = self.sender.send(Ok(message)).await;
        sent.map_err(|_| Error::closed("the reader of the stream has gone"))
    }

    /// Holds wanted segments, at least one, and no others; those that are not held yet are got several at
    /// once. Returns the wanted segments for which there is no memory while it holds the rest.
    ///
    /// Streams cannot wait for each other here: one segment is held whatever memory there is, and no stream
    /// waits for memory for a second one. It goes on with what it holds, and drops that before it gets the
    /// next.
    pub async fn hold(&mut self, wanted: &HashSet<u32>) -> Result<HashSet<u32>> {
        let gone: Vec<_> = self.held.extract_if(|segment, _| !wanted.contains(segment)).collect();
        let gone: Vec<ReadySegment> = gone.into_iter().map(|(_, ready)| ready).collect();
        let missing: Vec<u32> = wanted.iter().filter(|s| !self.held.contains_key(s)).copied().collect();
        let most = self.hooks.held_bytes();
        let mut bytes = self.held.values().map(ReadySegment::own_bytes).sum::<usize>();
        let at_once = self.at_once(&missing, most.saturating_sub(bytes))?;
        if at_once == 1 && !gone.is_empty() {
            // Only the memory of these makes room.
            blocking(move || {
                drop(gone);
                Ok(())
            })
            .await?;
        } else if !gone.is_empty() {
            drop_aside(gone);
        }
        let full = AtomicBool::new(bytes > most);
        let gets = missing.into_iter().take_while(|_| !full.load(Relaxed)).map(|segment| {
            let (segments, reading) = (self.segments.clone(), self.reading.clone());
            async move {
                let ready = segments.get(&reading, segment).await?;
                check_rows(&reading.manifest, segment, ready.batch.num_rows())?;
                Ok::<_, Error>((segment, ready))
            }
        });
        let mut got = stream::iter(gets).buffer_unordered(at_once);
        while let Some((segment, ready)) = got.try_next().await? {
            bytes += ready.own_bytes();
            // Others use the same memory.
            full.fetch_or(bytes > self.hooks.held_bytes(), Relaxed);
            self.held.insert(segment, ready);
        }
        Ok(wanted.iter().filter(|s| !self.held.contains_key(s)).copied().collect())
    }

    /// How many segments may be got at once so that they fit into `bytes`, if none of them lies in a file.
    fn at_once(&self, segments: &[u32], bytes: usize) -> Result<usize> {
        let mut largest = 1;
        for segment in segments {
            let said = self.reading.manifest.segment(*segment)?.decoded_bytes;
            largest = largest.max((said as f64 * self.share) as usize);
        }
        Ok((bytes / largest).clamp(1, CONCURRENCY))
    }

    /// A message of the collected rows; `None` if a segment was damaged meanwhile. Where memory cannot hold
    /// all its segments at once, their rows are gathered a few segments at a time, and put in order at the
    /// end.
    async fn message(&mut self, rows: &Arc<MessageRows>) -> Result<Option<Message>> {
        let mut left = self.hold(&rows.runs.iter().map(|run| run.segment).collect()).await?;
        let permit = self.hooks.permit((rows.bytes * self.share) as usize).await;
        let (wanted, form, pool) = (self.reading.packed.clone(), self.form, self.pool.clone());
        let rows = rows.clone();
        if left.is_empty() {
            let HeldRows { sources, picks, .. } = self.held_rows(&rows)?;
            // What lies in memory is waited for by others: it is not held until the message is sent.
            let lender = Some(&sources[..]).filter(|all| all.len() == 1 && all[0].guard.is_none());
            let lender = lender.map(|all| all[0].clone());
            let pool = if lender.is_some() { pool.lending() } else { pool };
            let make = move |sources: &[ReadySegment]| {
                let message = rows.message(&wanted, &batches(sources), &picks, form, &pool.over(sources))?;
                Ok(Message { lender, ..message })
            };
            let made = made_of(sources, make, self.hooks.stuck());
            return Ok(made.await?.map(|m| m.guarded(permit)));
        }
        let (mut parts, mut order) = (Vec::new(), vec![(0, 0); rows.samples.len()]);
        loop {
            let HeldRows { sources, numbers, picks } = self.held_rows(&rows)?;
            for (row, number) in numbers.into_iter().flatten().enumerate() {
                order[number] = (parts.len(), row);
            }
            let (wanted, pool) = (wanted.clone(), pool.clone());
            let gather =
                move |sources: &[ReadySegment]| gather(&wanted, &batches(sources), &picks, form, &pool);
            let made = made_of(sources, gather, self.hooks.stuck());
            let Some(part) = made.await? else { return Ok(None) };
            parts.push(part);
            if left.is_empty() {
                break;
            }
            left = self.hold(&left).await?;
        }
        let join = move || rows.message(&wanted, &parts.iter().collect::<Vec<_>>(), &order, form, &pool);
        Ok(Some(blocking(join).await?.guarded(permit)))
    }

    /// Those of the collected rows that lie in the segments held.
    fn held_rows(&self, rows: &MessageRows) -> Result<HeldRows> {
        let mut places = HashMap::with_capacity(self.held.len());
        let mut sources: Vec<ReadySegment> = Vec::with_capacity(self.held.len());
        for (segment, ready) in &self.held {
            let skip = self.reading.manifest.segment(*segment)?.skip as usize;
            places.insert(*segment, (sources.len(), skip));
            sources.push(ready.clone());
        }
        let (mut numbers, mut picks) = (Vec::new(), Vec::with_capacity(rows.samples.len()));
        let mut first = 0;
        for run in &rows.runs {
            let all = first..first + run.rows as usize;
            first = all.end;
            let Some(&(source, skip)) = places.get(&run.segment) else { continue };
            picks.extend(rows.samples[all.clone()].iter().map(|s| (source, skip + s.row as usize)));
            numbers.push(all);
        }
        Ok(HeldRows { sources, numbers, picks })
    }

    fn drop_held(&mut self) {
        drop_aside(std::mem::take(&mut self.held).into_values());
    }
}

/// Something made of segments, off the async threads; `None` if one of them was damaged meanwhile, whatever
/// came of it, or when `stuck` says that it will not come: then its thread is left to itself.
async fn made_of<T: Send + 'static>(
    sources: Vec<ReadySegment>,
    make: impl FnOnce(&[ReadySegment]) -> Result<T> + Send + 'static,
    stuck: BoxFuture<'static, ()>,
) -> Result<Option<T>> {
    let made = on_disk(move || {
        let _using: Vec<_> = sources.iter().flat_map(ReadySegment::using).collect();
        // Damaged offsets may make it panic.
        let made = std::panic::catch_unwind(AssertUnwindSafe(|| make(&sources)));
        if !sources.iter().all(ReadySegment::verify) {
            return Ok(None);
        }
        made.unwrap_or_else(|_| Err(Error::corrupt("gathering rows failed: the log says why"))).map(Some)
    });
    tokio::select! {
        biased;
        made = made => made?,
        () = stuck => Ok(None),
    }
}

fn batches(sources: &[ReadySegment]) -> Vec<&SegmentBatch> {
    sources.iter().map(|ready| &*ready.batch).collect()
}

/// What the manifest estimates a row of a segment at, all columns; at least 1. Columns that the segment's
/// object lacks, or has as nulls only, are not in the estimate.
fn row_bytes(of: &Segment) -> f64 {
    (of.decoded_bytes as f64 / of.total_rows.max(1) as f64).max(1.0)
}

/// `Corrupt` unless a segment has the rows that the manifest says.
fn check_rows(manifest: &Manifest, segment: u32, rows: usize) -> Result<()> {
    let said = manifest.segment(segment)?.total_rows;
    match rows as u64 == said {
        true => Ok(()),
        false => Err(Error::corrupt(format!(
            "{}: segment {segment} has {rows} rows, the manifest says {said}",
            manifest.uri()
        ))),
    }
}

fn unsound(manifest: &Manifest) -> Error {
    let uri = manifest.uri();
    Error::retry(format!(
        "{uri}: its segments are damaged again and again while they are read: the cache's log says more"
    ))
}
