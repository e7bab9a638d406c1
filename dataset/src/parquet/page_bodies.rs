//! What lies in the pages of a column chunk, where the parquet crate's decoders take whatever it claims.
//!
//! Gzip, Brotli and framed LZ4 are unpacked to their end, however little the page's header says. And texts in
//! delta encodings begin with their lengths, of which the page itself says how many there are: a few bytes
//! that claim billions make the process take that memory, and end where there is none. So such pages are
//! unpacked once more before they are decoded; pages of other codecs and encodings are not looked at.

use crate::parquet::chunks::Chunks;
use crate::parquet::thrift::CompactReader;
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use lz4_flex::frame::FrameDecoder;
use parquet::basic::{Compression, Encoding};
use parquet::column::page::{Page, PageReader};
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::serialized_reader::SerializedPageReader;
use std::io::{self, Read};
use std::sync::Arc;

/// What Brotli unpacks into at a time.
const BUFFER_BYTES: usize = 64 << 10;

/// Encodings of texts and bytes that begin with lengths.
const DELTAS: [Encoding; 2] = [Encoding::DELTA_LENGTH_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY];

/// The same, as they are numbered in the headers of pages.
pub(super) const DELTA_NUMBERS: [u64; 2] = [6, 7];

/// Whether the footer says that a chunk has pages that [`check_deltas`] is for.
pub(super) fn has_deltas(chunk: &ColumnChunkMetaData) -> bool {
    chunk.encodings().any(|encoding| DELTAS.contains(&encoding))
}

/// Refuses a page that unpacks to more than its header `claimed`.
pub(super) fn check_unpacked(codec: Compression, packed: &[u8], claimed: u64) -> Result<(), ParquetError> {
    let most = claimed.saturating_add(1);
    let unpacked = match codec {
        Compression::GZIP(_) => unpack(MultiGzDecoder::new(packed), most),
        Compression::BROTLI(_) => unpack(brotli::Decompressor::new(packed, BUFFER_BYTES), most),
        Compression::LZ4 => unpack(FrameDecoder::new(packed), most),
        _ => return Ok(()),
    };
    match unpacked > claimed {
        true => Err(ParquetError::General(format!("a page that claims to hold {claimed} bytes holds more"))),
        false => Ok(()),
    }
}

/// How many bytes come, of `most` at most. Why no more can be unpacked is for the decoder to say.
fn unpack(packed: impl Read, most: u64) -> u64 {
    io::copy(&mut packed.take(most), &mut io::sink()).unwrap_or(0)
}

/// Refuses a chunk with a page of delta-encoded texts that says it has more of them than values. Its pages
/// must have been checked otherwise before.
pub(super) fn check_deltas(chunks: &Chunks, chunk: &ColumnChunkMetaData) -> Result<(), ParquetError> {
    let levels = [chunk.column_descr().max_rep_level(), chunk.column_descr().max_def_level()];
    // The number of rows is for those who skip some.
    let mut pages = SerializedPageReader::new(Arc::new(chunks.clone()), chunk, 0, None)?;
    while let Some(page) = pages.get_next_page()? {
        let wrong = || {
            ParquetError::General(
                "a page of texts in a delta encoding claims more of them than it has values".into(),
            )
        };
        let (mut rest, encoding, values) = match page {
            Page::DataPage { buf, num_values, encoding, .. } => {
                let levels = levels.iter().filter(|level| **level > 0);
                (levels.clone().try_fold(buf, |rest, _| Some(prefixed(&rest)?.1)), encoding, num_values)
            }
            Page::DataPageV2 {
                buf, num_values, encoding, def_levels_byte_len, rep_levels_byte_len, ..
            } => {
                let levels = (def_levels_byte_len as usize).checked_add(rep_levels_byte_len as usize);
                (levels.filter(|at| *at <= buf.len()).map(|at| buf.slice(at..)), encoding, num_values)
            }
            Page::DictionaryPage { .. } => continue,
        };
        let lists = DELTAS.iter().position(|of| *of == encoding).map_or(0, |at| at + 1);
        for _ in 0..lists {
            rest = rest.and_then(|rest| after_lengths(&rest, values.into()));
            if rest.is_none() {
                return Err(wrong());
            }
        }
    }
    Ok(())
}

/// Bytes preceded by their length, and what follows them.
pub(super) fn prefixed(bytes: &Bytes) -> Option<(Bytes, Bytes)> {
    let length = u32::from_le_bytes(*bytes.first_chunk()?) as usize;
    let end = length.checked_add(4).filter(|end| *end <= bytes.len())?;
    Some((bytes.slice(4..end), bytes.slice(end..)))
}

/// What follows a list of numbers in `DELTA_BINARY_PACKED`, found as the parquet crate finds it; `None` if it
/// says that it has more than `most` numbers, or ends beyond these bytes.
fn after_lengths(bytes: &Bytes, most: u64) -> Option<Bytes> {
    let mut reader = CompactReader { bytes };
    let (block, parts, count) = (reader.varint()?, reader.varint()?, reader.varint()?);
    let _first = reader.varint()?;
    let values_of_part = block.checked_div(parts)?;
    if count > most {
        return None;
    }
    let mut left = count.saturating_sub(1);
    while left > 0 && values_of_part > 0 {
        let _least = reader.varint()?;
        let widths = reader.bytes;
        reader.take(parts)?;
        for width in &widths[..widths.len() - reader.bytes.len()] {
            // Those behind the last number have no bytes, whatever they say.
            if left > 0 {
                reader.take(u64::from(*width).checked_mul(values_of_part)? / 8)?;
                left = left.saturating_sub(values_of_part);
            }
        }
    }
    Some(bytes.slice_ref(reader.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::write::GzEncoder;
    use std::io::Write;

    #[test]
    fn a_page_unpacks_to_no_more_than_it_claims() {
        let zeros = vec![0; 1 << 20];
        let mut gzip = GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(&zeros).unwrap();
        let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
        lz4.write_all(&zeros).unwrap();
        let mut packed_brotli = Vec::new();
        let mut writer = brotli::CompressorWriter::new(&mut packed_brotli, 4096, 5, 20);
        writer.write_all(&zeros).unwrap();
        drop(writer);
        for (codec, packed) in [
            (Compression::GZIP(Default::default()), gzip.finish().unwrap()),
            (Compression::BROTLI(Default::default()), packed_brotli),
            (Compression::LZ4, lz4.finish().unwrap()),
        ] {
            assert!(packed.len() < 10_000);
            let is_taken = |claimed| check_unpacked(codec, &packed, claimed).is_ok();
            assert!(is_taken(1 << 20) && !is_taken((1 << 20) - 1) && !is_taken(0), "{codec}");
            assert!(check_unpacked(codec, b"something else", 0).is_ok(), "{codec}: the decoder tells");
        }
        assert!(check_unpacked(Compression::SNAPPY, &zeros, 0).is_ok());
    }

    #[test]
    fn lengths_are_passed_over_as_they_are_decoded() {
        // Blocks of 128 numbers in 4 parts: 1 + 40 numbers, the first part of 8 bits, the second of 1.
        let header = |count: u8| [0x80, 0x01, 4, count, 0];
        let block = [&[0, 8, 1, 77, 77][..], &[1; 32], &[0; 4]].concat();
        let bytes = |count: u8| Bytes::from([&header(count)[..], &block, b"rest"].concat());
        assert_eq!(after_lengths(&bytes(41), 41).as_deref(), Some(&b"rest"[..]));
        assert_eq!(after_lengths(&bytes(41), 40), None, "more than there are values");
        assert_eq!(after_lengths(&bytes(33), 99).unwrap().len(), 4 + 4, "the second part has no number");
        assert_eq!(after_lengths(&bytes(1), 99).unwrap().len(), block.len() + 4, "and there is no block");
        for end in 0..5 + block.len() {
            assert_eq!(after_lengths(&bytes(41).slice(..end), 41), None);
        }
        // Blocks of no number, of which the decoder finds no end.
        let endless = [&[0, 1, 41, 0][..], &[0; 99]].concat();
        assert!(after_lengths(&endless.into(), 41).is_some());
    }
}
