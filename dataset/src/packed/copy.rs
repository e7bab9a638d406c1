//! The sources that packed rows are copied from: packed rows of the same layout or of another one, and
//! arrays.

use super::layout::{RowLayout, value_bytes};
use super::place::{ColumnPlace, RowBlock};
use super::split::TILE_ROWS;
use super::transpose;
use arrow::array::Array;
use arrow::buffer::NullBuffer;
use forebay_proto::{Error, Result};
use std::slice::ChunksExactMut;

/// A batch that rows of a layout are copied from.
pub(crate) enum RowSource<'a> {
    /// Its rows are the layout's.
    Whole(&'a [u8]),
    /// Its columns lie elsewhere: in other packed rows or in arrays. The row is what all rows have before
    /// anything is copied there: zeros, and the bits of values that always are there.
    Parts(Vec<RowPart<'a>>, Vec<u8>),
}

/// Where bytes of a row come from.
pub(crate) enum RowPart<'a> {
    /// Neighbouring values of packed rows.
    Values { rows: &'a [u8], width: usize, from: usize, to: usize, bytes: usize },
    /// The bit of a value that may be null.
    Valid { rows: &'a [u8], width: usize, from: usize, to: usize },
    /// A value of an array without nulls.
    Array { values: &'a [u8], width: usize, to: usize },
    /// A value of an array with nulls, and the bit that tells whether it is there.
    Nullable { values: &'a [u8], width: usize, nulls: &'a NullBuffer, to: usize, valid: Option<usize> },
}

impl<'a> RowSource<'a> {
    /// Rows whose columns lie in several places.
    pub fn parts(layout: &RowLayout, places: &'a [ColumnPlace], blocks: &'a [RowBlock]) -> Result<Self> {
        let (mut parts, mut valid): (Vec<RowPart<'a>>, Vec<RowPart<'a>>) = Default::default();
        let mut row = vec![0; layout.width];
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
                    match (source.valid, column.valid) {
                        (Some(from), Some(to)) => {
                            valid.push(RowPart::Valid { rows: bytes, width: *width, from, to });
                        }
                        (None, Some(to)) => set(&mut row, to),
                        (_, None) => {}
                    }
                }
                ColumnPlace::Array(array) => {
                    let values = value_bytes(array.as_ref())
                        .ok_or_else(|| Error::corrupt("a narrow column is none"))?;
                    let (width, to) = (column.width, column.offset);
                    parts.push(match (array.nulls(), column.valid) {
                        (Some(nulls), valid) => RowPart::Nullable { values, width, nulls, to, valid },
                        (None, valid) => {
                            valid.iter().for_each(|bit| set(&mut row, *bit));
                            RowPart::Array { values, width, to }
                        }
                    });
                }
            }
        }
        parts.append(&mut valid);
        Ok(Self::Parts(parts, row))
    }

    /// A row that lies here as the layout says.
    pub fn row(&self, row: usize, layout: &RowLayout) -> Option<&'a [u8]> {
        match self {
            Self::Whole(rows) => rows.get(row * layout.width..(row + 1) * layout.width),
            Self::Parts(..) => None,
        }
    }

    /// Copies rows from `row` on to `to`, as many as fit.
    pub fn copy(&self, row: usize, layout: &RowLayout, to: &mut [u8]) {
        match self {
            Self::Whole(rows) => to.copy_from_slice(&rows[row * layout.width..][..to.len()]),
            Self::Parts(parts, first) => {
                for (tile, to) in to.chunks_mut(TILE_ROWS * layout.width).enumerate() {
                    to.chunks_exact_mut(layout.width).for_each(|row| row.copy_from_slice(first));
                    copy_parts(parts, row + tile * TILE_ROWS, layout.width, to);
                }
            }
        }
    }
}

/// Copies all parts of the rows from `row` on; four columns of four bytes that lie side by side together.
fn copy_parts(mut parts: &[RowPart<'_>], row: usize, to_width: usize, to_rows: &mut [u8]) {
    while let [first, rest @ ..] = parts {
        let block = parts.first_chunk::<4>().and_then(|four| fours(four, row));
        let Some((values, to)) = block else {
            first.copy(row, to_width, to_rows);
            parts = rest;
            continue;
        };
        let done = transpose::join(values, to_rows, to_width, to);
        for part in &parts[..4] {
            part.copy(row + done, to_width, &mut to_rows[done * to_width..]);
        }
        parts = &parts[4..];
    }
}

/// The values from `row` on of four columns of four bytes, and where the first lies in a row, if they lie
/// side by side and have no nulls.
fn fours<'a>(parts: &[RowPart<'a>; 4], row: usize) -> Option<([&'a [u8]; 4], usize)> {
    let values = |part: &RowPart<'a>| match *part {
        RowPart::Array { values, width: 4, to } => Some((&values[row * 4..], to)),
        _ => None,
    };
    let [a, b, c, d] = parts.each_ref().map(values);
    let ((a, to), b, c, d) = (a?, b?, c?, d?);
    ((b.1, c.1, d.1) == (to + 4, to + 8, to + 12)).then_some(([a, b.0, c.0, d.0], to))
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
            Self::Array { values, width, to } => {
                let values = &values[row * width..];
                match width {
                    1 => put::<1>(values, to_rows, to),
                    2 => put::<2>(values, to_rows, to),
                    4 => put::<4>(values, to_rows, to),
                    8 => put::<8>(values, to_rows, to),
                    16 => put::<16>(values, to_rows, to),
                    _ => {
                        for (out, value) in to_rows.zip(values.chunks_exact(width)) {
                            out[to..to + width].copy_from_slice(value);
                        }
                    }
                }
            }
            Self::Nullable { values, width, nulls, to, valid } => {
                for (out, row) in to_rows.zip(row..).filter(|(_, row)| nulls.is_valid(*row)) {
                    out[to..to + width].copy_from_slice(&values[row * width..][..width]);
                    valid.iter().for_each(|bit| set(out, *bit));
                }
            }
        }
    }
}

/// Copies values of a known width, none of which is null.
fn put<const W: usize>(values: &[u8], to_rows: ChunksExactMut<'_, u8>, to: usize) {
    for (out, value) in to_rows.zip(values.as_chunks::<W>().0) {
        out[to..to + W].copy_from_slice(value);
    }
}

fn set(row: &mut [u8], bit: usize) {
    row[bit / 8] |= 1 << (bit % 8);
}
