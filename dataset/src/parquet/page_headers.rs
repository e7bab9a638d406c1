//! What the pages of a column chunk say they hold, before any is unpacked.
//!
//! A page's header claims how large the page is unpacked, and how many values it has; the decoder takes that
//! much memory, and a few kilobytes that unpack to gigabytes are easily made. The cost of a segment was
//! reckoned from its footer, so pages that claim far more than the footer are refused.

use crate::parquet::chunks::Chunks;
use crate::parquet::thrift::{CompactReader, I32, STRUCT};
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::page_index::offset_index::PageLocation;

/// Pages may claim twice what the footer says of their chunk, and this: some writers leave out dictionaries.
const LEEWAY_BYTES: u64 = 16 << 20;

/// What a header says.
#[derive(Debug, PartialEq, Eq)]
struct PageClaim {
    unpacked: u64,
    packed: u64,
    /// Of a page of data, nulls included.
    values: u64,
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
    let mut at = start;
    while at < start + length {
        let Ok(bytes) = chunks.from(at) else { return Ok(()) };
        let Some(page) = claim(&bytes) else { return all.end() };
        all.add(&page)?;
        at = at.saturating_add(page.header_bytes).saturating_add(page.packed);
    }
    Ok(())
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
            Ok(bytes) if !bytes.is_empty() => all.add(&claim(&bytes).ok_or_else(unreadable)?)?,
            _ => {}
        }
    }
    Ok(())
}

impl ChunkClaim<'_> {
    fn add(&mut self, page: &PageClaim) -> Result<(), ParquetError> {
        let said = |number: i64| u64::try_from(number).unwrap_or(0);
        let is_packed = self.chunk.compression() != Compression::UNCOMPRESSED;
        let (bytes, values) = (said(self.chunk.uncompressed_size()), said(self.chunk.num_values()));
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

fn unreadable() -> ParquetError {
    ParquetError::General("the header of a page cannot be read".into())
}

/// Reads a header; `None` if these bytes do not begin with one.
fn claim(bytes: &[u8]) -> Option<PageClaim> {
    let mut reader = CompactReader { bytes };
    let (mut unpacked, mut packed, mut field) = (None, None, 0);
    let (mut values, mut entries) = (0, 0);
    while let Some(kind) = reader.field(&mut field)? {
        match (field, kind) {
            (2, I32) => unpacked = Some(reader.count()?),
            (3, I32) => packed = Some(reader.count()?),
            // Of both versions of pages of data, and of dictionaries.
            (5, STRUCT) => values = values.max(first(&mut reader, 4)?),
            (8, STRUCT) => values = values.max(first(&mut reader, 6)?),
            (7, STRUCT) => entries = entries.max(first(&mut reader, 2)?),
            (1 | 4, I32) | (6, STRUCT) => reader.skip(kind)?,
            (1..=8, _) => return None,
            _ => reader.skip(kind)?,
        }
    }
    let header_bytes = (bytes.len() - reader.bytes.len()) as u64;
    Some(PageClaim { unpacked: unpacked?, packed: packed?, values, entries, header_bytes })
}

/// The first field of a struct whose first `numbers` fields are numbers.
fn first(reader: &mut CompactReader<'_>, numbers: i64) -> Option<u64> {
    let (mut found, mut field) = (None, 0);
    while let Some(kind) = reader.field(&mut field)? {
        match (field, kind) {
            (1, I32) => found = Some(reader.count()?),
            (field, kind) if (1..=numbers).contains(&field) && kind != I32 => return None,
            _ => reader.skip(kind)?,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_and_other_bytes_are_not() {
        // A data page of 300 bytes, 100 packed, with one value and statistics.
        let header = [
            0x15, 0, 0x15, 0xd8, 0x04, 0x15, 0xc8, 0x01, 0x2c, 0x15, 2, 0x15, 0, 0x15, 6, 0x15, 6, 0x1c,
            0x18, 1, b'm', 0, 0, 0, 99,
        ];
        let claim_of = PageClaim { unpacked: 300, packed: 100, values: 1, entries: 0, header_bytes: 24 };
        assert_eq!(claim(&header), Some(claim_of));
        for end in 0..24 {
            assert_eq!(claim(&header[..end]), None);
        }
        // A dictionary of 5 entries.
        let dictionary = [0x15, 4, 0x15, 40, 0x15, 40, 0x4c, 0x15, 10, 0x15, 0, 0, 0];
        let claim_of = PageClaim { unpacked: 20, packed: 20, values: 0, entries: 5, header_bytes: 13 };
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
