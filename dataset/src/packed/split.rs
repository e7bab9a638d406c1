//! From packed rows to columns and back, a few rows at a time, so that these stay in the processor's cache.

use super::layout::{PackedColumn, RowLayout};
use super::transpose;
use arrow::array::{ArrayRef, FixedSizeBinaryArray, PrimitiveArray, downcast_primitive};
use arrow::buffer::{BooleanBuffer, Buffer, MutableBuffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Schema};
use arrow::error::ArrowError;
use forebay_proto::{Error, Result};
use std::sync::Arc;

/// Rows that are split or packed before the next column's turn.
pub(super) const TILE_ROWS: usize = 64;

/// Bytes of rows that lie in the processor's first cache beside the columns that they become.
const TILE_BYTES: usize = 16 << 10;

/// Rows that are split in the processor's registers at once.
const BLOCK_ROWS: usize = 4;

/// Each column's values begin at a multiple of this.
const ALIGNMENT: usize = 64;

/// The columns of a number of rows, while packed rows are split into them.
#[derive(Debug)]
pub struct SplitRows<'a> {
    layout: &'a RowLayout,
    /// The values of each column.
    columns: Vec<&'a mut [u8]>,
    /// For each row the bits that tell nulls.
    valid: &'a mut [u8],
}

impl RowLayout {
    /// Bytes that the columns of `rows` rows take, split, and behind them the bits that tell nulls.
    pub fn split_bytes(&self, rows: usize) -> usize {
        self.values_bytes(rows) + self.valid_bytes() * rows
    }

    /// Bytes of packed rows that are best split at a time.
    pub fn tile_bytes(&self) -> usize {
        let rows = (TILE_BYTES / self.width.max(1)).clamp(BLOCK_ROWS, TILE_ROWS);
        rows / BLOCK_ROWS * BLOCK_ROWS * self.width
    }

    /// Bytes of the columns alone.
    fn values_bytes(&self, rows: usize) -> usize {
        (0..self.columns.len()).map(|at| self.column_bytes(at, rows)).sum()
    }

    /// Bytes of a row that tell nulls.
    fn valid_bytes(&self) -> usize {
        self.width - self.validity
    }

    /// Bytes from the beginning of a column's values to the next's. Columns of one width lie side by side, so
    /// that several of them can be handed over as one piece of memory.
    fn column_bytes(&self, at: usize, rows: usize) -> usize {
        let width = self.columns[at].width;
        let bytes = width * rows;
        let is_beside = self.columns.get(at + 1).is_some_and(|next| next.width == width);
        match is_beside && bytes.is_multiple_of(ALIGNMENT) {
            true => bytes,
            false => bytes.next_multiple_of(ALIGNMENT) + ALIGNMENT,
        }
    }

    /// The places in `values` where the columns of `count` rows go, to be written in any order.
    ///
    /// # Panics
    /// If `values` is shorter than [`RowLayout::split_bytes`].
    pub fn split<'a>(&'a self, count: usize, values: &'a mut [u8]) -> SplitRows<'a> {
        let mut columns = Vec::with_capacity(self.columns.len());
        let mut rest = values;
        for (at, column) in self.columns.iter().enumerate() {
            let (values, after) = rest.split_at_mut(self.column_bytes(at, count));
            columns.push(&mut values[..column.width * count]);
            rest = after;
        }
        SplitRows { layout: self, columns, valid: &mut rest[..self.valid_bytes() * count] }
    }

    /// Splits rows that are the columns' from row `first` on.
    fn split_tile(&self, rows: &[u8], first: usize, values: &mut [&mut [u8]]) {
        let mut c = 0;
        while c < self.columns.len() {
            let block = &self.columns[c..];
            let (columns, done) = transpose::split(block, rows, self.width, first, &mut values[c..]);
            let rest = &rows[done * self.width..];
            if !rest.is_empty() {
                for (column, values) in block[..columns].iter().zip(&mut values[c..]) {
                    let values = &mut values[(first + done) * column.width..];
                    put(rest, self.width, (column.offset, column.width), values);
                }
            }
            c += columns;
        }
    }

    /// The columns of `count` rows over what was written by [`RowLayout::split`]. `schema` is the one that
    /// the layout is of.
    pub fn arrays(&self, schema: &Schema, count: usize, values: &Buffer) -> Result<Vec<ArrayRef>> {
        let valid = &values[self.values_bytes(count)..][..self.valid_bytes() * count];
        let all_valid = self.all_valid(valid);
        let (mut start, mut arrays) = (0, Vec::with_capacity(self.columns.len()));
        for (at, column) in self.columns.iter().enumerate() {
            let data_type = schema.field(column.column).data_type();
            let values = values.slice_with_length(start, column.width * count);
            let nulls = column.nulls(valid, self, &all_valid);
            arrays.push(array(data_type, values, nulls).map_err(|e| {
                Error::corrupt(format!("a packed column of {data_type} cannot be put together: {e}"))
            })?);
            start += self.column_bytes(at, count);
        }
        Ok(arrays)
    }

    /// The columns of packed rows, in memory of their own.
    pub fn unpack(&self, schema: &Schema, rows: &[u8]) -> Result<Vec<ArrayRef>> {
        let count = rows.len() / self.width;
        let mut values = MutableBuffer::from_len_zeroed(self.split_bytes(count));
        self.split(count, values.as_slice_mut()).write(0, rows);
        self.arrays(schema, count, &values.into())
    }

    /// The bits that tell nulls, of all rows together: set where no row has a null.
    fn all_valid(&self, valid: &[u8]) -> Vec<u8> {
        let and = |all: &mut [u8], bits: &[u8]| all.iter_mut().zip(bits).for_each(|(all, bits)| *all &= bits);
        let bytes = self.valid_bytes();
        let mut all = vec![0xff; bytes];
        if bytes > 0 {
            // Many rows at once, as the processor has wide registers.
            let mut tile = vec![0xff; bytes * TILE_ROWS];
            valid.chunks(tile.len()).for_each(|bits| and(&mut tile, bits));
            tile.chunks_exact(bytes).for_each(|bits| and(&mut all, bits));
        }
        all
    }
}

impl SplitRows<'_> {
    /// Splits packed rows, which become the columns' rows from `first` on.
    ///
    /// # Panics
    /// If they are not whole rows, or there are not as many in the columns.
    pub fn write(&mut self, first: usize, rows: &[u8]) {
        let RowLayout { width, validity, .. } = *self.layout;
        assert!(rows.len().is_multiple_of(width), "whole rows");
        let bits = self.layout.valid_bytes();
        for (tile, rows) in rows.chunks(TILE_ROWS * width).enumerate() {
            let first = first + tile * TILE_ROWS;
            self.layout.split_tile(rows, first, &mut self.columns);
            if bits > 0 {
                put(rows, width, (validity, bits), &mut self.valid[first * bits..]);
            }
        }
    }
}

/// A narrow column over its values. Made without `ArrayData`: a batch may have many columns and few rows.
fn array(data_type: &DataType, values: Buffer, nulls: Option<NullBuffer>) -> Result<ArrayRef, ArrowError> {
    macro_rules! primitive {
        ($of:ty) => {{
            let array = PrimitiveArray::<$of>::try_new(ScalarBuffer::from(values), nulls)?;
            Ok(Arc::new(array.with_data_type(data_type.clone())))
        }};
    }
    downcast_primitive! {
        data_type => (primitive),
        DataType::FixedSizeBinary(width) => {
            Ok(Arc::new(FixedSizeBinaryArray::try_new(*width, values, nulls)?))
        }
        _ => Err(ArrowError::NotYetImplemented("it is not narrow".into())),
    }
}

/// Writes what rows hold in some bytes from `offset` on to `values`, one after the other.
fn put(rows: &[u8], row_width: usize, (offset, bytes): (usize, usize), values: &mut [u8]) {
    match bytes {
        1 => put_values::<1>(rows, row_width, offset, values),
        2 => put_values::<2>(rows, row_width, offset, values),
        3 => put_values::<3>(rows, row_width, offset, values),
        4 => put_values::<4>(rows, row_width, offset, values),
        5 => put_values::<5>(rows, row_width, offset, values),
        6 => put_values::<6>(rows, row_width, offset, values),
        7 => put_values::<7>(rows, row_width, offset, values),
        8 => put_values::<8>(rows, row_width, offset, values),
        16 => put_values::<16>(rows, row_width, offset, values),
        _ => {
            for (value, row) in values.chunks_exact_mut(bytes).zip(rows.chunks_exact(row_width)) {
                value.copy_from_slice(&row[offset..offset + bytes]);
            }
        }
    }
}

fn put_values<const W: usize>(rows: &[u8], row_width: usize, offset: usize, values: &mut [u8]) {
    let values = values.as_chunks_mut::<W>().0.iter_mut();
    for (value, row) in values.zip(rows.chunks_exact(row_width)) {
        value.copy_from_slice(&row[offset..offset + W]);
    }
}

impl PackedColumn {
    /// The column's nulls, from the bits of all rows.
    fn nulls(&self, valid: &[u8], layout: &RowLayout, all_valid: &[u8]) -> Option<NullBuffer> {
        let bit = self.valid? - 8 * layout.validity;
        let (byte, mask) = (bit / 8, 1 << (bit % 8));
        if all_valid[byte] & mask != 0 {
            return None;
        }
        let bytes = layout.valid_bytes();
        let is_valid = |row: usize| valid[row * bytes + byte] & mask != 0;
        Some(NullBuffer::new(BooleanBuffer::collect_bool(valid.len() / bytes, is_valid)))
    }
}
