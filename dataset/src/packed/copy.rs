//! The sources that packed rows are copied from: packed rows of the same layout or of another one, and
//! arrays.

use super::layout::{RowLayout, value_bytes};
use super::place::{ColumnPlace, RowBlock};
use super::split::TILE_ROWS;
use arrow::array::Array;
use arrow::buffer::NullBuffer;
use forebay_proto::{Error, Result};
use std::slice::ChunksExactMut;

/// A batch that rows of a layout are copied from.
pub(crate) enum RowSource<'a> {
    /// Its rows are the layout's.
    Whole(&'a [u8]),
    /// Its columns lie elsewhere: in other packed rows or in arrays.
    Parts(Vec<RowPart<'a>>),
}

/// Where bytes of a row come from.
pub(crate) enum RowPart<'a> {
    /// Neighbouring values of packed rows.
    Values { rows: &'a [u8], width: usize, from: usize, to: usize, bytes: usize },
    /// The bit of a value that may be null.
    Valid { rows: &'a [u8], width: usize, from: usize, to: usize },
    /// A value that always is there.
    Always { to: usize },
    /// A value of an array, and the bit that tells whether it is there.
    Array { values: &'a [u8], width: usize, nulls: Option<&'a NullBuffer>, to: usize, valid: Option<usize> },
}

impl<'a> RowSource<'a> {
    /// Rows whose columns lie in several places.
    pub fn parts(layout: &RowLayout, places: &'a [ColumnPlace], blocks: &'a [RowBlock]) -> Result<Self> {
        let mut parts: Vec<RowPart<'a>> = Vec::new();
        for column in &layout.columns {
            match &places[column.column] {
                ColumnPlace::Rows { block, column: source } => {
                    let RowBlock { bytes, width } = &blocks[*block];
                    let value = RowPart::Values {
                        rows: bytes,
                        width: *width,
                        from: source.offset,
                        to: column.offset,
                        bytes: column.width,
                    };
                    if !parts.last_mut().is_some_and(|last| last.extend(&value)) {
                        parts.push(value);
                    }
                }
                ColumnPlace::Array(array) => parts.push(RowPart::Array {
                    values: value_bytes(array.as_ref())
                        .ok_or_else(|| Error::corrupt("a narrow column is none"))?,
                    width: column.width,
                    nulls: array.nulls(),
                    to: column.offset,
                    valid: column.valid,
                }),
            }
        }
        for column in &layout.columns {
            if let (ColumnPlace::Rows { block, column: source }, Some(to)) =
                (&places[column.column], column.valid)
            {
                let RowBlock { bytes, width } = &blocks[*block];
                parts.push(match source.valid {
                    Some(from) => RowPart::Valid { rows: bytes, width: *width, from, to },
                    None => RowPart::Always { to },
                });
            }
        }
        Ok(Self::Parts(parts))
    }

    /// A row that lies here as the layout says.
    pub fn row(&self, row: usize, layout: &RowLayout) -> Option<&'a [u8]> {
        match self {
            Self::Whole(rows) => rows.get(row * layout.width..(row + 1) * layout.width),
            Self::Parts(_) => None,
        }
    }

    /// Copies rows from `row` on to `to`, as many as fit.
    pub fn copy(&self, row: usize, layout: &RowLayout, to: &mut [u8]) {
        match self {
            Self::Whole(rows) => to.copy_from_slice(&rows[row * layout.width..][..to.len()]),
            Self::Parts(parts) => {
                for (tile, to) in to.chunks_mut(TILE_ROWS * layout.width).enumerate() {
                    to.fill(0);
                    parts.iter().for_each(|part| part.copy(row + tile * TILE_ROWS, layout.width, to));
                }
            }
        }
    }
}

impl RowPart<'_> {
    /// Adds `next` if it continues these values on both sides.
    fn extend(&mut self, next: &Self) -> bool {
        match (self, next) {
            (
                Self::Values { rows, from, to, bytes, .. },
                Self::Values { rows: rows2, from: from2, to: to2, bytes: bytes2, .. },
            ) if std::ptr::eq(*rows, *rows2) && *from + *bytes == *from2 && *to + *bytes == *to2 => {
                *bytes += bytes2;
                true
            }
            _ => false,
        }
    }

    /// Copies this part of the rows from `row` on.
    fn copy(&self, row: usize, to_width: usize, to_rows: &mut [u8]) {
        let to_rows = to_rows.chunks_exact_mut(to_width);
        match *self {
            Self::Values { rows, width, from, to, bytes } => {
                for (out, row) in to_rows.zip(row..) {
                    out[to..to + bytes].copy_from_slice(&rows[row * width + from..][..bytes]);
                }
            }
            Self::Valid { rows, width, from, to } => {
                for (out, row) in to_rows.zip(row..) {
                    out[to / 8] |= (rows[row * width + from / 8] >> (from % 8) & 1) << (to % 8);
                }
            }
            Self::Always { to } => to_rows.for_each(|out| set(out, to)),
            Self::Array { values, width, nulls: None, to, valid } => {
                let values = &values[row * width..];
                match width {
                    1 => put::<1>(values, to_rows, to, valid),
                    2 => put::<2>(values, to_rows, to, valid),
                    4 => put::<4>(values, to_rows, to, valid),
                    8 => put::<8>(values, to_rows, to, valid),
                    16 => put::<16>(values, to_rows, to, valid),
                    _ => {
                        for (out, value) in to_rows.zip(values.chunks_exact(width)) {
                            out[to..to + width].copy_from_slice(value);
                            valid.iter().for_each(|bit| set(out, *bit));
                        }
                    }
                }
            }
            Self::Array { values, width, nulls: Some(nulls), to, valid } => {
                for (out, row) in to_rows.zip(row..).filter(|(_, row)| nulls.is_valid(*row)) {
                    out[to..to + width].copy_from_slice(&values[row * width..][..width]);
                    valid.iter().for_each(|bit| set(out, *bit));
                }
            }
        }
    }
}

/// Copies values of a known width, none of which is null.
fn put<const W: usize>(values: &[u8], to_rows: ChunksExactMut<'_, u8>, to: usize, valid: Option<usize>) {
    for (out, value) in to_rows.zip(values.as_chunks::<W>().0) {
        out[to..to + W].copy_from_slice(value);
        valid.iter().for_each(|bit| set(out, *bit));
    }
}

fn set(row: &mut [u8], bit: usize) {
    row[bit / 8] |= 1 << (bit % 8);
}
