//! What the pages of a column chunk say they hold, before any is unpacked.
//!
//! A page's header claims how large the page is unpacked, and how many values it has; the decoder takes that
//! much memory, and a few kilobytes that unpack to gigabytes are easily made. The cost of a segment was
//! reckoned from its footer, so pages that claim far more than the footer are refused.

use crate::parquet::chunks::Chunks;
use crate::parquet::page_bodies::{DELTA_NUMBERS, check_deltas, check_unpacked};
use crate::parquet::thrift::{CompactReader, I32, STRUCT};
use parquet::basic::{Compression, Type as Physical};
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::page_index::offset_index::PageLocation;

/// Pages may claim twice what the footer says of their chunk, and this: some writers leave out dictionaries.
const LEEWAY_BYTES: u64 = 16 << 20;

/// How the header of a page of data of version 2 says that it is one.
const DATA_PAGE_V2: u64 = 3;

/// What a header says.
#[derive(Debug, PartialEq, Eq)]
struct PageClaim {
    unpacked: u64,
    packed: u64,
    /// Of a page of data, nulls included.
    values: u64,
    /// As they are numbered in the format, of pages of data of both versions: only one is one.
    encodings: [u64; 2],
    /// Bytes of levels that are not packed: in version 2.
    levels: u64,
    /// Of a dictionary.
    entries: u64,
    header_bytes: u64,
}

/// What the headers of a chunk's pages say together.
struct ChunkClaim<'a> {
    chunk: &'a ColumnChunkMetaData,
    unpacked: u64,
    values: u64,
}

/// Refuses a chunk whose pages claim far more bytes than the footer says, or more values.
pub(super) fn check(chunks: &Chunks, chunk: &ColumnChunkMetaData) -> Result<(), ParquetError> {
    let mut all = ChunkClaim { chunk, unpacked: 0, values: 0 };
    let (start, length) = chunk.byte_range();
    let (mut at, mut has_deltas) = (start, false);
    while at < start + length {
        let Ok(bytes) = chunks.from(at) else { return Ok(()) };
        let Some(page) = claim(&bytes) else { return all.end() };
        all.add(&page)?;
        page.check_body(chunk, &bytes)?;
        has_deltas |= page.has_deltas(chunk);
        at = at.saturating_add(page.header_bytes).saturating_add(page.packed);
    }
    if has_deltas { check_deltas(chunks, chunk) } else { Ok(()) }
}

/// The same of a chunk of which some `pages` were fetched, and are read each by its place.
pub(super) fn check_located(
    chunks: &Chunks,
    chunk: &ColumnChunkMetaData,
    pages: &[PageLocation],
) -> Result<(), ParquetError> {
    let mut all = ChunkClaim { chunk, unpacked: 0, values: 0 };
    let start = chunk.byte_range().0;
    // What lies before the first page is a dictionary.
    let dictionary = pages.first().filter(|page| page.offset as u64 != start).map(|_| start);
    for at in dictionary.into_iter().chain(pages.iter().map(|page| page.offset as u64)) {
        match chunks.from(at) {
            Ok(bytes) if !bytes.is_empty() => {
                let page = claim(&bytes).ok_or_else(unreadable)?;
                all.add(&page)?;
                page.check_body(chunk, &bytes)?;
                if page.has_deltas(chunk) {
                    let why = "a page in an encoding that the footer does not name is not supported";
                    return Err(ParquetError::General(why.into()));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

impl PageClaim {
    /// Refuses a page whose body, in `bytes` behind its header, unpacks to more than it claims.
    fn check_body(&self, chunk: &ColumnChunkMetaData, bytes: &[u8]) -> Result<(), ParquetError> {
        let (header, levels) = (self.header_bytes as usize, self.levels);
        let body = bytes.get(header..).unwrap_or_default();
        let body = &body[..body.len().min(self.packed as usize)];
        let packed = usize::try_from(levels).ok().and_then(|levels| body.get(levels..)).unwrap_or_default();
        check_unpacked(chunk.compression(), packed, self.unpacked.saturating_sub(levels))
    }

    /// Whether it has texts that begin with their lengths.
    fn has_deltas(&self, chunk: &ColumnChunkMetaData) -> bool {
        let kinds = [Physical::BYTE_ARRAY, Physical::FIXED_LEN_BYTE_ARRAY];
        self.values > 0
            && self.encodings.iter().any(|e| DELTA_NUMBERS.contains(e))
            && kinds.contains(&chunk.column_type())
    }
}

impl ChunkClaim<'_> {
    fn add(&mut self, page: &PageClaim) -> Result<(), ParquetError> {
        let said = |number: i64| u64::try_from(number).unwrap_or(0);
        let is_packed = self.chunk.compression() != Compression::UNCOMPRESSED;
        let values = said(self.chunk.num_values());
        let bytes = said(self.chunk.uncompressed_size()).min(most_bytes(self.chunk, values));
        self.values = self.values.saturating_add(page.values);
        if self.values > values {
            return Err(ParquetError::General(format!(
                "its pages claim to hold {} values, where the footer says {values}",
                self.values
            )));
        }
        // Each entry has a byte or more.
        let size = if is_packed { page.unpacked } else { page.packed };
        if page.entries > size {
            return Err(ParquetError::General(format!(
                "a dictionary of {size} bytes claims to have {} entries",
                page.entries
            )));
        }
        self.unpacked = self.unpacked.saturating_add(page.unpacked);
        if is_packed && self.unpacked > bytes.saturating_mul(2).saturating_add(LEEWAY_BYTES) {
            return Err(ParquetError::General(format!(
                "its pages claim to hold {} bytes, where the footer says {bytes}",
                self.unpacked
            )));
        }
        Ok(())
    }

    /// Where no header follows: an error, unless nobody reads on.
    fn end(&self) -> Result<(), ParquetError> {
        let is_flat = self.chunk.column_descr().max_rep_level() == 0;
        let is_whole = u64::try_from(self.chunk.num_values()) == Ok(self.values);
        if is_flat && is_whole { Ok(()) } else { Err(unreadable()) }
    }
}

/// Bytes that `values` of a chunk take at most, if they are all of one width: each in the dictionary, with
/// its number there and its levels. The footer may claim any size.
fn most_bytes(chunk: &ColumnChunkMetaData, values: u64) -> u64 {
    let descriptor = chunk.column_descr();
    let width = match descriptor.physical_type() {
        Physical::BOOLEAN => 1,
        Physical::INT32 | Physical::FLOAT => 4,
        Physical::INT64 | Physical::DOUBLE => 8,
        Physical::INT96 => 12,
        Physical::FIXED_LEN_BYTE_ARRAY => u64::try_from(descriptor.type_length()).unwrap_or(0),
        Physical::BYTE_ARRAY => return u64::MAX,
    };
    values.saturating_mul(width + 8)
}

fn unreadable() -> ParquetError {
    ParquetError::General("the header of a page cannot be read".into())
}

/// Reads a header; `None` if these bytes do not begin with one.
fn claim(bytes: &[u8]) -> Option<PageClaim> {
    let mut reader = CompactReader { bytes };
    let (mut unpacked, mut packed, mut field) = (None, None, 0);
    let (mut kind_of_page, mut values, mut entries, mut encodings, mut levels) = (0, 0, 0, [0; 2], 0);
    while let Some(kind) = reader.field(&mut field)? {
        match (field, kind) {
            (2, I32) => unpacked = Some(reader.count()?),
            (3, I32) => packed = Some(reader.count()?),
            // Of both versions of pages of data, and of dictionaries.
            (5, STRUCT) => {
                let [count, of, ..] = numbers(&mut reader, 4)?;
                (values, encodings[0]) = (values.max(count), of);
            }
            (8, STRUCT) => {
                let [count, _, _, of, definition, repetition] = numbers(&mut reader, 6)?;
                (values, encodings[1]) = (values.max(count), of);
                levels = definition.saturating_add(repetition);
            }
            (7, STRUCT) => entries = entries.max(numbers(&mut reader, 2)?[0]),
            (1, I32) => kind_of_page = reader.count()?,
            (4, I32) | (6, STRUCT) => reader.skip(kind)?,
            (1..=8, _) => return None,
            _ => reader.skip(kind)?,
        }
    }
    let header_bytes = (bytes.len() - reader.bytes.len()) as u64;
    let (unpacked, packed) = (unpacked?, packed?);
    let levels = if kind_of_page == DATA_PAGE_V2 { levels } else { 0 };
    Some(PageClaim { unpacked, packed, values, encodings, levels, entries, header_bytes })
}

/// The first `many` fields of a struct, all of them numbers; 0 for one that is not there, but the first has
/// to be.
fn numbers(reader: &mut CompactReader<'_>, many: usize) -> Option<[u64; 6]> {
    let (mut found, mut field, mut has_first) = ([0; 6], 0, false);
    while let Some(kind) = reader.field(&mut field)? {
        match usize::try_from(field).ok().filter(|field| (1..=many).contains(field)) {
            Some(number) if kind == I32 => {
                found[number - 1] = reader.count()?;
                has_first |= number == 1;
            }
            Some(_) => return None,
            None => reader.skip(kind)?,
        }
    }
    has_first.then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::schema::parser::parse_message_type;
    use parquet::schema::types::SchemaDescriptor;
    use std::sync::Arc;

    #[test]
    fn pages_of_numbers_hold_no_more_than_their_values_take() {
        let is_taken = |column: &str, unpacked: u64| {
            let schema = parse_message_type(&format!("message m {{ {column}; }}")).unwrap();
            let schema = SchemaDescriptor::new(Arc::new(schema));
            let chunk = ColumnChunkMetaData::builder(schema.column(0))
                .set_num_values(1000)
                .set_total_uncompressed_size(2 << 30)
                .set_compression(Compression::SNAPPY)
                .build()
                .unwrap();
            let mut all = ChunkClaim { chunk: &chunk, unpacked: 0, values: 0 };
            let (values, packed, header_bytes) = (1000, 100, 20);
            let (encodings, levels, entries) = ([0; 2], 0, 0);
            all.add(&PageClaim { unpacked, packed, values, encodings, levels, entries, header_bytes }).is_ok()
        };
        for (column, width) in [("required int32 x", 4), ("optional fixed_len_byte_array (70000) x", 70_000)]
        {
            let most = 2 * 1000 * (width + 8) + LEEWAY_BYTES;
            assert!(is_taken(column, 1000 * width) && is_taken(column, most) && !is_taken(column, most + 1));
        }
        assert!(is_taken("required binary x", 2 << 30), "a value may be as long");
    }

    #[test]
    fn headers_are_read_and_other_bytes_are_not() {
        // A data page of 300 bytes, 100 packed, with one value and statistics.
        let header = [
            0x15, 0, 0x15, 0xd8, 0x04, 0x15, 0xc8, 0x01, 0x2c, 0x15, 2, 0x15, 0, 0x15, 6, 0x15, 6, 0x1c,
            0x18, 1, b'm', 0, 0, 0, 99,
        ];
        let (encodings, levels) = ([0; 2], 0);
        let (unpacked, packed, values, entries, header_bytes) = (300, 100, 1, 0, 24);
        let claim_of = PageClaim { unpacked, packed, values, encodings, levels, entries, header_bytes };
        assert_eq!(claim(&header), Some(claim_of));
        for end in 0..24 {
            assert_eq!(claim(&header[..end]), None);
        }
        // A dictionary of 5 entries.
        let dictionary = [0x15, 4, 0x15, 40, 0x15, 40, 0x4c, 0x15, 10, 0x15, 0, 0, 0];
        let (unpacked, packed, values, entries, header_bytes) = (20, 20, 0, 5, 13);
        let claim_of = PageClaim { unpacked, packed, values, encodings, levels, entries, header_bytes };
        assert_eq!(claim(&dictionary), Some(claim_of));
        assert_eq!(claim(&[0x15, 0, 0x15, 0xd7, 0x04, 0x15, 2, 0]), None, "a negative size");
        assert_eq!(claim(&[0x1c; 1000]), None, "structs without an end");
        // A list that claims more than there is.
        assert_eq!(claim(&[0x99, 0xf5, 0xff, 0xff, 0xff, 0xff, 0x0f]), None);
        // The number of values said to be a boolean, which the decoder reads as a number.
        let values = [0x15, 0, 0x15, 2, 0x15, 2, 0x2c, 0x11, 0x15, 0, 0x15, 6, 0x15, 6, 0, 0];
        assert_eq!(claim(&values), None);
    }
}
