//! The walks behind the answers: which rows come next, and how they become messages.

use super::{Budget, Reading, Ready, Segments};
use crate::gather::{Pick, gather};
use crate::wire::Message;
use arrow::array::RecordBatch;
use forebay_proto::digest::OrderDigest;
use forebay_proto::manifest::{Manifest, Segment};
use forebay_proto::plan::steps::{Cut, Slot, Steps};
use forebay_proto::plan::{Order, PlanKey, Sample};
use forebay_proto::{Error, Kind, Result, v1};
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::sync::{Semaphore, mpsc};

/// Rows that no message exceeds, so that narrow rows do not make huge indices.
const MESSAGE_ROWS: usize = 64 << 10;

/// Segments that one answer gets at once, for a message and for its prefetch each.
const CONCURRENCY: usize = 8;

/// Times that a message is made at most, where segments are damaged in between.
const ATTEMPTS: usize = 5;

/// Segments that a prefetch keeps ready at most, however wide the window: beyond that the store decides.
const PREFETCH_SEGMENTS: usize = 64;

/// Makes messages of rows and hands them to the reader.
pub(super) struct Maker {
    pub segments: Arc<dyn Segments>,
    pub reading: Reading,
    pub budget: Budget,
    pub sender: mpsc::Sender<Result<Message>>,
    /// Segments that the last message used.
    pub held: HashMap<u32, Ready>,
    /// Body bytes for each byte that the manifest estimates, as in the last message; 1 before it.
    pub share: f64,
}

/// The rows of the message being collected.
#[derive(Default)]
struct Collected {
    meta: v1::MessageMeta,
    samples: Vec<Sample>,
    digest: OrderDigest,
    /// What the manifest estimates the rows at, all columns.
    bytes: f64,
}

impl Collected {
    fn push(&mut self, step: u64, sample: Sample, of: &Segment) {
        self.bytes += of.decoded_bytes as f64 / of.total_rows as f64;
        if self.samples.is_empty() {
            self.meta.first_step = step;
        }
        let step = (step - self.meta.first_step) as u32;
        match self.meta.runs.as_mut_slice() {
            [.., s, segment, rows] if *s == step && *segment == sample.segment => *rows += 1,
            _ => self.meta.runs.extend([step, sample.segment, 1]),
        }
        self.samples.push(sample);
    }
}

impl Maker {
    /// Whether the collected rows are a message's worth. Each row counts as its own segment's rows do, so that small rows
    /// before large ones do not make a message of gigabytes.
    fn is_full(&self, collected: &Collected) -> bool {
        collected.samples.len() >= MESSAGE_ROWS
            || collected.bytes * self.share >= self.budget.message_bytes as f64
    }

    /// Holds the wanted segments too; those that are not held yet are got several at once. Answers with those that are
    /// held no more: letting go of one may unmap megabytes, so that is not for an async thread.
    async fn hold(&mut self, wanted: &HashSet<u32>) -> Result<Vec<Ready>> {
        let gone = self.held.extract_if(|segment, _| !wanted.contains(segment)).map(|(_, r)| r).collect();
        let missing: Vec<u32> = wanted.iter().filter(|s| !self.held.contains_key(s)).copied().collect();
        let gets = missing.into_iter().map(|segment| {
            let (segments, reading) = (self.segments.clone(), self.reading.clone());
            async move {
                let ready = segments.get(&reading, segment).await?;
                let rows = reading.manifest.segment(segment)?.total_rows;
                if ready.batch.num_rows() as u64 != rows {
                    return Err(Error::corrupt(format!(
                        "{}: segment {segment} has {} rows, the manifest says {rows}",
                        reading.manifest.uri(),
                        ready.batch.num_rows()
                    )));
                }
                Ok((segment, ready))
            }
        });
        let got: Vec<_> = stream::iter(gets).buffer_unordered(CONCURRENCY).try_collect().await?;
        self.held.extend(got);
        Ok(gone)
    }

    /// Gathers and sends the collected rows.
    async fn send(&mut self, collected: Collected) -> Result<()> {
        let collected = Arc::new(collected);
        for _ in 0..ATTEMPTS {
            let gone = self.hold(&collected.samples.iter().map(|s| s.segment).collect()).await?;
            let room = self.segments.room((collected.bytes * self.share) as usize).await;
            let mut places = HashMap::with_capacity(self.held.len());
            let mut sources: Vec<Ready> = Vec::with_capacity(self.held.len());
            for (segment, ready) in &self.held {
                let skip = self.reading.manifest.segment(*segment)?.skip as usize;
                places.insert(*segment, (sources.len(), skip));
                sources.push(ready.clone());
            }
            let (schema, rows) = (self.reading.projected.clone(), collected.clone());
            let made = self.made_of(sources, move |sources| {
                drop(gone);
                let pick = |s: &Sample| {
                    let (source, skip) = places[&s.segment];
                    (source, skip + s.row as usize)
                };
                let picks: Vec<Pick> = rows.samples.iter().map(pick).collect();
                let sources: Vec<&RecordBatch> = sources.iter().map(|r| r.batch.as_ref()).collect();
                let batch = gather(&schema, &sources, &picks)?;
                let digest = rows.digest.to_bytes().to_vec().into();
                let message = Message::new(&batch, v1::MessageMeta { digest, ..rows.meta.clone() })?;
                Ok(message.guarded(room))
            });
            let Some(message) = made.await? else {
                self.held.clear();
                continue;
            };
            if collected.bytes > 0.0 {
                self.share = message.body_bytes() as f64 / collected.bytes;
            }
            return self.deliver(message).await;
        }
        Err(unsound(&self.reading.manifest))
    }

    /// A message made of segments; `None` if one of them was damaged meanwhile, whatever came of it.
    async fn made_of(
        &self,
        sources: Vec<Ready>,
        make: impl FnOnce(&[Ready]) -> Result<Message> + Send + 'static,
    ) -> Result<Option<Message>> {
        let segments = self.segments.clone();
        blocking(move || {
            // Damaged offsets may make it panic.
            let made = std::panic::catch_unwind(AssertUnwindSafe(|| make(&sources)));
            if !sources.iter().all(|source| segments.is_sound(&source.batch)) {
                return Ok(None);
            }
            made.unwrap_or_else(|_| Err(Error::corrupt("gathering rows failed: the log says why"))).map(Some)
        })
        .await
    }

    /// A message of consecutive rows of a segment.
    async fn stretch(&mut self, segment: u32, first: usize, rows: usize, bytes: usize) -> Result<Message> {
        for _ in 0..ATTEMPTS {
            let gone = self.hold(&HashSet::from([segment])).await?;
            let sources: Vec<_> = self.held.values().cloned().collect();
            let room = self.segments.room(bytes).await;
            let meta = v1::MessageMeta { runs: vec![0, segment, rows as u32], ..Default::default() };
            // Hashing reads every byte: the pages are there when the message is sent from an async thread.
            let made = self.made_of(sources, move |sources| {
                drop(gone);
                let message = Message::new(&sources[0].batch.slice(first, rows), meta)?;
                Ok(message.guarded(sources[0].guard.clone()).guarded(room))
            });
            match made.await? {
                Some(message) => return Ok(message),
                None => self.held.clear(),
            }
        }
        Err(unsound(&self.reading.manifest))
    }

    async fn deliver(&self, message: Message) -> Result<()> {
        let sent = self.sender.send(Ok(message)).await;
        sent.map_err(|_| Error::closed("the reader of the stream has gone"))
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
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|e| Err(Error::new(Kind::Corrupt, format!("gathering rows failed: {e}"))))
}

/// A plan ticket, checked.
pub(super) struct PlanWalk {
    order: Arc<Order>,
    cut: Cut,
    rank: u32,
    /// Bit per segment; empty = all.
    segments: Vec<u8>,
}

impl PlanWalk {
    pub fn new(manifest: &Manifest, ticket: &v1::PlanTicket) -> Result<Self> {
        let plan = ticket.plan.clone().ok_or_else(|| Error::invalid("the ticket has no plan"))?;
        let key = PlanKey::try_from(plan)?;
        if key.manifest != manifest.digest() {
            return Err(Error::invalid(format!(
                "the plan is for dataset version {}, {} has {}",
                key.manifest,
                manifest.uri(),
                manifest.digest()
            )));
        }
        let unknown =
            |what| Error::invalid(format!("unknown {what} in the ticket: use equal versions of Forebay"));
        let cut = Cut {
            first_position: ticket.first_position,
            global_batch: ticket.global_batch,
            world: ticket.world,
            ending: v1::plan_ticket::Ending::try_from(ticket.ending).map_err(|_| unknown("ending"))?.into(),
            layout: v1::plan_ticket::Layout::try_from(ticket.layout).map_err(|_| unknown("layout"))?.into(),
        };
        cut.check()?;
        if ticket.rank >= ticket.world {
            return Err(Error::invalid(format!(
                "rank {} of {}: ranks count from 0",
                ticket.rank, ticket.world
            )));
        }
        let order = Arc::new(Order::new(manifest, key.seed, key.epoch, key.shuffle));
        Steps::new(&order, cut)?;
        Ok(Self { order, cut, rank: ticket.rank, segments: ticket.segments.to_vec() })
    }

    fn wants(segments: &[u8], segment: u32) -> bool {
        segments.is_empty()
            || segments.get(segment as usize / 8).is_some_and(|b| b & (1 << (segment % 8)) != 0)
    }

    pub async fn run(self, mut maker: Maker) -> Result<()> {
        let Self { order, cut, rank, segments } = self;
        let steps = Steps::new(&order, cut)?;
        let manifest = maker.reading.manifest.clone();
        let mut ahead = Ahead::start(&maker, &order, cut.first_position, &segments);
        let mut slots: Vec<Slot> = Vec::new();
        let mut collected = Collected::default();
        for step in 0..steps.count() {
            let position = cut.first_position + step * cut.global_batch;
            if collected.samples.is_empty() {
                maker.segments.reached(position);
            }
            steps.batch(step, rank, &mut slots);
            for slot in slots.iter().filter(|s| Self::wants(&segments, s.sample.segment)) {
                if let Some(ahead) = &mut ahead {
                    ahead.reached(slot.sample.segment);
                }
                let segment = manifest.segment(slot.sample.segment)?;
                if steps.is_real(slot) {
                    let id = segment.first_row + u64::from(slot.sample.row);
                    collected.digest.add(slot.position, id);
                }
                collected.push(step, slot.sample, &segment);
                if maker.is_full(&collected) {
                    maker.send(std::mem::take(&mut collected)).await?;
                    maker.segments.reached(position);
                }
            }
        }
        if !collected.samples.is_empty() {
            maker.send(collected).await?;
        }
        maker.segments.reached(u64::MAX);
        Ok(())
    }
}

/// Makes the plan's next segments ready ahead of the walk.
struct Ahead {
    room: Arc<Semaphore>,
    /// Where each wanted segment stands in the order of need.
    places: HashMap<u32, usize>,
    /// Segments before this place are past.
    past: Arc<AtomicUsize>,
    window: usize,
    reached: HashSet<u32>,
    last: Option<u32>,
    /// Segments that room was made for.
    made: usize,
    task: tokio::task::JoinHandle<()>,
}

impl Ahead {
    fn start(maker: &Maker, order: &Arc<Order>, position: u64, wanted: &[u8]) -> Option<Self> {
        let window = order.window_segments();
        let ready = window.saturating_add(maker.budget.segments_ahead?).min(PREFETCH_SEGMENTS);
        let (room, past) = (Arc::new(Semaphore::new(ready)), Arc::new(AtomicUsize::new(0)));
        let (segments, reading) = (maker.segments.clone(), maker.reading.clone());
        let mut seen = HashSet::new();
        let mut next = order.segments_from(position);
        next.retain(|&s| PlanWalk::wants(wanted, s) && seen.insert(s));
        let places = next.iter().enumerate().map(|(place, segment)| (*segment, place)).collect();
        let (permits, floor) = (room.clone(), past.clone());
        let task = tokio::spawn(async move {
            let mut under_way = tokio::task::JoinSet::new();
            for (place, segment) in next.into_iter().enumerate() {
                match permits.acquire().await {
                    Ok(permit) => permit.forget(),
                    Err(_) => return,
                }
                while under_way.len() >= CONCURRENCY {
                    under_way.join_next().await;
                }
                if place < floor.load(Relaxed) {
                    continue;
                }
                let (segments, reading) = (segments.clone(), reading.clone());
                // What fails here fails again, and is reported, when the walk needs it.
                under_way.spawn(async move { segments.get(&reading, segment).await.map(drop) });
            }
            while under_way.join_next().await.is_some() {}
        });
        let (reached, last, made) = (HashSet::new(), None, 0);
        Some(Self { room, places, past, window, reached, last, made, task })
    }

    fn reached(&mut self, segment: u32) {
        // Rows come in runs of one segment: most calls end here.
        if self.last.replace(segment) == Some(segment) || !self.reached.insert(segment) {
            return;
        }
        // A rank may have no row in many small segments: what lies a window back is past, reached or not.
        let place = self.places.get(&segment).copied().unwrap_or(0);
        let past = (place + 1).saturating_sub(self.window);
        self.past.fetch_max(past, Relaxed);
        let due = self.reached.len().max(past);
        self.room.add_permits(due.saturating_sub(self.made));
        self.made = self.made.max(due);
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// All rows in file order, up to `limit`.
pub(super) async fn scan(mut maker: Maker, limit: u64) -> Result<()> {
    let mut left = limit;
    let count = maker.reading.manifest.segments().len() as u32;
    for segment in 0..count {
        if left == 0 {
            break;
        }
        let gone = maker.hold(&HashSet::from([segment])).await?;
        let let_go = move || {
            drop(gone);
            Ok(())
        };
        blocking(let_go).await?;
        let Some(Ready { batch, .. }) = maker.held.get(&segment).cloned() else { continue };
        let part = maker.reading.manifest.segment(segment)?;
        let rows = part.rows.min(left) as usize;
        let bytes = used_bytes(&batch) / batch.num_rows().max(1);
        let per_message = (maker.budget.message_bytes / bytes.max(1)).clamp(1, MESSAGE_ROWS);
        drop(batch);
        for first in (0..rows).step_by(per_message) {
            let n = per_message.min(rows - first);
            let message = maker.stretch(segment, part.skip as usize + first, n, bytes * n).await?;
            maker.deliver(message).await?;
        }
        left -= rows as u64;
    }
    Ok(())
}

/// Bytes of the batch's own values. What its buffers keep alive would be the whole mapping, once for each of them.
fn used_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(|c| c.to_data().get_slice_memory_size().unwrap_or(0)).sum()
}

/// The rows of a rows ticket; `Invalid` names the first that does not exist.
pub(super) fn explicit_rows(manifest: &Manifest, ticket: &v1::RowsTicket) -> Result<Vec<Sample>> {
    if ticket.segment.len() != ticket.row.len() {
        return Err(Error::invalid(format!(
            "the ticket names {} segments but {} rows",
            ticket.segment.len(),
            ticket.row.len()
        )));
    }
    let sample = |(&segment, &row): (&u32, &u64)| {
        let rows = manifest.segment(segment)?.rows;
        match row < rows {
            true => Ok(Sample { segment, row: row as u32 }),
            false => Err(Error::invalid(format!(
                "{}: segment {segment} has {rows} rows, there is no row {row}",
                manifest.uri()
            ))),
        }
    };
    ticket.segment.iter().zip(&ticket.row).map(sample).collect()
}

/// Explicit rows in the order asked for.
pub(super) async fn rows(mut maker: Maker, samples: Vec<Sample>) -> Result<()> {
    let manifest = maker.reading.manifest.clone();
    let mut collected = Collected::default();
    for sample in samples {
        collected.push(0, sample, &manifest.segment(sample.segment)?);
        if maker.is_full(&collected) {
            maker.send(std::mem::take(&mut collected)).await?;
        }
    }
    if !collected.samples.is_empty() {
        maker.send(collected).await?;
    }
    Ok(())
}
