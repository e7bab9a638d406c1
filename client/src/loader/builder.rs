//! One batch being filled by several streams.
//!
//! Streams copy plain rows, and values that come in order, straight to their place, each column under a lock
//! of its own, and then commit them. Packed rows may become columns on that way. The rows that complete the
//! batch put it together, outside of all locks: taking other batches meanwhile does not wait.

use super::batch::Batch;
use super::byte_column::{ByteColumn, offset_bytes};
use super::packed_rows::{PackedRows, Together};
use super::sampler::StepPlan;
use crate::content::content_digest;
use arrow::array::{Array, ArrayRef, MutableArrayData, RecordBatch, make_array};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use forebay_dataset::pool::{Pool, PoolBuffer};
use forebay_dataset::stream::gather::{concat, plain_array, plain_width};
use forebay_dataset::{PackedSchema, RowLayout, SplitRows};
use forebay_proto::digest::OrderDigest;
use forebay_proto::{Error, Result};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;

/// A batch that streams fill; the last of its rows makes it a [`Batch`].
#[derive(Debug)]
pub(crate) struct BatchBuilder {
    pub plan: StepPlan,
    /// `None` once the batch was put together.
    columns: Vec<Mutex<Option<ColumnBuilder>>>,
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct ColumnBuilder {
    plain: Option<PoolBuffer>,
    /// What has become of packed rows.
    packed: PackedRows,
    /// Values of strings or binaries that landed in order.
    bytes: ByteColumn,
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
#[derive(Debug, Default)]
pub(crate) struct Commit {
    pub rows: u32,
    pub digest: OrderDigest,
    /// Column, the batch's row, and the rows.
    pub odd: Vec<(usize, u32, ArrayRef)>,
    /// Column, and the lengths of the values that landed there.
    pub landed: Vec<(usize, Vec<usize>)>,
    /// The batch's rows whose packed rows, if there are any, were not split as they came.
    pub together: Range<u32>,
}

/// Consecutive rows of a message that go to consecutive rows of a batch.
#[derive(Debug, Clone)]
pub(crate) struct RowCopy {
    pub builder: Arc<BatchBuilder>,
    pub message_row: u32,
    pub batch_row: u32,
    pub rows: u32,
}

/// What a step counts for in the byte budget: estimated until it is complete, then exactly.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Completed {
    pub estimated_bytes: u64,
    pub bytes: u64,
    /// Those of its values alone.
    pub value_bytes: u64,
}

impl RowCopy {
    /// The digest of its samples according to the plan.
    pub fn digest(&self) -> OrderDigest {
        self.builder.plan.digest(self.batch_row..self.batch_row + self.rows)
    }

    /// Adds `next` if it continues these rows on both sides.
    pub fn extend(&mut self, next: &RowCopy) -> bool {
        let continues = Arc::ptr_eq(&self.builder, &next.builder)
            && self.message_row + self.rows == next.message_row
            && self.batch_row + self.rows == next.batch_row;
        if continues {
            self.rows += next.rows;
        }
        continues
    }
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

    /// Copies bytes of a column's plain rows to their place.
    pub fn write(&self, column: usize, at: usize, bytes: &[u8]) {
        self.fill(column, at, bytes.len(), |place| place.copy_from_slice(bytes));
    }

    /// Has the bytes of a column's plain rows written to their place. A batch that is complete has none. True
    /// if there was one.
    pub fn fill(&self, column: usize, at: usize, bytes: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        let mut column = self.columns[column].lock();
        let plain = column.as_mut().and_then(|column| column.plain.as_mut());
        plain.and_then(|p| p.as_slice_mut().get_mut(at..at + bytes)).map(fill).is_some()
    }

    /// Has packed rows split into their columns. A batch that is complete has none. True if there was one.
    pub fn split(&self, layout: &RowLayout, pool: &Pool, split: impl FnOnce(&mut SplitRows<'_>)) -> bool {
        let mut packed = self.columns[0].lock();
        let rows = self.plan.rows as usize;
        packed.as_mut().map(|column| split(&mut column.packed.columns(layout, rows, pool))).is_some()
    }

    /// Claims the place behind a column's last value for a message whose rows begin at `row`; see
    /// [`ByteColumn::claim`].
    pub fn claim(&self, column: usize, row: u32) -> bool {
        self.columns[column].lock().as_mut().is_some_and(|column| column.bytes.claim(row))
    }

    /// Gives a claimed place back.
    pub fn release(&self, column: usize) {
        if let Some(column) = &mut *self.columns[column].lock() {
            column.bytes.release();
        }
    }

    /// Makes room at a claimed place for `bytes` of `rows` rows, and returns where they begin.
    pub fn reserve(&self, column: usize, bytes: usize, rows: usize, pool: &Pool) -> usize {
        let all = self.plan.rows as usize;
        self.columns[column].lock().as_mut().map_or(0, |column| column.bytes.reserve(bytes, rows, all, pool))
    }

    /// Has bytes of values written to a place that was reserved. A batch that is complete has none. True if
    /// there was one.
    pub fn land(&self, column: usize, at: usize, bytes: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        let mut column = self.columns[column].lock();
        column.as_mut().and_then(|column| column.bytes.place(at, bytes)).map(fill).is_some()
    }

    /// Adds rows that have arrived whole. If they were the last, puts the batch together and says what it
    /// counts for.
    pub fn commit(&self, commit: Commit, schema: &PackedSchema, pool: &Pool) -> Result<Option<Completed>> {
        for (column, row, array) in commit.odd {
            if let Some(column) = &mut *self.columns[column].lock() {
                column.odd.push((row, array));
            }
        }
        for (column, lengths) in commit.landed {
            if let Some(column) = &mut *self.columns[column].lock() {
                column.bytes.append(lengths.into_iter());
            }
        }
        if schema.layout.is_some()
            && !commit.together.is_empty()
            && let Some(column) = &mut *self.columns[0].lock()
        {
            column.packed.push_together(commit.together);
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
        let value_bytes = batch.bytes() as u64;
        let bytes = value_bytes + StepPlan::bytes_of(self.plan.rows.into());
        let mut progress = self.progress.lock();
        let estimated_bytes = std::mem::replace(&mut progress.budget_bytes, bytes);
        progress.batch = Some(batch);
        Ok(Some(Completed { estimated_bytes, bytes, value_bytes }))
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
        let (mut narrow, mut others) = (Vec::new(), Vec::with_capacity(self.columns.len()));
        for (at, (column, field)) in self.columns.iter().zip(schema.physical.fields()).enumerate() {
            // Rows that come late find no column any more, and nothing of them is written.
            let filled = column.lock().take().unwrap_or_default();
            if at == 0 && schema.layout.is_some() {
                let ColumnBuilder { plain, packed, odd, .. } = filled;
                let columns = packed.finish(Together { plain, odd }, schema, rows, pool);
                narrow = columns.map_err(|e| e.context(field.name()))?;
                continue;
            }
            let array = filled.finish(field.data_type(), rows, pool);
            others.push(array.map_err(|e| e.context(field.name()))?);
        }
        let columns = RecordBatch::try_new(schema.schema.clone(), schema.columns(narrow, others))
            .map_err(|e| Error::corrupt(format!("epoch {epoch} step {step}: {e}")))?;
        let StepPlan { samples_done, real, ref samples, ref mask, ref positions, .. } = self.plan;
        let content = positions.as_ref().map(|positions| content_digest(&columns, positions, mask.as_ref()));
        let content = content.transpose()?;
        let (sample_ids, mask, real_rows) = (samples.clone(), mask.clone(), real as usize);
        let sequences = self.plan.sequences;
        Ok(Batch {
            epoch,
            step,
            samples_done,
            sample_ids,
            mask,
            real_rows,
            digest,
            content,
            columns,
            sequences,
        })
    }
}

impl ColumnBuilder {
    /// The column of a batch of `rows` rows.
    fn finish(self, data_type: &DataType, rows: usize, pool: &Pool) -> Result<ArrayRef> {
        let Self { plain, bytes, mut odd, .. } = self;
        match bytes.finish(data_type, pool).map_err(not_put_together)? {
            // They lie in memory that is the batch's own already.
            Some(landed) if landed.len() == rows && plain.is_none() && odd.is_empty() => return Ok(landed),
            Some(landed) => odd.push((0, landed)),
            None => {}
        }
        let width = plain_width(data_type).unwrap_or(0);
        let plain = match plain {
            Some(plain) => Some(plain_array(data_type, rows, pool.share(plain, rows * width))?),
            None => None,
        };
        collate(plain, odd, rows, pool)
    }
}

/// Why there is no column. More bytes than its offsets can say are no damage.
fn not_put_together(e: ArrowError) -> Error {
    match e {
        ArrowError::OffsetOverflowError(bytes) => Error::invalid(format!(
            "a batch has {bytes} bytes of this column, whose 32-bit offsets allow {}: use a smaller batch",
            i32::MAX
        )),
        e => Error::corrupt(format!("a batch cannot be put together: {e}")),
    }
}

/// The same values in memory of their own.
fn copied(array: &ArrayRef) -> Result<ArrayRef> {
    let data = array.to_data();
    let mut copy = MutableArrayData::new(vec![&data], false, data.len());
    copy.try_extend(0, 0, data.len()).map_err(not_put_together)?;
    Ok(make_array(copy.freeze()))
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
        // Memory of a message. These are promised to lie in the batch's own.
        let t = only.data_type();
        let is_own = plain_width(t).is_some() || offset_bytes(t).is_some();
        return if is_own { copied(only) } else { Ok(only.clone()) };
    }
    let pieces: Vec<&dyn Array> = pieces.iter().map(AsRef::as_ref).collect();
    concat(&pieces, pool).map_err(not_put_together)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loader::sampler::Epoch;
    use arrow::array::{AsArray, BinaryArray};
    use arrow::datatypes::{Field, Schema};
    use forebay_proto::Kind;
    use forebay_proto::manifest::{Digest, Manifest, Object, SegmentSize};
    use forebay_proto::plan::steps::{Cut, Ending, Layout};
    use forebay_proto::plan::{Order, PlanKey, Shuffle};

    const ROWS: u32 = 4;

    /// A batch of one column of binaries, and what its messages look like.
    fn batch(pool: &Pool) -> (BatchBuilder, PackedSchema) {
        let rows = u64::from(ROWS);
        let object = Object { key: "a".into(), etag: "e".into(), size: 1, ..Default::default() };
        let size = SegmentSize { object: 0, row_groups: 1, rows, decoded_bytes: 1 };
        let manifest = Manifest::new("file:///d", 1, vec![], vec![object], &[size]).unwrap();
        let key = PlanKey { manifest: Digest(1), seed: 2, epoch: 3, shuffle: Shuffle::None };
        let cut = Cut {
            first_position: 0,
            global_batch: rows,
            world: 1,
            ending: Ending::Pad,
            layout: Layout::Segment,
        };
        let epoch = Epoch::new(Arc::new(manifest), Order::of_segments(&[rows], key), cut, 0, 0).unwrap();
        let schema = Arc::new(Schema::new(vec![Field::new("blob", DataType::Binary, false)]));
        (BatchBuilder::new(epoch.plan(0, pool).unwrap(), 1, 0), PackedSchema::new(schema))
    }

    /// All rows of the batch, whose values have landed and are of this length each.
    fn landed(builder: &BatchBuilder, length: usize) -> Commit {
        let digest = builder.plan.digest(0..ROWS);
        Commit { rows: ROWS, digest, landed: vec![(0, vec![length; ROWS as usize])], ..Commit::default() }
    }

    #[test]
    fn a_column_that_landed_whole_is_not_copied_once_more() {
        const LENGTH: usize = 256 << 10;
        let pool = Pool::new(64 << 20);
        let (builder, schema) = batch(&pool);
        assert!(builder.claim(0, 0));
        let bytes = LENGTH * ROWS as usize;
        let at = builder.reserve(0, bytes, ROWS as usize, &pool);
        let mut landed_at = std::ptr::null();
        assert!(builder.land(0, at, bytes, |place| {
            place.fill(7);
            landed_at = place.as_ptr();
        }));
        builder.commit(landed(&builder, LENGTH), &schema, &pool).unwrap();
        assert!(!builder.land(0, at, bytes, |place| place.fill(8)), "rows that come late change nothing");
        builder.release(0);
        let (batch, _) = builder.take().unwrap();
        let (values, wanted) = (batch.columns.column(0).as_binary::<i32>().clone(), vec![7; LENGTH]);
        assert!(values.iter().all(|value| value == Some(&wanted[..])));
        assert_eq!(values.value_data().as_ptr(), landed_at, "the memory in which the values landed");
        let is_back = || pool.take(bytes).as_slice().as_ptr() == landed_at;
        drop((batch, builder));
        assert!(!is_back(), "an array of it is left");
        drop(values);
        assert!(is_back(), "the pool has it again");
    }

    #[test]
    fn a_column_of_more_bytes_than_its_offsets_allow_is_advice_not_damage() {
        let pool = Pool::new(0);
        let (builder, schema) = batch(&pool);
        // Only the lengths are told: nothing has as many bytes here.
        let e = builder.commit(landed(&builder, 1 << 30), &schema, &pool).unwrap_err();
        assert_eq!(e.kind, Kind::Invalid, "{e}");
        assert!(e.message.starts_with("blob: a batch has 4294967296 bytes"), "{e}");
        assert!(e.message.ends_with("use a smaller batch"), "{e}");
        // The same where rows came in pieces, here of 1 MiB.
        let piece: ArrayRef = Arc::new(BinaryArray::from_iter_values([vec![0u8; 1 << 20]]));
        let odd = (0..2049).map(|row| (row, piece.clone())).collect();
        let e = collate(None, odd, 2049, &pool).unwrap_err();
        assert_eq!(e.kind, Kind::Invalid, "{e}");
        assert!(e.message.contains("has 2148532224 bytes") && e.message.contains("smaller batch"), "{e}");
    }
}
