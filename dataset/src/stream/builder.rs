//! Builds messages of rows: the segments that the rows lie in are held, the rows gathered, the message sent.

use super::gather::{Pick, gather};
use super::reading::Reading;
use super::source::{SegmentSource, StreamBudget, StreamHooks};
use super::wire::Message;
use crate::ready::{ReadySegment, drop_aside};
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use forebay_proto::digest::OrderDigest;
use forebay_proto::manifest::{Manifest, Segment};
use forebay_proto::plan::Sample;
use forebay_proto::{Error, Result, RowRun, v1};
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::{HashMap, HashSet};
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
    /// For each row its number in the message.
    numbers: Vec<usize>,
    /// For each row where it lies.
    picks: Vec<Pick>,
}

impl MessageRows {
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    pub fn push(&mut self, step: u64, sample: Sample, of: &Segment) {
        self.bytes += of.decoded_bytes as f64 / of.total_rows as f64;
        if self.samples.is_empty() {
            self.first_step = step;
        }
        let step = (step - self.first_step) as u32;
        match self.runs.last_mut() {
            Some(run) if run.step == step && run.segment == sample.segment => run.rows += 1,
            _ => self.runs.push(RowRun { step, segment: sample.segment, rows: 1 }),
        }
        self.samples.push(sample);
    }

    /// These rows as a message.
    fn message(&self, batch: &RecordBatch) -> Result<Message> {
        let meta = v1::MessageMeta {
            runs: RowRun::to_wire(&self.runs),
            first_step: self.first_step,
            digest: self.digest.to_bytes().to_vec().into(),
            hash: 0,
        };
        Message::new(batch, meta)
    }
}

impl Drop for MessageBuilder {
    fn drop(&mut self) {
        self.drop_held();
    }
}

impl MessageBuilder {
    pub fn new(
        reading: Reading,
        segments: Arc<dyn SegmentSource>,
        hooks: Arc<dyn StreamHooks>,
        budget: StreamBudget,
        sender: mpsc::Sender<Result<Message>>,
    ) -> Self {
        Self { reading, segments, hooks, budget, sender, held: HashMap::new(), share: 1.0 }
    }

    /// A segment that is held.
    pub fn held(&self, segment: u32) -> Option<&ReadySegment> {
        self.held.get(&segment)
    }

    /// Whether the collected rows are a message's worth. Each row counts as its own segment's rows do, so
    /// that small rows before large ones do not make a message of gigabytes.
    pub fn is_full(&self, rows: &MessageRows) -> bool {
        rows.samples.len() >= MESSAGE_ROWS || rows.bytes * self.share >= self.budget.message_bytes as f64
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
            let meta = v1::MessageMeta { runs, ..Default::default() };
            let made = made_of(sources, move |sources| {
                let mut message = Message::new(&sources[0].batch.slice(first, rows), meta)?;
                if sources[0].guard.is_none() {
                    // It may lie in a file, whose pages may have gone when an async thread sends the message.
                    message.body.iter_mut().for_each(|part| *part = Bytes::copy_from_slice(part));
                }
                Ok(message.guarded(sources[0].guard.clone()).guarded(permit))
            });
            match made.await? {
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
        let mut left = self.hold(&rows.samples.iter().map(|s| s.segment).collect()).await?;
        let permit = self.hooks.permit((rows.bytes * self.share) as usize).await;
        let schema = self.reading.projected.clone();
        let rows = rows.clone();
        if left.is_empty() {
            let HeldRows { sources, picks, .. } = self.held_rows(&rows)?;
            let made = made_of(sources, move |sources| rows.message(&gathered(&schema, sources, &picks)?));
            return Ok(made.await?.map(|m| m.guarded(permit)));
        }
        let (mut parts, mut order) = (Vec::new(), vec![(0, 0); rows.samples.len()]);
        loop {
            let HeldRows { sources, numbers, picks } = self.held_rows(&rows)?;
            for (row, number) in numbers.into_iter().enumerate() {
                order[number] = (parts.len(), row);
            }
            let schema = schema.clone();
            let made = made_of(sources, move |sources| gathered(&schema, sources, &picks));
            let Some(part) = made.await? else { return Ok(None) };
            parts.push(part);
            if left.is_empty() {
                break;
            }
            left = self.hold(&left).await?;
        }
        let join = move || rows.message(&gather(&schema, &parts.iter().collect::<Vec<_>>(), &order)?);
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
        let pick = |(number, sample): (usize, &Sample)| {
            let (source, skip) = places.get(&sample.segment)?;
            Some((number, (*source, skip + sample.row as usize)))
        };
        let (numbers, picks) = rows.samples.iter().enumerate().filter_map(pick).unzip();
        Ok(HeldRows { sources, numbers, picks })
    }

    fn drop_held(&mut self) {
        drop_aside(std::mem::take(&mut self.held).into_values());
    }
}

/// Something made of segments, off the async threads; `None` if one of them was damaged meanwhile, whatever
/// came of it.
async fn made_of<T: Send + 'static>(
    sources: Vec<ReadySegment>,
    make: impl FnOnce(&[ReadySegment]) -> Result<T> + Send + 'static,
) -> Result<Option<T>> {
    blocking(move || {
        // Damaged offsets may make it panic.
        let made = std::panic::catch_unwind(AssertUnwindSafe(|| make(&sources)));
        if !sources.iter().all(ReadySegment::verify) {
            return Ok(None);
        }
        made.unwrap_or_else(|_| Err(Error::corrupt("gathering rows failed: the log says why"))).map(Some)
    })
    .await
}

fn gathered(schema: &SchemaRef, sources: &[ReadySegment], picks: &[Pick]) -> Result<RecordBatch> {
    gather(schema, &sources.iter().map(|ready| ready.batch.as_ref()).collect::<Vec<_>>(), picks)
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

/// Runs `work` off the async threads: it touches mapped pages and copies megabytes.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let span = tracing::Span::current();
    tokio::task::spawn_blocking(move || span.in_scope(work))
        .await
        .unwrap_or_else(|e| Err(Error::corrupt(format!("gathering rows failed: {e}"))))
}
