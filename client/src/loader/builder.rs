//! One batch being filled by several streams.
//!
//! Streams copy plain rows straight to their place, each column under a lock of its own, and then commit
//! them. The rows that complete the batch put it together, outside of all locks: taking other batches
//! meanwhile does not wait.

use super::batch::Batch;
use super::sampler::StepPlan;
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::buffer::MutableBuffer;
use forebay_dataset::PackedSchema;
use forebay_dataset::pool::Pool;
use forebay_dataset::stream::gather::{concat, plain_array, plain_width};
use forebay_proto::digest::OrderDigest;
use forebay_proto::{Error, Result};
use parking_lot::Mutex;

/// A batch under construction.
#[derive(Debug)]
pub(crate) struct BatchBuilder {
    pub plan: StepPlan,
    /// `None` once the batch was put together.
    columns: Vec<Mutex<Option<ColumnBuilder>>>,
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct ColumnBuilder {
    plain: Option<MutableBuffer>,
    /// First row and rows.
    odd: Vec<(u32, ArrayRef)>,
}

#[derive(Debug)]
struct Progress {
    missing: u32,
    digest: OrderDigest,
    /// What this step counts for in the byte budget.
    budget_bytes: u64,
    batch: Option<Batch>,
}

/// Rows of a batch that have arrived whole.
#[derive(Debug)]
pub(crate) struct Commit {
    pub rows: u32,
    pub digest: OrderDigest,
    /// Column, the batch's row, and the rows.
    pub odd: Vec<(usize, u32, ArrayRef)>,
}

/// What a step counts for in the byte budget: estimated until it is complete, then exactly.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Completed {
    pub estimated_bytes: u64,
    pub bytes: u64,
}

impl BatchBuilder {
    pub fn new(plan: StepPlan, columns: usize, budget_bytes: u64) -> Self {
        let columns = (0..columns).map(|_| Mutex::new(Some(ColumnBuilder::default()))).collect();
        let progress =
            Progress { missing: plan.rows, digest: OrderDigest::default(), budget_bytes, batch: None };
        Self { plan, columns, progress: Mutex::new(progress) }
    }

    /// Makes room for a column's plain rows.
    pub fn prepare(&self, column: usize, width: usize, pool: &Pool) {
        if let Some(column) = &mut *self.columns[column].lock() {
            column.plain.get_or_insert_with(|| pool.take(width * self.plan.rows as usize));
        }
    }

    /// Copies bytes of a column's plain rows to their place. A batch that is complete ignores them.
    pub fn write(&self, column: usize, at: usize, bytes: &[u8]) {
        let mut column = self.columns[column].lock();
        let plain = column.as_mut().and_then(|column| column.plain.as_mut());
        if let Some(place) = plain.and_then(|p| p.as_slice_mut().get_mut(at..at + bytes.len())) {
            place.copy_from_slice(bytes);
        }
    }

    /// Adds rows that have arrived whole. If they were the last, puts the batch together and says what it
    /// counts for.
    pub fn commit(&self, commit: Commit, schema: &PackedSchema, pool: &Pool) -> Result<Option<Completed>> {
        for (column, row, array) in commit.odd {
            if let Some(column) = &mut *self.columns[column].lock() {
                column.odd.push((row, array));
            }
        }
        let digest = {
            let mut progress = self.progress.lock();
            progress.missing = progress.missing.checked_sub(commit.rows).ok_or_else(|| {
                let (epoch, step) = (self.plan.epoch, self.plan.step);
                Error::corrupt(format!("epoch {epoch} step {step}: more rows arrived than the batch has"))
            })?;
            progress.digest.merge(commit.digest);
            if progress.missing > 0 {
                return Ok(None);
            }
            progress.digest
        };
        let batch = self.build(digest, schema, pool)?;
        let bytes = payload_bytes(&batch);
        let mut progress = self.progress.lock();
        let estimated_bytes = std::mem::replace(&mut progress.budget_bytes, bytes);
        progress.batch = Some(batch);
        Ok(Some(Completed { estimated_bytes, bytes }))
    }

    /// Whether all rows have arrived.
    pub fn is_complete(&self) -> bool {
        self.progress.lock().missing == 0
    }

    /// The batch and what it counts for, if it is complete and was not taken before.
    pub fn take(&self) -> Option<(Batch, u64)> {
        let mut progress = self.progress.lock();
        let batch = progress.batch.take()?;
        Some((batch, progress.budget_bytes))
    }

    fn build(&self, digest: OrderDigest, schema: &PackedSchema, pool: &Pool) -> Result<Batch> {
        let rows = self.plan.rows as usize;
        let (epoch, step) = (self.plan.epoch, self.plan.step);
        let planned = self.plan.digest(0..self.plan.rows);
        if digest != planned {
            return Err(Error::corrupt(format!(
                "epoch {epoch} step {step}: the rows that arrived have digest {digest}, the plan {planned}"
            )));
        }
        let mut arrays = Vec::with_capacity(self.columns.len());
        for (column, field) in self.columns.iter().zip(schema.physical.fields()) {
            let ColumnBuilder { plain, odd } = column.lock().take().unwrap_or_default();
            let width = plain_width(field.data_type()).unwrap_or(0);
            let plain = match plain {
                Some(plain) => Some(plain_array(field.data_type(), rows, pool.share(plain, rows * width))?),
                None => None,
            };
            arrays.push(collate(plain, odd, rows, pool).map_err(|e| e.context(field.name()))?);
        }
        let arrays = split(schema, arrays, pool)?;
        let columns = RecordBatch::try_new(schema.schema.clone(), arrays)
            .map_err(|e| Error::corrupt(format!("epoch {epoch} step {step}: {e}")))?;
        let StepPlan { samples_done, real, ref samples, ref mask, .. } = self.plan;
        let (sample_ids, mask, real_rows) = (samples.clone(), mask.clone(), real as usize);
        Ok(Batch { epoch, step, samples_done, sample_ids, mask, real_rows, digest, columns })
    }
}

/// The batch's columns out of those that were sent: packed rows become columns.
fn split(schema: &PackedSchema, mut sent: Vec<ArrayRef>, pool: &Pool) -> Result<Vec<ArrayRef>> {
    let Some(layout) = &schema.layout else { return Ok(sent) };
    let packed = sent.remove(0);
    let packed =
        packed.as_fixed_size_binary_opt().ok_or_else(|| Error::corrupt("there are no packed rows"))?;
    let (rows, bytes) = (packed.value_data(), layout.split_bytes(packed.len()));
    let mut values = pool.take(bytes);
    layout.split(rows, values.as_slice_mut());
    let narrow = layout.arrays(&schema.schema, rows, &pool.share(values, bytes))?;
    Ok(schema.columns(narrow, sent))
}

/// Bytes of a batch's data: what its buffers hold, not what they could hold.
fn payload_bytes(batch: &Batch) -> u64 {
    let size =
        |c: &ArrayRef| c.to_data().get_slice_memory_size().unwrap_or_else(|_| c.get_array_memory_size());
    batch.columns.columns().iter().map(size).sum::<usize>() as u64
}

/// One column of `rows` rows from its plain part, if any, and its odd stretches (first row, rows), which win.
fn collate(
    plain: Option<ArrayRef>,
    mut odd: Vec<(u32, ArrayRef)>,
    rows: usize,
    pool: &Pool,
) -> Result<ArrayRef> {
    if odd.is_empty() {
        return plain.ok_or_else(|| Error::corrupt("a column of a batch has no data"));
    }
    odd.sort_by_key(|(first, _)| *first);
    let mut pieces: Vec<ArrayRef> = Vec::with_capacity(odd.len());
    let mut at = 0;
    let gap = |from: usize, to: usize| match &plain {
        Some(plain) => Ok(plain.slice(from, to - from)),
        None => Err(Error::corrupt(format!("rows {from} to {to} of a batch have no data"))),
    };
    for (first, array) in odd {
        let first = first as usize;
        if first > at {
            pieces.push(gap(at, first)?);
        }
        at = first + array.len();
        pieces.push(array);
    }
    if at < rows {
        pieces.push(gap(at, rows)?);
    }
    if let [only] = &pieces[..] {
        return Ok(only.clone());
    }
    let pieces: Vec<&dyn Array> = pieces.iter().map(AsRef::as_ref).collect();
    concat(&pieces, pool).map_err(|e| Error::corrupt(format!("a batch cannot be put together: {e}")))
}
