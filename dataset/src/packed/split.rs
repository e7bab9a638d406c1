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

/// Each column's values begin at a multiple of this.
const ALIGNMENT: usize = 64;

impl RowLayout {
    /// Bytes that the columns of `rows` rows take, split.
    pub fn split_bytes(&self, rows: usize) -> usize {
        (0..self.columns.len()).map(|at| self.column_bytes(at, rows)).sum()
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

    /// Writes the values of packed rows to `values`, column after column.
    ///
    /// # Panics
    /// If `rows` are not whole rows, or `values` is shorter than [`RowLayout::split_bytes`].
    pub fn split(&self, rows: &[u8], values: &mut [u8]) {
        assert!(rows.len().is_multiple_of(self.width), "whole rows");
        let count = rows.len() / self.width;
        let mut columns = Vec::with_capacity(self.columns.len());
        let mut rest = values;
        for (at, column) in self.columns.iter().enumerate() {
            let (values, after) = rest.split_at_mut(self.column_bytes(at, count));
            columns.push(&mut values[..column.width * count]);
            rest = after;
        }
        for (tile, rows) in rows.chunks(TILE_ROWS * self.width).enumerate() {
            self.split_tile(rows, tile * TILE_ROWS, &mut columns);
        }
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
                    column.split(rest, self.width, &mut values[(first + done) * column.width..]);
                }
            }
            c += columns;
        }
    }

    /// The columns over the values of packed `rows` that [`RowLayout::split`] has written. `schema` is the
    /// one that the layout is of.
    pub fn arrays(&self, schema: &Schema, rows: &[u8], values: &Buffer) -> Result<Vec<ArrayRef>> {
        let count = rows.len() / self.width;
        let all_valid = self.all_valid(rows);
        let (mut start, mut arrays) = (0, Vec::with_capacity(self.columns.len()));
        for (at, column) in self.columns.iter().enumerate() {
            let data_type = schema.field(column.column).data_type();
            let values = values.slice_with_length(start, column.width * count);
            let nulls = column.nulls(rows, self, &all_valid);
            arrays.push(array(data_type, values, nulls).map_err(|e| {
                Error::corrupt(format!("a packed column of {data_type} cannot be put together: {e}"))
            })?);
            start += self.column_bytes(at, count);
        }
        Ok(arrays)
    }

    /// The columns of packed rows, in memory of their own.
    pub fn unpack(&self, schema: &Schema, rows: &[u8]) -> Result<Vec<ArrayRef>> {
        let mut values = MutableBuffer::from_len_zeroed(self.split_bytes(rows.len() / self.width));
        self.split(rows, values.as_slice_mut());
        self.arrays(schema, rows, &values.into())
    }

    /// The bits that tell nulls, of all rows together: set where no row has a null.
    fn all_valid(&self, rows: &[u8]) -> Vec<u8> {
        let mut all = vec![0xff; self.width - self.validity];
        if !all.is_empty() {
            for row in rows.chunks_exact(self.width) {
                all.iter_mut().zip(&row[self.validity..]).for_each(|(all, bits)| *all &= bits);
            }
        }
        all
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

impl PackedColumn {
    /// Writes the values of rows.
    fn split(&self, rows: &[u8], row_width: usize, values: &mut [u8]) {
        match self.width {
            1 => self.split_values::<1>(rows, row_width, values),
            2 => self.split_values::<2>(rows, row_width, values),
            4 => self.split_values::<4>(rows, row_width, values),
            8 => self.split_values::<8>(rows, row_width, values),
            16 => self.split_values::<16>(rows, row_width, values),
            width => {
                for (value, row) in values.chunks_exact_mut(width).zip(rows.chunks_exact(row_width)) {
                    value.copy_from_slice(&row[self.offset..self.offset + width]);
                }
            }
        }
    }

    fn split_values<const W: usize>(&self, rows: &[u8], row_width: usize, values: &mut [u8]) {
        let values = values.as_chunks_mut::<W>().0.iter_mut();
        for (value, row) in values.zip(rows.chunks_exact(row_width)) {
            value.copy_from_slice(&row[self.offset..self.offset + W]);
        }
    }

    fn nulls(&self, rows: &[u8], layout: &RowLayout, all_valid: &[u8]) -> Option<NullBuffer> {
        let bit = self.valid?;
        let (byte, mask) = (bit / 8, 1 << (bit % 8));
        if all_valid[byte - layout.validity] & mask != 0 {
            return None;
        }
        let is_valid = |row: usize| rows[row * layout.width + byte] & mask != 0;
        Some(NullBuffer::new(BooleanBuffer::collect_bool(rows.len() / layout.width, is_valid)))
    }
}
