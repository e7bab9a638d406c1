//! The batches being filled, in order, and the byte budget over them.
//!
//! The [`ReorderBuffer`] holds the open steps: from the first that was not handed out yet to the last for
//! which there was room. Streams open steps as they reach them and wait when the budget is used, which holds
//! the server back through flow control. The first step is always open, whatever its size, so nothing can
//! lock up.

use super::batch::Batch;
use super::builder::{BatchBuilder, Commit};
use super::sampler::{Epoch, StepPlan};
use arrow::datatypes::SchemaRef;
use forebay_dataset::PackedSchema;
use forebay_dataset::pool::Pool;
use forebay_proto::{Error, Result};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::Notify;

/// Streams that wait for room are woken when this part of the budget is free, not after each batch: where all
/// cores are busy, a thread that wakes another may have to stand aside for it, and would do so in every step.
const WAKE_PARTS: u64 = 8;

/// The steps whose batches are being filled, or wait for the reader; bounded in bytes.
#[derive(Debug)]
pub(crate) struct ReorderBuffer {
    schema: PackedSchema,
    pool: Pool,
    budget: u64,
    open_steps: Mutex<OpenSteps>,
    /// Held while a step is planned and opened; taken before `open_steps`.
    planning: Mutex<()>,
    /// Steps that were handed out. The streams free them, so that the reader does not have to.
    past: Mutex<Vec<Arc<BatchBuilder>>>,
    /// Enough was handed out: there may be room.
    room: Notify,
    /// A step became ready, or the work failed.
    ready: Notify,
}

#[derive(Debug)]
struct OpenSteps {
    /// Number of the first open step.
    first: u64,
    builders: VecDeque<Arc<BatchBuilder>>,
    /// What the open steps count for in the budget.
    bytes: u64,
    /// Bytes of a row: estimated at first, then as last seen.
    row_bytes: f64,
    failed: Option<Error>,
    /// The step that the reader waits for.
    wanted: Option<u64>,
}

/// Whether a step is open.
#[derive(Debug)]
pub(crate) enum Opened {
    Open(Arc<BatchBuilder>),
    /// It was handed out already: nothing of it is missing.
    Past,
    /// There is no room for it yet.
    Full,
}

/// A step, before anything is planned.
enum Found {
    Known(Opened),
    /// This step of the epoch is to be opened next, and counts for this many bytes.
    Next(u64, u64),
}

impl ReorderBuffer {
    /// `row_bytes` is the estimated size of a row.
    pub fn new(schema: SchemaRef, pool: Pool, budget: u64, row_bytes: f64) -> Self {
        let open_steps = OpenSteps {
            first: 0,
            builders: VecDeque::new(),
            bytes: 0,
            row_bytes,
            failed: None,
            wanted: None,
        };
        let (planning, past) = (Mutex::default(), Mutex::default());
        let open_steps = Mutex::new(open_steps);
        let schema = PackedSchema::new(schema);
        Self { schema, pool, budget, open_steps, planning, past, room: Notify::new(), ready: Notify::new() }
    }

    /// The columns of the batches, and how messages hold them.
    pub fn schema(&self) -> &PackedSchema {
        &self.schema
    }

    /// The columns as messages hold them: packed rows as one, and the others.
    pub fn message_schema(&self) -> &SchemaRef {
        &self.schema.physical
    }

    /// Where large buffers come from.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Opens a step of an epoch, and those before it, if there is room.
    pub fn try_open(&self, epoch: &Epoch, step: u64) -> Result<Opened> {
        let past = std::mem::take(&mut *self.past.lock());
        drop(past);
        if let Found::Known(opened) = self.find(epoch, step)? {
            return Ok(opened);
        }
        // One stream plans at a time. Taking batches meanwhile does not wait for it.
        let _planning = self.planning.lock();
        loop {
            let (next, bytes) = match self.find(epoch, step)? {
                Found::Known(opened) => return Ok(opened),
                Found::Next(next, bytes) => (next, bytes),
            };
            let builder =
                BatchBuilder::new(epoch.plan(next, &self.pool)?, self.message_schema().fields().len(), bytes);
            let mut open = self.open_steps.lock();
            open.bytes += bytes;
            open.builders.push_back(Arc::new(builder));
        }
    }

    /// Looks for a step. Nothing is planned for which there is no room.
    fn find(&self, epoch: &Epoch, step: u64) -> Result<Found> {
        let seq = epoch.first_seq + step;
        let open = self.open_steps.lock();
        if seq < open.first {
            return Ok(Found::Known(Opened::Past));
        }
        if let Some(builder) = open.builders.get((seq - open.first) as usize) {
            return Ok(Found::Known(Opened::Open(builder.clone())));
        }
        let next = open.first + open.builders.len() as u64 - epoch.first_seq;
        let rows = epoch.rows(next)?;
        let bytes = (rows as f64 * open.row_bytes) as u64 + StepPlan::bytes_of(rows);
        match !open.builders.is_empty() && open.bytes + bytes > self.budget {
            true => Ok(Found::Known(Opened::Full)),
            false => Ok(Found::Next(next, bytes)),
        }
    }

    /// Opens a step when there is room; `None` if it was handed out already.
    pub async fn open(&self, epoch: &Epoch, step: u64) -> Result<Option<Arc<BatchBuilder>>> {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            match self.try_open(epoch, step)? {
                Opened::Open(builder) => return Ok(Some(builder)),
                Opened::Past => return Ok(None),
                Opened::Full => room.await,
            }
        }
    }

    /// Adds rows that have arrived whole to a batch.
    pub fn commit(&self, builder: &BatchBuilder, commit: Commit) -> Result<()> {
        let Some(completed) = builder.commit(commit, &self.schema, &self.pool)? else { return Ok(()) };
        let mut open = self.open_steps.lock();
        open.bytes = open.bytes.saturating_sub(completed.estimated_bytes) + completed.bytes;
        open.row_bytes = completed.value_bytes as f64 / f64::from(builder.plan.rows.max(1));
        drop(open);
        self.ready.notify_one();
        Ok(())
    }

    /// Whether no open step lacks any row.
    pub fn is_complete(&self) -> bool {
        let builders = self.open_steps.lock().builders.clone();
        builders.iter().all(|builder| builder.is_complete())
    }

    /// Ends the work with an error; steps that are ready are handed out before it shows.
    pub fn fail(&self, error: Error) {
        self.open_steps.lock().failed.get_or_insert(error);
        self.ready.notify_one();
    }

    /// Step number `seq`, when it is ready. Steps must be taken in order.
    pub async fn take(&self, seq: u64) -> Result<Batch> {
        loop {
            if let Some(batch) = self.try_take(seq)? {
                return Ok(batch);
            }
            self.open_steps.lock().wanted = Some(seq);
            self.ready.notified().await;
        }
    }

    /// Step number `seq`, if it is ready.
    pub fn try_take(&self, seq: u64) -> Result<Option<Batch>> {
        let mut open = self.open_steps.lock();
        let first = open.builders.front().filter(|_| open.first == seq);
        let Some((batch, bytes)) = first.and_then(|builder| builder.take()) else {
            return open.failed.clone().map_or(Ok(None), Err);
        };
        let past = open.builders.pop_front();
        open.wanted = None;
        open.first += 1;
        open.bytes = open.bytes.saturating_sub(bytes);
        let wake = open.builders.is_empty() || open.bytes <= self.budget / WAKE_PARTS * (WAKE_PARTS - 1);
        drop(open);
        self.past.lock().extend(past);
        if wake {
            self.room.notify_waiters();
        }
        Ok(Some(batch))
    }

    /// The step that the reader waits for; `None` while it has what it wants.
    pub fn wanted(&self) -> Option<u64> {
        self.open_steps.lock().wanted
    }

    /// What the open steps count for in the budget.
    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        self.open_steps.lock().bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::{DataType, Field, Schema};
    use forebay_dataset::pool::{LARGE_BYTES, Registrar, Registration};
    use forebay_proto::manifest::{Digest, Manifest, Object, SegmentSize};
    use forebay_proto::plan::steps::{Cut, Ending, Layout};
    use forebay_proto::plan::{Order, PlanKey, Shuffle};
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::time::Duration;

    const ROWS: u32 = 10;

    /// Counts buffers of a pool that are used again.
    #[derive(Debug, Default)]
    struct UsedAgain(AtomicUsize);

    impl Registrar for UsedAgain {
        fn register(&self, _: &[u8]) -> Option<Registration> {
            self.0.fetch_add(1, Relaxed);
            None
        }
    }

    fn epoch() -> Epoch {
        epoch_of(200, ROWS.into())
    }

    fn epoch_of(rows: u64, global_batch: u64) -> Epoch {
        let object = Object { key: "a".into(), etag: "e".into(), size: 1, ..Default::default() };
        let size = SegmentSize { object: 0, row_groups: 1, rows, decoded_bytes: 1 };
        let manifest = Manifest::new("file:///d", 1, vec![], vec![object], &[size]).unwrap();
        let key = PlanKey { manifest: Digest(1), seed: 2, epoch: 3, shuffle: Shuffle::Full };
        let cut =
            Cut { first_position: 0, global_batch, world: 1, ending: Ending::Pad, layout: Layout::Segment };
        Epoch::new(Arc::new(manifest), Order::of_segments(&[rows], key), cut, 0, 0).unwrap()
    }

    #[tokio::test]
    async fn streams_are_woken_for_a_part_of_the_budget_not_for_each_batch() {
        let (epoch, pool) = (epoch(), Pool::new(0));
        let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::UInt8, false)]));
        // Room for 16 batches: two of them are an eighth.
        let step_bytes = u64::from(ROWS) + StepPlan::bytes_of(ROWS.into());
        let buffer = ReorderBuffer::new(schema, pool.clone(), 16 * step_bytes, 1.0);
        let mut opened = 0;
        while let Opened::Open(builder) = buffer.try_open(&epoch, opened).unwrap() {
            builder.prepare(0, 1, &pool);
            builder.write(0, 0, &[7; ROWS as usize]);
            let digest = builder.plan.digest(0..ROWS);
            buffer.commit(&builder, Commit { rows: ROWS, digest, ..Commit::default() }).unwrap();
            opened += 1;
        }
        assert_eq!((opened, buffer.bytes()), (16, 16 * step_bytes));
        let next = buffer.open(&epoch, 16);
        tokio::pin!(next);
        let moment = Duration::from_millis(20);
        assert!(tokio::time::timeout(moment, &mut next).await.is_err(), "there is no room");
        assert_eq!(buffer.take(0).await.unwrap().rows(), ROWS as usize);
        assert!(tokio::time::timeout(moment, &mut next).await.is_err(), "too little");
        buffer.take(1).await.unwrap();
        assert!(next.await.unwrap().is_some());
        assert!(matches!(buffer.try_open(&epoch, 1), Ok(Opened::Past)));
    }

    #[test]
    fn steps_of_few_bytes_count_for_all_that_they_take() {
        let (epoch, pool) = (epoch_of(20_000, ROWS.into()), Pool::new(0));
        let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::UInt8, false)]));
        let buffer = ReorderBuffer::new(schema, pool.clone(), 1 << 20, 1.0);
        let open = |step: &u64| matches!(buffer.try_open(&epoch, *step), Ok(Opened::Open(_)));
        let opened = (0..2000).take_while(open).count();
        assert!((300..=512).contains(&opened), "{opened} steps of 10 bytes in a MiB");
    }

    #[test]
    fn nothing_is_planned_without_room_nor_freed_by_the_taker() {
        let rows = 2 * LARGE_BYTES / size_of::<u64>();
        let used_again = Arc::new(UsedAgain::default());
        let pool = Pool::with_registrar(1 << 30, Some(used_again.clone()));
        let epoch = epoch_of(4 * rows as u64, rows as u64);
        let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::UInt8, false)]));
        let buffer = ReorderBuffer::new(schema, pool.clone(), 1, 1.0);
        let Ok(Opened::Open(first)) = buffer.try_open(&epoch, 0) else { panic!("the first is always open") };
        assert!(matches!(buffer.try_open(&epoch, 1), Ok(Opened::Full)));
        drop(pool.take(2 * LARGE_BYTES));
        let used_again = used_again.0.load(Relaxed);
        assert_eq!(used_again, 0, "a plan that was thrown away leaves its sample numbers in the pool");
        assert!(buffer.try_take(0).unwrap().is_none());
        assert_eq!(buffer.wanted(), None, "who only looks does not wait");
        first.prepare(0, 1, &pool);
        let digest = first.plan.digest(0..rows as u32);
        buffer.commit(&first, Commit { rows: rows as u32, digest, ..Commit::default() }).unwrap();
        let (past, samples) = (Arc::downgrade(&first), buffer.try_take(0).unwrap().unwrap().sample_ids);
        drop(first);
        assert!(past.upgrade().is_some(), "the taker has left it to the streams");
        assert!(matches!(buffer.try_open(&epoch, 0), Ok(Opened::Past)));
        assert!(past.upgrade().is_none());
        assert_eq!(samples.len(), rows, "what the batch holds lives on");
    }
}
