//! Decoding: the fetched column chunks of a segment become one record batch.
//!
//! Runs on a blocking thread. Whatever the bytes are, the answer is a batch of the expected type and row count or an
//! error: panics of the decoders are caught.

mod levels;
mod lists;

use crate::fetch::Run;
use crate::footer::Footer;
use crate::schema::retype;
use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::concat;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use bytes::{Buf, Bytes};
use forebay_proto::{Error, Result};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What to decode.
pub(crate) struct Task {
    pub uri: String,
    pub size: u64,
    pub footer: Arc<Footer>,
    pub groups: Range<usize>,
    /// Ascending.
    pub columns: Vec<usize>,
    pub rows: u64,
    /// Of the projected columns.
    pub schema: SchemaRef,
    /// Read full lists the fast way.
    pub lists: bool,
}

/// Decodes `task` from `runs`, which hold all its chunks.
pub(crate) fn decode(task: &Task, runs: Vec<Run>) -> Result<RecordBatch> {
    let chunks = Arc::new(Chunks { size: task.size, runs });
    match catch_unwind(AssertUnwindSafe(|| task.run(&chunks))) {
        Ok(Ok(batch)) if batch.num_rows() as u64 == task.rows => Ok(batch),
        Ok(Ok(batch)) => {
            Err(task.corrupt(&format!("{} rows decoded, {} expected", batch.num_rows(), task.rows)))
        }
        Ok(Err(e)) => Err(task.fault(&e)),
        Err(panic) => {
            let why = panic.downcast_ref::<String>().map(String::as_str);
            Err(task.corrupt(why.or(panic.downcast_ref::<&str>().copied()).unwrap_or("the decoder gave up")))
        }
    }
}

impl Task {
    fn run(&self, chunks: &Arc<Chunks>) -> Result<RecordBatch, ParquetError> {
        let mut columns = Vec::with_capacity(self.columns.len());
        for i in 0..self.columns.len() {
            columns.push(if self.lists { lists::read(self, chunks, i)? } else { None });
        }
        let rest: Vec<_> =
            columns.iter().zip(&self.columns).filter(|(c, _)| c.is_none()).map(|(_, i)| *i).collect();
        let mut rest = if rest.is_empty() { Vec::new() } else { self.general(chunks, &rest)? }.into_iter();
        let columns = columns.into_iter().filter_map(|c| c.or_else(|| rest.next())).zip(self.schema.fields());
        let columns = columns.map(|(c, f)| Ok(exact(retype(c, f.data_type())?)));
        let columns = columns.collect::<Result<Vec<_>, ArrowError>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows as usize));
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?)
    }

    /// The given columns by the parquet crate's reader. One batch of all rows: anything less would be copied once
    /// more when the batches are joined.
    fn general(&self, chunks: &Arc<Chunks>, columns: &[usize]) -> Result<Vec<ArrayRef>, ParquetError> {
        let mask = ProjectionMask::roots(self.footer.arrow.parquet_schema(), columns.iter().copied());
        let mut reader = ParquetRecordBatchReaderBuilder::new_with_metadata(
            Shared(chunks.clone()),
            self.footer.arrow.clone(),
        )
        .with_row_groups(self.groups.clone().collect())
        .with_projection(mask)
        .with_batch_size(self.rows as usize)
        .build()?;
        let mut parts: Vec<Vec<ArrayRef>> = vec![Vec::new(); columns.len()];
        for batch in &mut reader {
            for (part, column) in parts.iter_mut().zip(batch?.columns()) {
                part.push(column.clone());
            }
        }
        let joined = parts.into_iter().map(|mut part| match part.len() {
            1 => Ok(part.remove(0)),
            _ => concat(&part.iter().map(AsRef::as_ref).collect::<Vec<_>>()),
        });
        Ok(joined.collect::<Result<Vec<_>, _>>()?)
    }

    fn fault(&self, e: &ParquetError) -> Error {
        let text = e.to_string();
        let unsupported = matches!(e, ParquetError::NYI(_)) || text.contains("not supported");
        if unsupported {
            return Error::invalid(format!("{}: cannot be read: {text}", self.uri));
        }
        if text.to_ascii_lowercase().contains("overflow") {
            return Error::invalid(format!(
                "{}: a column of {} rows exceeds 2 GiB: write it with smaller row groups or as a large type ({text})",
                self.uri, self.rows
            ));
        }
        self.corrupt(&text)
    }

    fn corrupt(&self, why: &str) -> Error {
        let Range { start, end } = self.groups;
        Error::corrupt(format!("{}: row groups {start}..{end} do not decode: {why}", self.uri))
    }
}

/// The array with buffers of its own size.
fn exact(mut array: ArrayRef) -> ArrayRef {
    if let Some(a) = Arc::get_mut(&mut array) {
        a.shrink_to_fit();
    }
    array
}

/// The fetched parts of an object, read as if they were the whole.
pub(crate) struct Chunks {
    size: u64,
    runs: Vec<Run>,
}

struct Shared(Arc<Chunks>);

impl Length for Shared {
    fn len(&self) -> u64 {
        self.0.size
    }
}

impl ChunkReader for Shared {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(self.0.from(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let bytes = self.0.from(start)?;
        match bytes.len() >= length {
            true => Ok(bytes.slice(..length)),
            false => Err(outside(start, length)),
        }
    }
}

impl Chunks {
    /// The bytes from `start` to the end of their run.
    fn from(&self, start: u64) -> Result<Bytes, ParquetError> {
        let after = self.runs.partition_point(|r| r.start <= start);
        let run = after.checked_sub(1).and_then(|i| self.runs.get(i)).ok_or_else(|| outside(start, 0))?;
        let offset = (start - run.start) as usize;
        match offset <= run.bytes.len() {
            true => Ok(run.bytes.slice(offset..)),
            false => Err(outside(start, 0)),
        }
    }
}

fn outside(start: u64, length: usize) -> ParquetError {
    ParquetError::EOF(format!("a page at {start} (+ {length}) lies outside its column chunk"))
}

#[cfg(test)]
mod tests;
