//! Where the values of narrow columns lie in a packed row.

use arrow::array::{Array, AsArray};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, FieldRef, Schema};

/// Bytes of a value up to which a binary of fixed length is narrow.
pub(super) const NARROW_BYTES: usize = 32;

/// Bytes of a row up to which packing gains: longer ones take as many cache misses as columns do.
const ROW_BYTES_MAX: usize = 4 << 10;

/// Where the values of a packed row lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowLayout {
    /// The packed columns, ascending.
    pub columns: Vec<PackedColumn>,
    /// Bytes of a row.
    pub width: usize,
    /// Where the bits of the row begin that tell nulls, in bytes.
    pub(super) validity: usize,
}

/// One column of packed rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedColumn {
    /// Its index in the schema.
    pub column: usize,
    /// Where its value begins in a row.
    pub offset: usize,
    /// Bytes of its value.
    pub width: usize,
    /// The bit of the row, counted from its beginning, that is set when the value is there; `None`: it always
    /// is.
    pub valid: Option<usize>,
}

impl RowLayout {
    /// The layout of a schema's packed rows; `None` if it has none.
    pub(super) fn of(schema: &Schema) -> Option<Self> {
        let layout = Self::over(schema, |_| true);
        (layout.columns.len() > 1 && layout.width <= ROW_BYTES_MAX).then_some(layout)
    }

    /// The layout of those of a schema's narrow columns that `is_packed` names.
    pub(crate) fn over(schema: &Schema, is_packed: impl Fn(usize) -> bool) -> Self {
        let fields = schema.fields().iter().enumerate().filter(|(column, _)| is_packed(*column));
        let narrow = |(column, field): (usize, &FieldRef)| {
            Some((column, narrow_width(field.data_type())?, field.is_nullable()))
        };
        let narrow: Vec<_> = fields.filter_map(narrow).collect();
        let validity = narrow.iter().map(|(_, width, _)| width).sum::<usize>();
        let (mut offset, mut bit) = (0, validity * 8);
        let mut columns = Vec::with_capacity(narrow.len());
        for (column, width, nullable) in narrow {
            columns.push(PackedColumn { column, offset, width, valid: nullable.then_some(bit) });
            offset += width;
            bit += usize::from(nullable);
        }
        Self { columns, width: bit.div_ceil(8), validity }
    }

    /// Whether a column of the schema is packed.
    pub fn has(&self, column: usize) -> bool {
        self.columns.binary_search_by_key(&column, |c| c.column).is_ok()
    }
}

/// Bytes of a value of a narrow type.
fn narrow_width(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::FixedSizeBinary(n) => usize::try_from(*n).ok().filter(|n| (1..=NARROW_BYTES).contains(n)),
        other => other.primitive_width(),
    }
}

/// The values of a narrow column, those of nulls too, one after the other.
pub(crate) fn value_bytes(array: &dyn Array) -> Option<&[u8]> {
    let (values, bytes) = value_buffer(array)?;
    values.get(..bytes)
}

/// The buffer that they begin in, and their length.
pub(crate) fn value_buffer(array: &dyn Array) -> Option<(&Buffer, usize)> {
    match array.data_type() {
        DataType::FixedSizeBinary(n) => {
            Some((array.as_fixed_size_binary().values(), array.len() * usize::try_from(*n).ok()?))
        }
        t if t.is_primitive() => {
            let bytes = array.len() * t.primitive_width()?;
            arrow::downcast_primitive_array!(
                array => Some((array.values().inner(), bytes)),
                _ => None
            )
        }
        _ => None,
    }
}
