//! What reading a segment costs in memory, known before anything is fetched.
//!
//! The footer tells where the column chunks lie, how many values they hold and of what type, so the fetched
//! bytes are exact and fixed-width columns too. Strings and the like are counted as the writer's statistics
//! say; a writer that keeps none, or lies, is found out while decoding ([`Cost::limit`]).

use crate::packed::PackedSchema;
use crate::parquet::column_origin::ColumnOrigin;
use crate::parquet::footer::{Footer, RowGroups};
use arrow::datatypes::{DataType, Schema};
use parquet::basic::Type as Physical;
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use std::sync::Arc;

/// Pages are unpacked one by one: what they take at most, unless one is larger than its writer said.
const PAGE_BYTES: u64 = 16 << 20;

/// Bytes that reading a segment holds at once, at most, as far as its footer tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// Compressed bytes, as they come from the object store; freed when all is decoded.
    pub fetched: u64,
    /// The batch that comes of them.
    pub decoded: u64,
    /// Needed beside these: by the decoder for levels of nested columns, values as Parquet stores them and
    /// pages, and for the packed rows that are made of the batch.
    pub working: u64,
}

impl Cost {
    /// Their sum.
    pub fn total(&self) -> u64 {
        self.fetched.saturating_add(self.decoded).saturating_add(self.working)
    }

    /// The same where it is read from a file: pieces of one are read as wholes before they are put in their
    /// place, so until all is there the fetched bytes are held twice.
    pub(crate) fn of_file(self) -> Self {
        Self { working: self.working.max(self.fetched.saturating_sub(self.decoded)), ..self }
    }

    /// The same for `rows` of its `all` rows, of which `fetched` bytes come: twice their share, as their
    /// values may be the longer ones.
    pub(crate) fn of_rows(self, rows: u64, all: u64, fetched: u64) -> Self {
        let share = |bytes: u64| {
            let twice = u128::from(bytes) * 2 * u128::from(rows) / u128::from(all.max(1));
            u64::try_from(twice).unwrap_or(u64::MAX).min(bytes)
        };
        let working = share(self.working).saturating_add(2 * PAGE_BYTES).min(self.working);
        Self { fetched, decoded: share(self.decoded), working }
    }

    /// Decoded bytes at which a segment is called a lie: twice what was announced, and a little for small
    /// ones.
    pub(crate) fn limit(&self) -> u64 {
        self.decoded.saturating_mul(2).saturating_add(64 << 20)
    }
}

/// The cost of reading `columns` of a segment.
pub(crate) fn cost(part: &RowGroups, columns: &[ColumnOrigin], schema: &Schema) -> Cost {
    let (footer, groups) = (&*part.footer, part.metadata());
    let (mut fetched, mut decoded, mut working, mut page) = (0u64, 0u64, 0u64, 0u64);
    for (origin, field) in columns.iter().zip(schema.fields()) {
        let adapted = adapted_bytes(origin, part.rows, field.data_type());
        decoded = decoded.saturating_add(adapted);
        // As it was, beside what it becomes, and as it was again where that is compared.
        working = working.saturating_add(adapted.saturating_mul(2));
    }
    let own = columns.iter().filter_map(ColumnOrigin::own);
    for (group, column) in groups.iter().flat_map(|g| own.clone().map(move |c| (g, c))) {
        decoded = decoded.saturating_add(column_bytes(footer, group, column));
        let plain_list = is_full_list(footer, group, column);
        for chunk in footer.chunks(group, column) {
            let size = u64::try_from(chunk.uncompressed_size()).unwrap_or(0);
            page = page.max(size.min(PAGE_BYTES));
            fetched = fetched.saturating_add(u64::try_from(chunk.compressed_size()).unwrap_or(0));
            if !plain_list {
                working = working.saturating_add(raw_bytes(chunk));
            }
        }
    }
    // A page, and its dictionary.
    working = working.saturating_add(2 * page).saturating_add(packed_bytes(part.rows, schema));
    Cost { fetched, decoded, working }
}

/// Estimated bytes of the column made of `origin`; 0 for the object's column as it is.
fn adapted_bytes(origin: &ColumnOrigin, rows: u64, wanted: &DataType) -> u64 {
    let fixed = fixed_bits(wanted).map(|bits| rows.saturating_mul(bits).div_ceil(8));
    match origin {
        ColumnOrigin::Own(_) => 0,
        // Values of no fixed width stay as long, and their offsets may double.
        ColumnOrigin::Adapted(_) | ColumnOrigin::Missing => fixed.unwrap_or(rows.saturating_mul(8)),
        ColumnOrigin::Partition(value) => fixed
            .unwrap_or_else(|| rows.saturating_mul(4 + value.as_ref().map_or(0, |value| value.len() as u64))),
    }
}

/// Bytes of the packed rows of some columns.
pub(crate) fn packed_bytes(rows: u64, schema: &Schema) -> u64 {
    let layout = PackedSchema::new(Arc::new(schema.clone())).layout;
    layout.map_or(0, |layout| rows.saturating_mul(layout.width as u64))
}

/// Estimated decoded bytes of one column of a row group: exact for fixed widths, else what the footer says of
/// the values' bytes and 8 bytes a row.
pub(crate) fn column_bytes(footer: &Footer, group: &RowGroupMetaData, column: usize) -> u64 {
    let rows = u64::try_from(group.num_rows()).unwrap_or(0);
    let Some(field) = footer.schema.fields().get(column) else { return 0 };
    if let Some(bits) = fixed_bits(field.data_type()) {
        return rows.saturating_mul(bits).div_ceil(8);
    }
    let stored = footer.chunks(group, column).map(|c| {
        let plain = c.unencoded_byte_array_data_bytes().unwrap_or(0);
        plain.max(c.uncompressed_size()).max(0) as u64
    });
    stored.fold(rows.saturating_mul(8), u64::saturating_add)
}

/// Estimated decoded bytes of all columns of a row group.
pub(crate) fn group_bytes(footer: &Footer, group: &RowGroupMetaData) -> u64 {
    let columns = 0..footer.schema.fields().len();
    columns.map(|column| column_bytes(footer, group, column)).fold(0, u64::saturating_add)
}

/// Whether the counts are those of full lists, whose levels are not expanded (`decode/whole.rs`).
pub(crate) fn is_full_list(footer: &Footer, group: &RowGroupMetaData, column: usize) -> bool {
    let Some(DataType::FixedSizeList(_, n)) = footer.schema.fields().get(column).map(|f| f.data_type())
    else {
        return false;
    };
    footer.chunks(group, column).all(|c| group.num_rows().checked_mul(i64::from(*n)) == Some(c.num_values()))
}

/// Levels, and values in the width that Parquet has for them before they are narrowed.
fn raw_bytes(chunk: &ColumnChunkMetaData) -> u64 {
    let values = u64::try_from(chunk.num_values()).unwrap_or(0);
    let descriptor = chunk.column_descr();
    let levels = match (descriptor.max_rep_level(), descriptor.max_def_level()) {
        (0, 0) => 0,
        (0, _) => 2,
        _ => 4,
    };
    let width = match descriptor.physical_type() {
        Physical::INT32 => 4,
        Physical::INT96 => 12,
        Physical::FIXED_LEN_BYTE_ARRAY => u64::try_from(descriptor.type_length()).unwrap_or(0),
        _ => 0,
    };
    values.saturating_mul(levels + width)
}

/// Bits of a value, if all have the same.
pub(crate) fn fixed_bits(data_type: &DataType) -> Option<u64> {
    match data_type {
        DataType::Null => Some(0),
        DataType::Boolean => Some(1),
        DataType::FixedSizeBinary(n) => Some(8 * u64::try_from(*n).ok()?),
        DataType::FixedSizeList(f, n) => fixed_bits(f.data_type())?.checked_mul(u64::try_from(*n).ok()?),
        DataType::Struct(fields) => fields.iter().map(|f| fixed_bits(f.data_type())).sum(),
        other => other.primitive_width().map(|w| 8 * w as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths() {
        let list = DataType::new_fixed_size_list(DataType::UInt8, 784, false);
        assert_eq!(fixed_bits(&list), Some(784 * 8));
        assert_eq!(fixed_bits(&DataType::Utf8), None);
        assert_eq!(fixed_bits(&DataType::Decimal128(10, 2)), Some(128));
    }
}
