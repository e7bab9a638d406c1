//! Where a column lies: in packed rows, or as an array.

use super::layout::PackedColumn;
use arrow::array::ArrayRef;
use arrow::buffer::Buffer;

/// Packed rows: those of one file, or of one message.
#[derive(Debug, Clone)]
pub(crate) struct RowBlock {
    pub bytes: Buffer,
    /// Bytes of a row.
    pub width: usize,
}

/// Where the values of a column lie: in an array of their own, or as a part of each packed row.
#[derive(Debug, Clone)]
pub(crate) enum ColumnPlace {
    Array(ArrayRef),
    /// In the rows of the block of this number.
    Rows {
        block: usize,
        column: PackedColumn,
    },
}

impl ColumnPlace {
    /// The array, if it is one.
    pub fn into_array(self) -> Option<ArrayRef> {
        match self {
            Self::Array(array) => Some(array),
            Self::Rows { .. } => None,
        }
    }

    /// Bytes of a value in packed rows; 0 for an array.
    pub fn packed_width(&self) -> usize {
        match self {
            Self::Array(_) => 0,
            Self::Rows { column, .. } => column.width,
        }
    }
}
