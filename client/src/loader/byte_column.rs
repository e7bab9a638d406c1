//! A batch's column of strings or binaries while it is filled. Values that arrive in the order of the rows
//! land one behind the other, each once, where the batch needs them.

use arrow::array::{ArrayRef, GenericByteArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{
    ArrowNativeType, BinaryType, ByteArrayType, DataType, LargeBinaryType, LargeUtf8Type, Utf8Type,
};
use arrow::error::ArrowError;
use forebay_dataset::pool::{Pool, PoolBuffer};
use std::sync::Arc;

/// Room beyond what the rows so far let expect: a part of that.
const SPARE_PART: usize = 8;

/// Room for the rows to come is this at most, or as much as those so far take: they may be the long ones.
const EXPECTED_BYTES_MAX: usize = 64 << 20;

/// Values of a batch's first rows.
#[derive(Debug, Default)]
pub(crate) struct ByteColumn {
    /// Where each value ends.
    ends: Vec<usize>,
    values: Option<PoolBuffer>,
    /// A message is about to land behind them.
    is_claimed: bool,
}

/// Bytes of an offset of a type whose values land; `None` for all other types.
pub(crate) fn offset_bytes(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::Binary | DataType::Utf8 => Some(4),
        DataType::LargeBinary | DataType::LargeUtf8 => Some(8),
        _ => None,
    }
}

impl ByteColumn {
    /// Claims the place behind the last value, for rows from `row` on. False if a row before it is missing,
    /// or another message has claimed the place.
    pub fn claim(&mut self, row: u32) -> bool {
        let is_free = !self.is_claimed && self.ends.len() == row as usize;
        self.is_claimed |= is_free;
        is_free
    }

    /// Gives the place back.
    pub fn release(&mut self) {
        self.is_claimed = false;
    }

    /// Makes room for `bytes` of the next `rows` of a batch that will have `all`. Returns where they begin.
    pub fn reserve(&mut self, bytes: usize, rows: usize, all: usize, pool: &Pool) -> usize {
        let start = self.bytes();
        let end = start + bytes;
        if self.values.as_ref().is_none_or(|values| values.len() < end) {
            let to_come = all.saturating_sub(self.ends.len() + rows);
            let expected = end as u128 * to_come as u128 / (self.ends.len() + rows).max(1) as u128;
            let expected = expected.min(end.max(EXPECTED_BYTES_MAX) as u128) as usize;
            let mut larger = pool.take(end + expected + expected / SPARE_PART);
            if let Some(values) = self.values.take() {
                larger.as_slice_mut()[..start].copy_from_slice(&values.as_slice()[..start]);
                drop(pool.share(values, start));
            }
            self.values = Some(larger);
        }
        start
    }

    /// A place that was reserved.
    pub fn place(&mut self, at: usize, bytes: usize) -> Option<&mut [u8]> {
        self.values.as_mut()?.as_slice_mut().get_mut(at..at + bytes)
    }

    /// The values of the next rows have landed, and have these lengths.
    pub fn append(&mut self, lengths: impl Iterator<Item = usize>) {
        let mut end = self.bytes();
        self.ends.extend(lengths.map(|length| {
            end += length;
            end
        }));
    }

    /// The rows so far; `None` if there are none.
    pub fn finish(self, data_type: &DataType, pool: &Pool) -> Result<Option<ArrayRef>, ArrowError> {
        if self.ends.is_empty() {
            return Ok(None);
        }
        match data_type {
            DataType::Utf8 => self.array::<Utf8Type>(pool),
            DataType::LargeUtf8 => self.array::<LargeUtf8Type>(pool),
            DataType::LargeBinary => self.array::<LargeBinaryType>(pool),
            _ => self.array::<BinaryType>(pool),
        }
        .map(Some)
    }

    fn array<T: ByteArrayType>(self, pool: &Pool) -> Result<ArrayRef, ArrowError> {
        let bytes = self.bytes();
        let overflows = || ArrowError::OffsetOverflowError(bytes);
        T::Offset::from_usize(bytes).ok_or_else(overflows)?;
        let offsets = std::iter::once(0).chain(self.ends).map(T::Offset::usize_as);
        let offsets = OffsetBuffer::new(offsets.collect::<Vec<_>>().into());
        let values = pool.share(self.values.unwrap_or_default(), bytes);
        Ok(Arc::new(GenericByteArray::<T>::try_new(offsets, values, None)?))
    }

    /// Bytes of the rows so far.
    fn bytes(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{AsArray, BinaryArray};

    fn write(column: &mut ByteColumn, at: usize, bytes: &[u8]) {
        column.place(at, bytes.len()).unwrap().copy_from_slice(bytes);
    }

    #[test]
    fn values_land_behind_each_other_in_a_buffer_that_grows() {
        let pool = Pool::new(64 << 20);
        let values: Vec<Vec<u8>> = (0..40u8).map(|i| vec![i; 1000 * usize::from(i)]).collect();
        let mut column = ByteColumn::default();
        for (number, four) in values.chunks(4).enumerate() {
            let row = 4 * number as u32;
            assert!(!column.claim(row + 1), "a row is missing");
            assert!(column.claim(row) && !column.claim(row), "one message at a time");
            let bytes = four.concat();
            // A message that breaks off leaves nothing.
            let at = column.reserve(bytes.len(), 4, values.len(), &pool);
            write(&mut column, at, &vec![0xee; bytes.len()]);
            column.release();
            assert!(column.claim(row));
            let at = column.reserve(bytes.len(), 4, values.len(), &pool);
            let (first, second) = bytes.split_at(bytes.len() / 3);
            write(&mut column, at, first);
            write(&mut column, at + first.len(), second);
            column.append(four.iter().map(Vec::len));
            column.release();
        }
        let array = column.finish(&DataType::Binary, &pool).unwrap().unwrap();
        assert_eq!(array.as_binary::<i32>(), &BinaryArray::from_iter_values(&values));
        assert!(ByteColumn::default().finish(&DataType::Utf8, &pool).unwrap().is_none());
    }

    #[test]
    fn a_long_first_row_makes_no_room_for_a_million_like_it() {
        let mut column = ByteColumn::default();
        assert_eq!(column.reserve(100 << 20, 1, 1_000_000, &Pool::new(0)), 0);
        let room = column.values.as_ref().unwrap().len();
        assert!((100 << 20..400 << 20).contains(&room), "{room} bytes");
        // A batch of 256 images gets all its room at once.
        let mut column = ByteColumn::default();
        column.reserve(1 << 20, 10, 256, &Pool::new(0));
        assert!(column.values.as_ref().unwrap().len() > 25 << 20);
    }

    #[test]
    fn bytes_that_are_no_text_are_an_error() {
        let pool = Pool::new(0);
        let mut column = ByteColumn::default();
        let at = column.reserve(2, 1, 1, &pool);
        write(&mut column, at, &[0xc3, 0x28]);
        column.append([2].into_iter());
        assert!(column.finish(&DataType::Utf8, &pool).unwrap_err().to_string().contains("UTF"));
    }
}
