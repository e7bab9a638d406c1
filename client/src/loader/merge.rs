//! The merge: batches being filled by several streams at once, and the byte budget over them.
//!
//! The [`Window`] holds the steps that are open, in order: from the first that was not handed out yet to the last for
//! which there was room. Streams open steps as they reach them and wait when the budget is used, which holds the
//! server back through flow control. The first step is always open, whatever its size, so nothing can lock up.
//! Streams copy into an [`Assembly`] under its lock; a step is ready when every row was committed exactly once.

use super::batch::{Batch, collate};
use super::sampler::{Epoch, StepPlan};
use crate::pool::Pool;
use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::buffer::MutableBuffer;
use arrow::datatypes::SchemaRef;
use forebay_dataset::stream::gather::{plain_array, plain_width};
use forebay_proto::digest::OrderDigest;
use forebay_proto::{Error, Result};
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::Notify;

/// Streams that wait for room are woken when this part of the budget is free, not after each batch: where all cores are
/// busy, whoever wakes another thread may have to stand aside for it, and would do so in every step.
const WAKE_PARTS: u64 = 8;

/// The open steps.
#[derive(Debug)]
pub(crate) struct Window {
    schema: SchemaRef,
    pool: Pool,
    budget: u64,
    inner: Mutex<Inner>,
    /// Held while a step is planned and opened; taken before `inner`.
    planning: Mutex<()>,
    /// Steps that were handed out. The streams free them: whoever takes batches has better things to do.
    past: Mutex<Vec<Arc<Assembly>>>,
    /// Enough was handed out: there may be room.
    room: Notify,
    /// A step became ready, or the work failed.
    ready: Notify,
}

#[derive(Debug)]
struct Inner {
    /// Number of the first open step.
    base: u64,
    open: VecDeque<Arc<Assembly>>,
    /// What the open steps are counted with.
    bytes: u64,
    /// Bytes of a row: estimated at first, then as last seen.
    row_bytes: f64,
    failed: Option<Error>,
    /// The step that the reader waits for.
    wanted: Option<u64>,
}

/// A step's place in the window.
#[derive(Debug)]
pub(crate) enum Opened {
    /// It is open.
    Open(Arc<Assembly>),
    /// It was handed out already: nothing of it is missing.
    Past,
    /// There is no room for it yet.
    Full,
}

/// Where a step stands.
enum Found {
    Known(Opened),
    /// This step of the epoch is to be opened next, and is counted with so many bytes.
    Next(u64, u64),
}

/// One batch being filled.
#[derive(Debug)]
pub(crate) struct Assembly {
    pub plan: StepPlan,
    fill: Mutex<Fill>,
}

#[derive(Debug)]
struct Fill {
    columns: Vec<Column>,
    missing: u32,
    digest: OrderDigest,
    /// What this step is counted with in the budget.
    bytes: u64,
    done: Option<Batch>,
}

#[derive(Debug, Default)]
struct Column {
    plain: Option<MutableBuffer>,
    odd: Vec<(u32, ArrayRef)>,
}

/// Rows of a batch that have arrived whole.
#[derive(Debug)]
pub(crate) struct Commit {
    pub rows: u32,
    pub digest: OrderDigest,
    /// Column, the batch's row, and the rows.
    pub odd: Vec<(usize, u32, ArrayRef)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

impl Window {
    /// An empty window. `row_bytes` is the size of a row as far as one can tell.
    pub fn new(schema: SchemaRef, pool: Pool, budget: u64, row_bytes: f64) -> Self {
        let inner = Inner { base: 0, open: VecDeque::new(), bytes: 0, row_bytes, failed: None, wanted: None };
        let (inner, planning, past) = (Mutex::new(inner), Mutex::default(), Mutex::default());
        Self { schema, pool, budget, inner, planning, past, room: Notify::new(), ready: Notify::new() }
    }

    /// The columns of the batches.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Where large buffers come from.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Opens a step of an epoch, and those before it, if there is room.
    pub fn try_open(&self, epoch: &Epoch, step: u64) -> Result<Opened> {
        let past = std::mem::take(&mut *lock(&self.past));
        drop(past);
        if let Found::Known(opened) = self.find(epoch, step)? {
            return Ok(opened);
        }
        // One stream plans at a time, and whoever takes batches meanwhile does not wait for it.
        let _planning = lock(&self.planning);
        loop {
            let (next, bytes) = match self.find(epoch, step)? {
                Found::Known(opened) => return Ok(opened),
                Found::Next(next, bytes) => (next, bytes),
            };
            let assembly = Assembly::new(epoch.plan(next, &self.pool)?, self.schema.fields().len(), bytes);
            let mut inner = lock(&self.inner);
            inner.bytes += bytes;
            inner.open.push_back(Arc::new(assembly));
        }
    }

    /// What is known of a step. Nothing is planned for which there is no room.
    fn find(&self, epoch: &Epoch, step: u64) -> Result<Found> {
        let seq = epoch.first_seq + step;
        let inner = lock(&self.inner);
        if seq < inner.base {
            return Ok(Found::Known(Opened::Past));
        }
        if let Some(open) = inner.open.get((seq - inner.base) as usize) {
            return Ok(Found::Known(Opened::Open(open.clone())));
        }
        let next = inner.base + inner.open.len() as u64 - epoch.first_seq;
        let bytes = (epoch.rows(next)? as f64 * inner.row_bytes) as u64;
        match !inner.open.is_empty() && inner.bytes + bytes > self.budget {
            true => Ok(Found::Known(Opened::Full)),
            false => Ok(Found::Next(next, bytes)),
        }
    }

    /// Opens a step when there is room; `None` if it was handed out already.
    pub async fn open(&self, epoch: &Epoch, step: u64) -> Result<Option<Arc<Assembly>>> {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            match self.try_open(epoch, step)? {
                Opened::Open(assembly) => return Ok(Some(assembly)),
                Opened::Past => return Ok(None),
                Opened::Full => room.await,
            }
        }
    }

    /// Adds rows that have arrived whole; puts the batch together if they were the last.
    pub fn commit(&self, assembly: &Assembly, commit: Commit) -> Result<()> {
        let bytes = {
            let mut fill = lock(&assembly.fill);
            fill.missing = fill.missing.checked_sub(commit.rows).ok_or_else(|| {
                let (epoch, step) = (assembly.plan.epoch, assembly.plan.step);
                Error::corrupt(format!("epoch {epoch} step {step}: more rows arrived than the batch has"))
            })?;
            fill.digest.merge(commit.digest);
            for (column, row, array) in commit.odd {
                fill.columns[column].odd.push((row, array));
            }
            if fill.missing > 0 {
                return Ok(());
            }
            let columns = std::mem::take(&mut fill.columns);
            let batch = assembly.finish(columns, fill.digest, &self.schema, &self.pool)?;
            let was = fill.bytes;
            fill.bytes = payload_bytes(&batch);
            fill.done = Some(batch);
            (was, fill.bytes)
        };
        let mut inner = lock(&self.inner);
        inner.bytes = inner.bytes - bytes.0.min(inner.bytes) + bytes.1;
        inner.row_bytes = bytes.1 as f64 / f64::from(assembly.plan.rows.max(1));
        drop(inner);
        self.ready.notify_one();
        Ok(())
    }

    /// Whether every step that is open is ready.
    pub fn is_complete(&self) -> bool {
        let open = lock(&self.inner).open.clone();
        open.iter().all(|a| lock(&a.fill).missing == 0)
    }

    /// Ends the work with an error; steps that are ready are handed out before it shows.
    pub fn fail(&self, error: Error) {
        lock(&self.inner).failed.get_or_insert(error);
        self.ready.notify_one();
    }

    /// Step number `seq`, when it is ready. Steps must be taken in order.
    pub async fn take(&self, seq: u64) -> Result<Batch> {
        loop {
            if let Some(batch) = self.try_take(seq)? {
                return Ok(batch);
            }
            lock(&self.inner).wanted = Some(seq);
            self.ready.notified().await;
        }
    }

    /// Step number `seq`, if it is ready.
    pub fn try_take(&self, seq: u64) -> Result<Option<Batch>> {
        let mut inner = lock(&self.inner);
        if let Some(first) = inner.open.front().filter(|_| inner.base == seq) {
            let mut fill = lock(&first.fill);
            if let Some(batch) = fill.done.take() {
                let bytes = fill.bytes;
                drop(fill);
                let past = inner.open.pop_front();
                inner.wanted = None;
                inner.base += 1;
                inner.bytes -= bytes.min(inner.bytes);
                let wake =
                    inner.open.is_empty() || inner.bytes <= self.budget / WAKE_PARTS * (WAKE_PARTS - 1);
                drop(inner);
                lock(&self.past).extend(past);
                if wake {
                    self.room.notify_waiters();
                }
                return Ok(Some(batch));
            }
        }
        inner.failed.clone().map_or(Ok(None), Err)
    }

    /// The step that the reader waits for; `None` while it has what it wants.
    pub fn wanted(&self) -> Option<u64> {
        lock(&self.inner).wanted
    }

    /// Bytes that the open steps are counted with.
    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        lock(&self.inner).bytes
    }
}

impl Assembly {
    fn new(plan: StepPlan, columns: usize, bytes: u64) -> Self {
        let missing = plan.rows;
        let columns = (0..columns).map(|_| Column::default()).collect();
        let fill = Fill { columns, missing, digest: OrderDigest::default(), bytes, done: None };
        Self { plan, fill: Mutex::new(fill) }
    }

    /// Makes room for a column's plain rows.
    pub fn prepare(&self, column: usize, width: usize, pool: &Pool) {
        let mut fill = lock(&self.fill);
        // A batch that is done takes nothing more; `write` ignores what comes.
        if let Some(column) = fill.columns.get_mut(column) {
            column.plain.get_or_insert_with(|| pool.take(width * self.plan.rows as usize));
        }
    }

    /// Copies bytes of a column's plain rows to their place.
    pub fn write(&self, column: usize, at: usize, bytes: &[u8]) {
        let mut fill = lock(&self.fill);
        let plain = fill.columns.get_mut(column).and_then(|c| c.plain.as_mut());
        if let Some(place) = plain.and_then(|p| p.as_slice_mut().get_mut(at..at + bytes.len())) {
            place.copy_from_slice(bytes);
        }
    }

    fn finish(
        &self,
        columns: Vec<Column>,
        digest: OrderDigest,
        schema: &SchemaRef,
        pool: &Pool,
    ) -> Result<Batch> {
        let rows = self.plan.rows as usize;
        let planned = self.plan.digest(0..self.plan.rows);
        if digest != planned {
            return Err(Error::corrupt(format!(
                "epoch {} step {}: the rows that arrived have digest {digest}, the plan {planned}",
                self.plan.epoch, self.plan.step
            )));
        }
        let mut arrays = Vec::with_capacity(columns.len());
        for (column, field) in columns.into_iter().zip(schema.fields()) {
            let width = plain_width(field.data_type()).unwrap_or(0);
            let plain = match column.plain {
                Some(plain) => Some(plain_array(field.data_type(), rows, pool.share(plain, rows * width))?),
                None => None,
            };
            arrays.push(collate(plain, column.odd, rows).map_err(|e| e.context(field.name()))?);
        }
        let columns = RecordBatch::try_new(schema.clone(), arrays)
            .map_err(|e| Error::corrupt(format!("epoch {} step {}: {e}", self.plan.epoch, self.plan.step)))?;
        let StepPlan { epoch, step, samples_done, real, ref samples, ref mask, .. } = self.plan;
        let (samples, mask, real_rows) = (samples.clone(), mask.clone(), real as usize);
        Ok(Batch { epoch, step, samples_done, samples, mask, real_rows, digest, columns })
    }
}

/// Bytes of a batch's data: what its buffers hold, not what they could hold.
fn payload_bytes(batch: &Batch) -> u64 {
    let size =
        |c: &ArrayRef| c.to_data().get_slice_memory_size().unwrap_or_else(|_| c.get_array_memory_size());
    batch.columns.columns().iter().map(size).sum::<usize>() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::POOLED_BYTES;
    use arrow::datatypes::{DataType, Field, Schema};
    use forebay_proto::manifest::{Digest, Manifest, Object, SegmentSize};
    use forebay_proto::plan::steps::{Cut, Ending, Layout};
    use forebay_proto::plan::{Order, PlanKey, Shuffle};
    use std::time::Duration;

    const ROWS: u32 = 10;

    fn epoch() -> Epoch {
        epoch_of(200, ROWS.into())
    }

    fn epoch_of(rows: u64, global_batch: u64) -> Epoch {
        let object = Object { key: "a".into(), etag: "e".into(), size: 1 };
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
        let window = Window::new(schema, pool.clone(), 16 * u64::from(ROWS), 1.0);
        let mut opened = 0;
        while let Opened::Open(assembly) = window.try_open(&epoch, opened).unwrap() {
            assembly.prepare(0, 1, &pool);
            assembly.write(0, 0, &[7; ROWS as usize]);
            let digest = assembly.plan.digest(0..ROWS);
            window.commit(&assembly, Commit { rows: ROWS, digest, odd: Vec::new() }).unwrap();
            opened += 1;
        }
        assert_eq!((opened, window.bytes()), (16, 160));
        let next = window.open(&epoch, 16);
        tokio::pin!(next);
        let moment = Duration::from_millis(20);
        assert!(tokio::time::timeout(moment, &mut next).await.is_err(), "there is no room");
        assert_eq!(window.take(0).await.unwrap().rows(), ROWS as usize);
        assert!(tokio::time::timeout(moment, &mut next).await.is_err(), "too little");
        window.take(1).await.unwrap();
        assert!(next.await.unwrap().is_some());
        assert!(matches!(window.try_open(&epoch, 1), Ok(Opened::Past)));
    }

    #[test]
    fn nothing_is_planned_without_room_nor_freed_by_the_taker() {
        let rows = 2 * POOLED_BYTES / size_of::<u64>();
        let (epoch, pool) = (epoch_of(4 * rows as u64, rows as u64), Pool::new(1 << 30));
        let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::UInt8, false)]));
        let window = Window::new(schema, pool.clone(), 1, 1.0);
        let Ok(Opened::Open(first)) = window.try_open(&epoch, 0) else { panic!("the first is always open") };
        assert!(matches!(window.try_open(&epoch, 1), Ok(Opened::Full)));
        assert_eq!(pool.idle_bytes(), 0, "a plan that was thrown away leaves its sample numbers in the pool");
        assert!(window.try_take(0).unwrap().is_none());
        assert_eq!(window.wanted(), None, "who only looks does not wait");
        first.prepare(0, 1, &pool);
        let digest = first.plan.digest(0..rows as u32);
        window.commit(&first, Commit { rows: rows as u32, digest, odd: Vec::new() }).unwrap();
        let (past, samples) = (Arc::downgrade(&first), window.try_take(0).unwrap().unwrap().samples);
        drop(first);
        assert!(past.upgrade().is_some(), "the taker has left it to the streams");
        assert!(matches!(window.try_open(&epoch, 0), Ok(Opened::Past)));
        assert!(past.upgrade().is_none());
        assert_eq!(samples.len(), rows, "what the batch holds lives on");
    }
}
