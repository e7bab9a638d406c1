//! Decoding: the fetched column chunks of a segment become one record batch.
//!
//! Runs on blocking threads, one per core at most, columns apart from each other. Whatever the bytes are, the
//! result is a batch of the expected type and row count or an error: panics of the decoders are caught, and a
//! segment that turns out much larger than its footer says, or than memory allows, is given up.

mod hybrid;
mod leaf;
mod levels;
mod page_values;
mod whole;

use crate::off_thread::blocking;
use crate::parquet::chunks::Chunks;
use crate::parquet::column_origin::ColumnOrigin;
use crate::parquet::cost::{DecodeLimit, column_bytes, is_unbounded};
use crate::parquet::footer::RowGroups;
use crate::parquet::int96;
use crate::parquet::page_headers;
use crate::parquet::quiet::quietly;
use crate::partitions::constant;
use crate::priority::PrioritySemaphore;
use crate::schema::{retype, widen};
use crate::urgency::Urgency;
use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, new_null_array};
use arrow::compute::concat;
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::error::ArrowError;
use forebay_proto::{Error, Result};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ParquetRecordBatchReaderBuilder, RowSelection, RowSelectionPolicy,
};
use parquet::errors::ParquetError;
use rustix::time::{ClockId, clock_gettime};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The columns of a segment that are to be decoded.
pub(crate) struct DecodeTask {
    pub uri: String,
    pub part: RowGroups,
    /// The rows of its row group that are decoded, if they are not all; the footer then knows its pages.
    pub selection: Option<RowSelection>,
    /// Where each of the projected columns comes from.
    pub columns: Vec<ColumnOrigin>,
    /// Of the projected columns.
    pub schema: SchemaRef,
    /// With more decoded bytes than this it is given up.
    pub limit: DecodeLimit,
    /// Decoded bytes so far.
    pub decoded: AtomicU64,
}

/// Why columns do not decode.
#[derive(Debug)]
enum DecodeFault {
    /// A value has no place in its column's type: which.
    Unfit(String),
    /// More is decoded than these bytes, which memory allows.
    TooLarge(u64),
    /// The decoder gives them up.
    Undecodable(ParquetError),
}

impl From<ParquetError> for DecodeFault {
    fn from(e: ParquetError) -> Self {
        Self::Undecodable(e)
    }
}

impl From<ArrowError> for DecodeFault {
    fn from(e: ArrowError) -> Self {
        Self::Undecodable(e.into())
    }
}

/// Columns of less than this are not worth a thread of their own.
const HAND_BYTES: u64 = 4 << 20;

/// Decodes a segment, columns at once where `decoders` are free. A permit goes with the work, which goes on
/// to its end even if this future is dropped. Returns the processor time that it took, too.
///
/// # Errors
/// `Corrupt` or `Invalid` if these bytes do not decode, `Closed` if the runtime shuts down.
pub(crate) async fn decode(
    task: DecodeTask,
    chunks: Chunks,
    decoders: &Arc<PrioritySemaphore>,
    urgency: &Urgency,
) -> Result<(RecordBatch, Duration)> {
    let task = Arc::new(task);
    let hands = task.deal(decoders.limit() as usize);
    let work = hands.iter().map(|hand| async {
        let permit = decoders.acquire(1, urgency).await;
        let (task, chunks, hand) = (task.clone(), chunks.clone(), hand.clone());
        blocking(move || {
            let _permit = permit;
            let began = thread_time();
            let columns = columns(&task, &chunks, &hand)?;
            Ok((columns, thread_time().saturating_sub(began)))
        })
        .await
    });
    let (decoded, times): (Vec<_>, Vec<_>) = futures::future::try_join_all(work).await?.into_iter().unzip();
    let mut placed: Vec<_> = hands.into_iter().flatten().zip(decoded.into_iter().flatten()).collect();
    placed.sort_unstable_by_key(|(place, _)| *place);
    let batch = assemble(&task, placed.into_iter().map(|(_, column)| column).collect())?;
    Ok((batch, times.into_iter().sum()))
}

/// Processor time of this thread so far.
fn thread_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

/// Decodes columns of the task, named by their place in the projection; in the order they are named.
fn columns(task: &DecodeTask, chunks: &Chunks, places: &[usize]) -> Result<Vec<ArrayRef>> {
    match quietly(|| places.iter().map(|place| task.column(chunks, *place)).collect::<Result<Vec<_>, _>>()) {
        Ok(Ok(columns)) => Ok(columns),
        Ok(Err(e)) => Err(task.fault(&e)),
        Err(why) => Err(task.corrupt(&why)),
    }
}

/// The batch of all columns of the task.
fn assemble(task: &DecodeTask, columns: Vec<ArrayRef>) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(task.part.rows as usize));
    RecordBatch::try_new_with_options(task.schema.clone(), columns, &options)
        .map_err(|e| task.fault(&e.into()))
}

impl DecodeTask {
    /// Places in the projection, dealt out to at most `hands` that decode at once: the largest column first,
    /// always to the hand with least to do.
    fn deal(&self, hands: usize) -> Vec<Vec<usize>> {
        let footer = &self.part.footer;
        let bytes =
            |column| self.part.metadata().iter().map(|g| column_bytes(footer, g, column)).sum::<u64>();
        let mut sizes: Vec<_> = self.columns.iter().map(|c| c.own().map_or(0, bytes)).enumerate().collect();
        let total: u64 = sizes.iter().map(|(_, bytes)| bytes).sum();
        let hands = (total / HAND_BYTES).clamp(1, hands.max(1) as u64) as usize;
        sizes.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let mut dealt: Vec<(u64, Vec<usize>)> = vec![(0, Vec::new()); hands];
        for (place, bytes) in sizes {
            if let Some(least) = dealt.iter_mut().min_by_key(|(sum, _)| *sum) {
                least.0 += bytes;
                least.1.push(place);
            }
        }
        dealt.into_iter().map(|(_, places)| places).filter(|places| !places.is_empty()).collect()
    }

    /// The projected column of number `place`, in the type that the dataset has it in.
    fn column(&self, chunks: &Chunks, place: usize) -> Result<ArrayRef, DecodeFault> {
        let (field, rows) = (self.schema.field(place), self.part.rows as usize);
        let wanted = field.data_type();
        let column = match &self.columns[place] {
            ColumnOrigin::Own(column) => exact(retype(self.own(chunks, *column, field, wanted)?, wanted)?),
            ColumnOrigin::Adapted(column) => {
                let own = self.part.footer.schema.field(*column);
                adapt(field.name(), &self.own(chunks, *column, own, wanted)?, wanted)?
            }
            ColumnOrigin::Partition(value) => constant(value.as_deref(), wanted, rows).map_err(|e| {
                ParquetError::General(format!("not supported: column '{}': {e}", field.name()))
            })?,
            ColumnOrigin::Missing => new_null_array(wanted, rows),
        };
        self.decoded.fetch_add(column.get_array_memory_size() as u64, Relaxed);
        self.check(0)?;
        Ok(column)
    }

    /// A column of the object, which becomes `field`, of the same form; but 96-bit timestamps have the units
    /// of `wanted` already.
    fn own(
        &self,
        chunks: &Chunks,
        column: usize,
        field: &Field,
        wanted: &DataType,
    ) -> Result<ArrayRef, DecodeFault> {
        self.check_pages(chunks, column)?;
        let whole = match self.selection {
            None => whole::read(&self.part, chunks, column, field)?,
            Some(_) => None,
        };
        if let Some(column) = whole {
            return Ok(column);
        }
        let footer = &self.part.footer;
        let found = self.general(chunks, column, field, &footer.arrow)?;
        let Some(in_seconds) = int96::in_seconds(footer, column)? else { return Ok(found) };
        let seconds = self.general(chunks, column, field, &in_seconds)?;
        int96::joined(&found, &seconds, wanted)?.ok_or_else(|| {
            let name = field.name();
            let value = "a timestamp of 96 bits";
            DecodeFault::Unfit(format!("column '{name}': {value} does not fit the dataset's type {wanted}"))
        })
    }

    /// An error if pages of a column claim more than the footer says.
    fn check_pages(&self, chunks: &Chunks, column: usize) -> Result<(), ParquetError> {
        let footer = &self.part.footer;
        // Where rows are selected, its only row group has an index of its pages.
        let index = footer.arrow.metadata().page_index().filter(|_| self.selection.is_some());
        let leaves = footer.leaves.get(column).cloned().unwrap_or_default();
        for group in self.part.metadata() {
            for (leaf, chunk) in leaves.clone().zip(footer.chunks(group, column)) {
                match index.and_then(|index| index.page_locations(0, leaf)) {
                    Some(pages) => page_headers::check_located(chunks, chunk, pages)?,
                    None => page_headers::check(chunks, chunk)?,
                }
            }
        }
        Ok(())
    }

    /// A column by the parquet crate's reader, which `arrow` tells the types. One batch of all rows where its
    /// size is known: anything less is copied once more when the batches are joined.
    fn general(
        &self,
        chunks: &Chunks,
        column: usize,
        field: &Field,
        arrow: &ArrowReaderMetadata,
    ) -> Result<ArrayRef, DecodeFault> {
        let mask = ProjectionMask::roots(arrow.parquet_schema(), [column]);
        let rows = self.part.rows as usize;
        let batch_rows = if is_unbounded(field.data_type()) { rows / 16 + 1024 } else { rows };
        let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(chunks.clone(), arrow.clone())
            .with_row_groups(self.part.range.clone().collect())
            .with_projection(mask)
            .with_batch_size(batch_rows.min(rows));
        let mut reader = match &self.selection {
            // Any other policy reads the pages between, too.
            Some(rows) => {
                let reader = reader.with_row_selection_policy(RowSelectionPolicy::Selectors);
                reader.with_row_selection(rows.clone()).build()?
            }
            None => reader.build()?,
        };
        let (mut parts, mut bytes) = (Vec::new(), 0);
        for batch in &mut reader {
            let (_, mut columns, _) = batch?.into_parts();
            // Its buffers have room to spare.
            let part = exact(columns.remove(0));
            bytes += part.get_array_memory_size();
            self.check(bytes)?;
            parts.push(part);
        }
        match parts.len() {
            1 => Ok(parts.remove(0)),
            _ => Ok(concat(&parts.iter().map(AsRef::as_ref).collect::<Vec<_>>())?),
        }
    }

    /// An error if `more` bytes on top of those decoded are too many.
    fn check(&self, more: usize) -> Result<(), DecodeFault> {
        let all = self.decoded.load(Relaxed).saturating_add(more as u64);
        match self.limit {
            DecodeLimit::Announced(limit) if all > limit => Err(ParquetError::General(format!(
                "the columns hold more than the {limit} bytes that the footer announces, twice over"
            ))
            .into()),
            DecodeLimit::Memory(limit) if all > limit => Err(DecodeFault::TooLarge(limit)),
            _ => Ok(()),
        }
    }

    /// `Invalid` where the object cannot be read so, else `Corrupt`. Of what the decoder gives up only the
    /// text tells, and damaged bytes can look like either: only bytes that were fetched twice tell.
    fn fault(&self, e: &DecodeFault) -> Error {
        let e = match e {
            DecodeFault::Undecodable(e) => e,
            DecodeFault::Unfit(why) => {
                return Error::invalid(format!("{}: {why}: leave the column out with --columns", self.uri));
            }
            DecodeFault::TooLarge(limit) => {
                let range = &self.part.range;
                return Error::invalid(format!(
                    "{}: row groups {range:?}: its texts take more memory than is left for them, and the footer does not \
                     say how much: {limit} bytes are left by segment_memory_bytes (and on a cache node --memory-bytes): \
                     write it with smaller row groups, or allow more",
                    self.uri
                ));
            }
        };
        let text = e.to_string();
        if matches!(e, ParquetError::NYI(_)) || text.contains("not supported") {
            return Error::invalid(format!("{}: cannot be read: {text}", self.uri));
        }
        if text.to_ascii_lowercase().contains("overflow") {
            return Error::invalid(format!(
                "{}: a column of {} rows exceeds 2 GiB: write it with smaller row groups or as a large type ({text})",
                self.uri, self.part.rows
            ));
        }
        self.corrupt(&text)
    }

    fn corrupt(&self, why: &str) -> Error {
        let Range { start, end } = self.part.range;
        Error::corrupt(format!("{}: row groups {start}..{end} do not decode: {why}", self.uri))
    }
}

/// A column of another type, each value unchanged.
fn adapt(name: &str, own: &ArrayRef, wanted: &DataType) -> Result<ArrayRef, DecodeFault> {
    widen::exact(own, wanted).map_err(|e| {
        let value = format!("a value of {}", own.data_type());
        DecodeFault::Unfit(format!("column '{name}': {value} does not fit the dataset's type {wanted} ({e})"))
    })
}

/// The array with buffers of its own size.
fn exact(mut array: ArrayRef) -> ArrayRef {
    if let Some(a) = Arc::get_mut(&mut array) {
        a.shrink_to_fit();
    }
    array
}

#[cfg(test)]
mod tests;
