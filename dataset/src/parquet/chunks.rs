//! The fetched ranges of an object, read by the parquet crate as if they were the whole of it.

use bytes::{Buf, Bytes};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};
use std::ops::Range;
use std::sync::Arc;

/// Consecutive bytes of an object.
pub(crate) struct FetchedRange {
    pub start: u64,
    pub bytes: Bytes,
}

/// Fetched ranges of an object of `size` bytes, in ascending order. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Chunks {
    pub size: u64,
    pub ranges: Arc<[FetchedRange]>,
}

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.size
    }
}

impl ChunkReader for Chunks {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(self.from(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let bytes = self.from(start)?;
        match bytes.len() >= length {
            true => Ok(bytes.slice(..length)),
            false => Err(outside(start, length)),
        }
    }
}

impl Chunks {
    /// The bytes of a range that was fetched.
    pub(super) fn bytes(&self, range: Range<u64>) -> Result<Bytes, ParquetError> {
        self.get_bytes(range.start, (range.end - range.start) as usize)
    }

    /// The bytes from `start` to the end of their range.
    pub(super) fn from(&self, start: u64) -> Result<Bytes, ParquetError> {
        let after = self.ranges.partition_point(|r| r.start <= start);
        let range = after.checked_sub(1).and_then(|i| self.ranges.get(i)).ok_or_else(|| outside(start, 0))?;
        let offset = (start - range.start) as usize;
        match offset <= range.bytes.len() {
            true => Ok(range.bytes.slice(offset..)),
            false => Err(outside(start, 0)),
        }
    }
}

fn outside(start: u64, length: usize) -> ParquetError {
    ParquetError::EOF(format!("a page at {start} (+ {length}) lies outside its column chunk"))
}
