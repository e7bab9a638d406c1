//! What the pages of a column chunk say they hold, before any is unpacked.
//!
//! A page's header claims how large the page is unpacked, and the decoder takes that much memory; a few
//! kilobytes that unpack to gigabytes are easily made. The cost of a segment was reckoned from its footer,
//! so pages that claim far more than the footer are refused. Headers are in Thrift's compact protocol; of
//! their meaning only the first three fields are read here. Other bytes are left to the decoder to refuse.

use crate::parquet::chunks::Chunks;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;

/// Pages may claim twice what the footer says of their chunk, and this: some writers leave out dictionaries.
const LEEWAY_BYTES: u64 = 16 << 20;

/// Structs within structs, in a header.
const DEPTH_MAX: u32 = 8;

/// Bytes of a header at most: its statistics may hold long values.
const HEADER_BYTES_MAX: usize = 1 << 20;

/// What a header says.
#[derive(Debug, PartialEq, Eq)]
struct PageClaim {
    unpacked: u64,
    packed: u64,
    header_bytes: u64,
}

/// Refuses a chunk whose pages, as far as they were fetched, claim far more than the footer says.
pub(super) fn check(chunks: &Chunks, chunk: &ColumnChunkMetaData) -> Result<(), ParquetError> {
    if chunk.compression() == Compression::UNCOMPRESSED {
        return Ok(());
    }
    let announced = u64::try_from(chunk.uncompressed_size()).unwrap_or(0);
    let limit = announced.saturating_mul(2).saturating_add(LEEWAY_BYTES);
    let (start, length) = chunk.byte_range();
    let (mut at, mut all) = (start, 0u64);
    while at < start + length {
        let Ok(bytes) = chunks.from(at) else { return Ok(()) };
        let Some(claim) = claim(&bytes[..bytes.len().min(HEADER_BYTES_MAX)]) else { return Ok(()) };
        all = all.saturating_add(claim.unpacked);
        if all > limit {
            return Err(ParquetError::General(format!(
                "its pages claim to hold {all} bytes, where the footer says {announced}"
            )));
        }
        at = at.saturating_add(claim.header_bytes).saturating_add(claim.packed);
    }
    Ok(())
}

/// Reads a header; `None` if these bytes do not begin with one.
fn claim(bytes: &[u8]) -> Option<PageClaim> {
    let mut reader = CompactReader { bytes };
    let (mut unpacked, mut packed, mut field) = (None, None, 0);
    while let Some(kind) = reader.field(&mut field)? {
        match (field, kind) {
            (2, I32) => unpacked = u64::try_from(reader.number()?).ok(),
            (3, I32) => packed = u64::try_from(reader.number()?).ok(),
            _ => reader.skip(kind, 0)?,
        }
    }
    let header_bytes = (bytes.len() - reader.bytes.len()) as u64;
    Some(PageClaim { unpacked: unpacked?, packed: packed?, header_bytes })
}

/// Types of the compact protocol.
const BYTE: u8 = 3;
const I16: u8 = 4;
const I32: u8 = 5;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const STRUCT: u8 = 12;

/// Reads Thrift's compact protocol.
struct CompactReader<'a> {
    bytes: &'a [u8],
}

impl CompactReader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn number(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// The type of the struct's next field, whose number is put in `field`; nothing at its end.
    #[expect(clippy::option_option, reason = "broken, the end, or a field")]
    fn field(&mut self, field: &mut i64) -> Option<Option<u8>> {
        let head = self.byte()?;
        if head == 0 {
            return Some(None);
        }
        *field = match head >> 4 {
            0 => self.number()?,
            more => *field + i64::from(more),
        };
        Some(Some(head & 0x0f))
    }

    fn take(&mut self, count: u64) -> Option<()> {
        self.bytes = self.bytes.get(usize::try_from(count).ok()?..)?;
        Some(())
    }

    fn skip(&mut self, kind: u8, depth: u32) -> Option<()> {
        match kind {
            // A boolean is its type.
            1 | 2 => Some(()),
            BYTE => self.take(1),
            I16 | I32 | I64 => self.varint().map(drop),
            DOUBLE => self.take(8),
            BINARY => {
                let length = self.varint()?;
                self.take(length)
            }
            LIST | SET => {
                let head = self.byte()?;
                let count = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
                // In a list a boolean takes a byte.
                let kind = if matches!(head & 0x0f, 1 | 2) { BYTE } else { head & 0x0f };
                (0..count).try_for_each(|_| if depth < DEPTH_MAX { self.skip(kind, depth + 1) } else { None })
            }
            STRUCT if depth < DEPTH_MAX => {
                let mut field = 0;
                while let Some(kind) = self.field(&mut field)? {
                    self.skip(kind, depth + 1)?;
                }
                Some(())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_and_other_bytes_are_not() {
        // A data page of 300 bytes, 100 packed, with statistics.
        let header = [
            0x15, 0, 0x15, 0xd8, 0x04, 0x15, 0xc8, 0x01, 0x2c, 0x15, 2, 0x15, 0, 0x1c, 0x18, 1, b'm', 0, 0,
            0, 99,
        ];
        let claim_of = PageClaim { unpacked: 300, packed: 100, header_bytes: 20 };
        assert_eq!(claim(&header), Some(claim_of));
        for end in 0..20 {
            assert_eq!(claim(&header[..end]), None);
        }
        assert_eq!(claim(&[0x15, 0, 0x15, 0xd7, 0x04, 0x15, 2, 0]), None, "a negative size");
        assert_eq!(claim(&[0x1c; 1000]), None, "structs without an end");
        // A list that claims more than there is.
        assert_eq!(claim(&[0x19, 0xf5, 0xff, 0xff, 0xff, 0xff, 0x0f]), None);
    }
}
