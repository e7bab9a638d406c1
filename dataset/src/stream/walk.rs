//! The walks behind the answers: which rows come next, and how they become messages.

use super::maker::{CONCURRENCY, Collected, MESSAGE_ROWS, Maker};
use crate::ready::{ReadySegment, drop_aside};
use arrow::array::RecordBatch;
use forebay_proto::manifest::Manifest;
use forebay_proto::plan::steps::{Cut, Slot, Steps};
use forebay_proto::plan::{Order, PlanKey, Sample};
use forebay_proto::{Error, Result, v1};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::sync::Semaphore;

/// Rows of the plan that are walked in one go where none of them is wanted: a fraction of a millisecond.
const STRETCH_ROWS: usize = 16 << 10;

/// Segments that a prefetch keeps ready at most, however wide the window: beyond that the store decides.
const PREFETCH_SEGMENTS: usize = 64;

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
        let mut walked = 0;
        for step in 0..steps.count() {
            let position = cut.first_position + step * cut.global_batch;
            if collected.samples.is_empty() {
                maker.segments.reached(position);
            }
            steps.batch(step, rank, &mut slots);
            walked += slots.len();
            if walked >= STRETCH_ROWS {
                walked = 0;
                tokio::task::yield_now().await;
            }
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
                under_way
                    .spawn(async move { segments.get(&reading, segment).await.map(|r| drop_aside([r])) });
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
        maker.hold(&HashSet::from([segment])).await?;
        let Some(ReadySegment { batch, .. }) = maker.held.get(&segment).cloned() else { continue };
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
