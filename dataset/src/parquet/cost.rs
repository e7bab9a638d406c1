//! What reading a segment costs in memory, known before anything is fetched.
//!
//! The footer tells where the column chunks lie, how many values they hold and of what type, so the fetched
//! bytes are exact, and columns whose values have a fixed width too. Strings and the like are counted as the
//! writer's statistics say; a writer that keeps none, or lies, is found out while decoding ([`limit`]).

use crate::packed::PackedSchema;
use crate::parquet::column_origin::ColumnOrigin;
use crate::parquet::footer::{Footer, RowGroups};
use arrow::datatypes::{DataType, Schema};
use parquet::basic::{Encoding, Type as Physical};
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use std::sync::Arc;

/// Pages are unpacked one by one: what they take at most, unless one is larger than its writer said.
const PAGE_BYTES: u64 = 16 << 20;

/// Bytes that reading a segment holds at once, at most, as far as its footer tells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Compressed bytes, as they come from the object store; freed when all is decoded.
    pub fetched: u64,
    /// The batch that comes of them.
    pub decoded: u64,
    /// Needed beside these: by the decoder for levels of nested columns, values as Parquet stores them and
    /// pages, and for the packed rows that are made of the batch.
    pub working: u64,
    /// What texts may take beyond that, of which the footer does not say how long they are.
    pub(crate) guessed: u64,
    /// Whether it is read from a file.
    is_of_file: bool,
}

/// Decoded bytes at which a segment is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DecodeLimit {
    /// The footer says how much there is: more is a lie.
    Announced(u64),
    /// The footer does not say it: more is too much for the memory that may be taken.
    Memory(u64),
}

impl Cost {
    /// Bytes that are held while it is fetched. Pieces of a file are read as wholes before they are put in
    /// their place.
    pub fn fetching(&self) -> u64 {
        if self.is_of_file { self.fetched.saturating_mul(2) } else { self.fetched }
    }

    /// The sum of all that it holds at once.
    pub fn total(&self) -> u64 {
        self.certain().saturating_add(self.guessed)
    }

    /// The same without the guess.
    pub(crate) fn certain(&self) -> u64 {
        self.fetched.saturating_add(self.decoded).saturating_add(self.working)
    }

    /// The same where so much memory may be taken: no guess asks for more.
    pub(crate) fn within(self, memory_bytes: u64) -> Self {
        Self { guessed: self.guessed.min(memory_bytes.saturating_sub(self.certain())), ..self }
    }

    /// The same where it is read from a file: until all of it is there the fetched bytes are held twice.
    pub(crate) fn of_file(self) -> Self {
        let working = self.working.max(self.fetched.saturating_sub(self.decoded));
        Self { working, is_of_file: true, ..self }
    }

    /// The same for `rows` of its `all` rows, of which `fetched` bytes come: twice their share, as their
    /// values may be the longer ones.
    pub(crate) fn of_rows(self, rows: u64, all: u64, fetched: u64) -> Self {
        let share = |bytes: u64| {
            let twice = u128::from(bytes) * 2 * u128::from(rows) / u128::from(all.max(1));
            u64::try_from(twice).unwrap_or(u64::MAX).min(bytes)
        };
        let working = share(self.working).saturating_add(2 * PAGE_BYTES).min(self.working);
        let (decoded, guessed) = (share(self.decoded), share(self.guessed));
        Self { fetched, decoded, working, guessed, ..self }
    }

    /// Decoded bytes at which a segment is called a lie: twice what was announced, and a little for small
    /// ones.
    pub(crate) fn announced(&self) -> u64 {
        self.decoded.saturating_mul(2).saturating_add(64 << 20)
    }
}

/// The cost of reading `columns` of a segment.
pub(crate) fn cost(part: &RowGroups, columns: &[ColumnOrigin], schema: &Schema) -> Cost {
    let (footer, groups) = (&*part.footer, part.metadata());
    let (mut cost, mut page) = (Cost::default(), 0u64);
    for (origin, field) in columns.iter().zip(schema.fields()) {
        let adapted = adapted_bytes(part, origin, field.data_type());
        cost.decoded = cost.decoded.saturating_add(adapted);
        if let ColumnOrigin::Adapted(_) | ColumnOrigin::Partition(Some(_)) = origin {
            // As it was, beside what it becomes, and as it was again where that is compared.
            cost.working = cost.working.saturating_add(adapted.saturating_mul(2));
        }
    }
    let own = columns.iter().filter_map(ColumnOrigin::own);
    for (group, column) in groups.iter().flat_map(|g| own.clone().map(move |c| (g, c))) {
        let Some(data_type) = footer.schema.fields().get(column).map(|f| f.data_type()) else { continue };
        let bytes = column_bytes(footer, group, column);
        cost.decoded = cost.decoded.saturating_add(bytes);
        if data_type.is_nested() && is_unbounded(data_type) {
            // Its parts, before they are joined.
            cost.working = cost.working.saturating_add(bytes);
        }
        let plain_list = is_full_list(footer, group, column);
        for chunk in footer.chunks(group, column) {
            let size = u64::try_from(chunk.uncompressed_size()).unwrap_or(0);
            page = page.max(size.min(PAGE_BYTES));
            let fetched = u64::try_from(chunk.compressed_size()).unwrap_or(0);
            cost.fetched = cost.fetched.saturating_add(fetched);
            if !plain_list {
                cost.working = cost.working.saturating_add(raw_bytes(chunk));
            }
            if fixed_bits(data_type).is_none() {
                cost.guessed = cost.guessed.saturating_add(guessed_bytes(chunk));
            }
        }
    }
    // A page, and its dictionary.
    let rest = (2 * page).saturating_add(packed_bytes(part.rows, schema));
    cost.working = cost.working.saturating_add(rest);
    cost
}

/// At which size decoding `columns` of a segment is given up, which cost that much, where `memory_bytes` may
/// be taken.
pub(crate) fn limit(
    part: &RowGroups,
    columns: &[ColumnOrigin],
    cost: &Cost,
    memory_bytes: u64,
) -> DecodeLimit {
    let own = columns.iter().filter_map(ColumnOrigin::own);
    let columns = part.metadata().iter().flat_map(|g| own.clone().map(move |c| (g, c)));
    if !columns.flat_map(|(group, column)| part.footer.chunks(group, column)).any(is_unsized) {
        return DecodeLimit::Announced(cost.announced());
    }
    let left = memory_bytes.saturating_sub(cost.fetched).saturating_sub(cost.working);
    DecodeLimit::Memory(left.max(cost.announced()))
}

/// Estimated bytes of the column made of `origin`; 0 for the object's column as it is.
fn adapted_bytes(part: &RowGroups, origin: &ColumnOrigin, wanted: &DataType) -> u64 {
    let fixed = fixed_bits(wanted).map(|bits| part.rows.saturating_mul(bits).div_ceil(8));
    match origin {
        ColumnOrigin::Own(_) => 0,
        ColumnOrigin::Adapted(column) => fixed.unwrap_or_else(|| {
            // Texts stay as long, and their offsets may double.
            let bytes = |group| typed_bytes(&part.footer, group, *column, wanted, |_| 0);
            part.metadata().iter().map(bytes).fold(0, u64::saturating_add)
        }),
        ColumnOrigin::Missing | ColumnOrigin::Partition(None) => null_bytes(part.rows, wanted),
        ColumnOrigin::Partition(Some(value)) => {
            fixed.unwrap_or_else(|| part.rows.saturating_mul(4 + value.len() as u64))
        }
    }
}

/// Bytes of `rows` nulls of a type: Arrow gives each the room of a value without text.
pub(crate) fn null_bytes(rows: u64, data_type: &DataType) -> u64 {
    rows.saturating_mul(null_bits(data_type)).div_ceil(8)
}

/// Bits of a null, with the one that says that it is null.
fn null_bits(data_type: &DataType) -> u64 {
    let values = match data_type {
        DataType::Null => return 0,
        DataType::Utf8 | DataType::Binary | DataType::List(_) | DataType::Map(..) => 32,
        DataType::FixedSizeList(f, n) => {
            null_bits(f.data_type()).saturating_mul(u64::try_from(*n).unwrap_or(0))
        }
        DataType::Struct(fields) => {
            fields.iter().map(|f| null_bits(f.data_type())).fold(0, u64::saturating_add)
        }
        other => fixed_bits(other).unwrap_or(64),
    };
    values.saturating_add(1)
}

/// Bytes of the packed rows of some columns.
pub(crate) fn packed_bytes(rows: u64, schema: &Schema) -> u64 {
    let layout = PackedSchema::new(Arc::new(schema.clone())).layout;
    layout.map_or(0, |layout| rows.saturating_mul(layout.width as u64))
}

/// Estimated decoded bytes of one column of a row group: exact for fixed widths, also within lists, else what
/// the footer says of the values' bytes and 8 bytes a row.
pub(crate) fn column_bytes(footer: &Footer, group: &RowGroupMetaData, column: usize) -> u64 {
    let Some(field) = footer.schema.fields().get(column) else { return 0 };
    typed_bytes(footer, group, column, field.data_type(), stored_bytes)
}

/// The same where the column has, or becomes, `data_type`; `texts` tells the bytes of those in a chunk.
fn typed_bytes(
    footer: &Footer,
    group: &RowGroupMetaData,
    column: usize,
    data_type: &DataType,
    texts: fn(&ColumnChunkMetaData) -> u64,
) -> u64 {
    let rows = u64::try_from(group.num_rows()).unwrap_or(0);
    if let Some(bits) = fixed_bits(data_type) {
        return rows.saturating_mul(bits).div_ceil(8);
    }
    let chunks: Vec<&ColumnChunkMetaData> = footer.chunks(group, column).collect();
    if data_type.is_nested() {
        return nested_bytes(data_type, Some(rows), &mut chunks.as_slice(), texts);
    }
    chunks.into_iter().map(texts).fold(rows.saturating_mul(8), u64::saturating_add)
}

/// Estimated decoded bytes of values within a column, whose leaves come next. There are `entries` of them, if
/// that is known: else as many as their first leaf has at most.
fn nested_bytes(
    data_type: &DataType,
    entries: Option<u64>,
    leaves: &mut &[&ColumnChunkMetaData],
    texts: fn(&ColumnChunkMetaData) -> u64,
) -> u64 {
    let values = leaves.first().map_or(0, |leaf| u64::try_from(leaf.num_values()).unwrap_or(0));
    let offsets = |bytes: u64| entries.unwrap_or(values).saturating_mul(bytes);
    match data_type {
        DataType::List(f) | DataType::Map(f, _) => {
            offsets(4).saturating_add(nested_bytes(f.data_type(), None, leaves, texts))
        }
        DataType::LargeList(f) => offsets(8).saturating_add(nested_bytes(f.data_type(), None, leaves, texts)),
        DataType::FixedSizeList(f, n) => {
            // A list that is null has its values nevertheless.
            let n = u64::try_from(*n).unwrap_or(0);
            let values = entries.map(|entries| entries.saturating_mul(n));
            nested_bytes(f.data_type(), values, leaves, texts)
        }
        DataType::Struct(fields) => {
            let bytes = fields.iter().map(|f| nested_bytes(f.data_type(), entries, leaves, texts));
            bytes.fold(0, u64::saturating_add)
        }
        leaf => {
            let Some((chunk, rest)) = leaves.split_first() else { return 0 };
            *leaves = rest;
            let values = values.max(entries.unwrap_or(0));
            match (fixed_bits(leaf), leaf) {
                (Some(bits), _) => values.saturating_mul(bits).div_ceil(8),
                (None, DataType::LargeUtf8 | DataType::LargeBinary) => {
                    values.saturating_mul(8).saturating_add(texts(chunk))
                }
                (None, _) => values.saturating_mul(4).saturating_add(texts(chunk)),
            }
        }
    }
}

/// Bytes of the texts in a chunk, as far as its writer says.
fn stored_bytes(chunk: &ColumnChunkMetaData) -> u64 {
    let plain = chunk.unencoded_byte_array_data_bytes().unwrap_or(0);
    plain.max(chunk.uncompressed_size()).max(0) as u64
}

/// Whether a chunk may hold texts of any size: values that repeat are stored once, and nothing tells how long
/// all of them are.
fn is_unsized(chunk: &ColumnChunkMetaData) -> bool {
    let repeats = |encoding: Encoding| {
        matches!(encoding, Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY | Encoding::DELTA_BYTE_ARRAY)
    };
    chunk.column_type() == Physical::BYTE_ARRAY
        && chunk.unencoded_byte_array_data_bytes().is_none()
        && chunk.encodings().any(repeats)
}

/// What the texts of such a chunk take beyond its size, if it has a dictionary only and they are all as long
/// as the longer of the least and the greatest.
fn guessed_bytes(chunk: &ColumnChunkMetaData) -> u64 {
    let is_dictionary = chunk.page_encoding_stats_mask().is_some_and(|mask| {
        mask.is_only(Encoding::RLE_DICTIONARY) || mask.is_only(Encoding::PLAIN_DICTIONARY)
    });
    let Some(statistics) = chunk.statistics().filter(|_| is_dictionary && is_unsized(chunk)) else {
        return 0;
    };
    let bounds = [statistics.min_bytes_opt(), statistics.max_bytes_opt()];
    let longest = bounds.into_iter().flatten().map(<[u8]>::len).max().unwrap_or(0) as u64;
    let values = u64::try_from(chunk.num_values()).unwrap_or(0);
    let values = values.saturating_sub(statistics.null_count_opt().unwrap_or(0));
    values.saturating_mul(longest).saturating_sub(stored_bytes(chunk))
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
        // Those of both kinds, and bits for the nulls.
        _ => 5,
    };
    let width = match descriptor.physical_type() {
        Physical::INT32 => 4,
        // Read twice, the second time beside what came of the first.
        Physical::INT96 => 12 + 8,
        Physical::FIXED_LEN_BYTE_ARRAY => u64::try_from(descriptor.type_length()).unwrap_or(0),
        _ => 0,
    };
    values.saturating_mul(levels + width)
}

/// Whether values of the type may be of any size, and many times as large as the footer says, so that they
/// are read in parts. Texts with offsets of 32 bits end at 2 GiB by themselves, where they are alone.
pub(crate) fn is_unbounded(data_type: &DataType) -> bool {
    match data_type {
        DataType::LargeUtf8 | DataType::LargeBinary => true,
        DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _) | DataType::Map(f, _) => {
            is_unbounded(f.data_type())
        }
        DataType::Struct(fields) => {
            text_leaves(data_type) > 1 || fields.iter().any(|f| is_unbounded(f.data_type()))
        }
        _ => false,
    }
}

/// The texts that a value of the type is made of.
fn text_leaves(data_type: &DataType) -> usize {
    match data_type {
        DataType::Utf8 | DataType::Binary | DataType::LargeUtf8 | DataType::LargeBinary => 1,
        DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _) | DataType::Map(f, _) => {
            text_leaves(f.data_type())
        }
        DataType::Struct(fields) => fields.iter().map(|f| text_leaves(f.data_type())).sum(),
        _ => 0,
    }
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
    use arrow::array::{Array, new_null_array};
    use arrow::datatypes::{Field, Fields};

    #[test]
    fn nulls_take_what_arrow_makes_of_them() {
        let field = |name: &str, t| Field::new(name, t, true);
        let both = Fields::from(vec![field("k", DataType::Utf8), field("v", DataType::Float64)]);
        let entries = Field::new("entries", DataType::Struct(both.clone()), false);
        let rows = 1 << 16;
        for t in [
            DataType::Null,
            DataType::Boolean,
            DataType::Int8,
            DataType::Decimal128(10, 2),
            DataType::FixedSizeBinary(3),
            DataType::Utf8,
            DataType::LargeBinary,
            DataType::new_list(DataType::Float64, true),
            DataType::new_large_list(DataType::Utf8, true),
            DataType::new_fixed_size_list(DataType::Float32, 16, true),
            DataType::new_fixed_size_list(DataType::Utf8, 3, true),
            DataType::Struct(both),
            DataType::Map(Arc::new(entries), false),
        ] {
            let made = new_null_array(&t, rows).get_buffer_memory_size() as u64;
            let said = null_bytes(rows as u64, &t);
            assert!(said <= made && made <= said + 1024, "{t}: {made} bytes, {said} were said");
        }
    }

    #[test]
    fn widths() {
        let list = DataType::new_fixed_size_list(DataType::UInt8, 784, false);
        assert_eq!(fixed_bits(&list), Some(784 * 8));
        assert_eq!(fixed_bits(&DataType::Utf8), None);
        assert_eq!(fixed_bits(&DataType::Decimal128(10, 2)), Some(128));
    }
}
