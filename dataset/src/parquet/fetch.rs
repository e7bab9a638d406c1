//! Fetching: the bytes of column chunks, in few ranged reads.
//!
//! Chunks that lie close together are read in one request, long ranges in several at once: in more of them
//! while requests are free, as the streams of an object store are slow one by one. Every request names the
//! object's version.

use crate::parquet::chunks::{Chunks, FetchedRange};
use crate::parquet::footer::RowGroups;
use crate::source::{Source, SourceObject};
use crate::urgency::Urgency;
use forebay_proto::Result;
use futures::{StreamExt, TryStreamExt, stream};
use std::ops::Range;

/// A gap up to this is read along: cheaper than one more request.
pub(super) const GAP_BYTES: u64 = 4 << 10;

/// Longer ranges are read in pieces at once.
pub(crate) const PIECE_BYTES: u64 = 8 << 20;

/// Shorter ones save little: S3 thinks for as long as it sends this much.
const PIECE_BYTES_MIN: u64 = 2 << 20;

/// The pieces in which `bytes` are read best while this number of requests is free.
pub(crate) fn piece_bytes(bytes: u64, free: u64) -> u64 {
    bytes.div_ceil(free.max(1)).clamp(PIECE_BYTES_MIN, PIECE_BYTES)
}

/// The bytes of `ranges` of an object, in requests of at most `piece_bytes`.
pub(crate) async fn fetch(
    source: &Source,
    object: &SourceObject,
    ranges: Vec<Range<u64>>,
    piece_bytes: u64,
    urgency: &Urgency,
) -> Result<Chunks> {
    let joined = coalesce(ranges, GAP_BYTES);
    let mut fetched: Vec<Vec<u8>> = joined.iter().map(|r| vec![0; (r.end - r.start) as usize]).collect();
    let mut pieces = Vec::new();
    for (range, mut rest) in joined.iter().zip(fetched.iter_mut().map(Vec::as_mut_slice)) {
        for piece in split(range, piece_bytes) {
            let (part, after) = rest.split_at_mut((piece.end - piece.start) as usize);
            pieces.push(source.get_into(object, piece.start, part, urgency));
            rest = after;
        }
    }
    // How many are sent at once is the business of the source's limits.
    stream::iter(pieces).buffer_unordered(source.settings().s3_max_requests).try_collect::<()>().await?;
    let ranges = joined.iter().zip(fetched);
    let ranges = ranges.map(|(range, bytes)| FetchedRange { start: range.start, bytes: bytes.into() });
    Ok(Chunks { size: object.size, ranges: ranges.collect() })
}

/// The bytes of `ranges` of an object likewise, handed on with where they lie, as they come.
pub(super) async fn fetch_pieces(
    source: &Source,
    object: &SourceObject,
    ranges: &[Range<u64>],
    piece_bytes: u64,
    urgency: &Urgency,
    hand_on: impl Fn(u64, &[u8]) + Send + Sync,
) -> Result<()> {
    let mut pieces = Vec::new();
    for piece in ranges.iter().flat_map(|range| split(range, piece_bytes)) {
        let (mut at, hand_on) = (piece.start, &hand_on);
        pieces.push(source.get_pieces(object, piece, urgency, move |bytes| {
            hand_on(at, &bytes);
            at += bytes.len() as u64;
        }));
    }
    stream::iter(pieces).buffer_unordered(source.settings().s3_max_requests).try_collect().await
}

/// Where the chunks of `columns` lie.
pub(crate) fn chunk_ranges(
    part: &RowGroups,
    columns: impl Iterator<Item = usize> + Clone,
) -> Vec<Range<u64>> {
    let groups = part.metadata().iter();
    let chunks = groups.flat_map(|g| columns.clone().flat_map(|c| part.footer.chunks(g, c)));
    let ranges = chunks.map(|chunk| {
        let (start, length) = chunk.byte_range();
        start..start + length
    });
    ranges.filter(|r| !r.is_empty()).collect()
}

/// Sorted, and joined where at most `gap` bytes lie between them.
pub(super) fn coalesce(mut ranges: Vec<Range<u64>>, gap: u64) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|r| (r.start, r.end));
    let mut joined: Vec<Range<u64>> = Vec::new();
    for r in ranges {
        match joined.last_mut() {
            Some(last) if r.start <= last.end.saturating_add(gap) => last.end = last.end.max(r.end),
            _ => joined.push(r),
        }
    }
    joined
}

/// Equal pieces of at most `piece_bytes`.
fn split(range: &Range<u64>, piece_bytes: u64) -> impl Iterator<Item = Range<u64>> + use<> {
    let (start, len) = (range.start, range.end - range.start);
    let count = len.div_ceil(piece_bytes).max(1);
    (0..count).map(move |i| start + len * i / count..start + len * (i + 1) / count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "lists of ranges are under test")]
    fn near_ranges_join() {
        assert_eq!(coalesce(vec![10..20, 0..10, 20..30], 0), [0..30]);
        assert_eq!(coalesce(vec![0..10, 4106..4110, 9000..9001], 4 << 10), [0..4110, 9000..9001]);
        assert!(coalesce(vec![], 1).is_empty());
    }

    #[test]
    fn free_requests_share_the_bytes() {
        for (mib, free, pieces) in
            [(60, 0, 8), (60, 1, 8), (60, 10, 10), (60, 1000, 30), (1, 32, 1), (11, 32, 6)]
        {
            let range = 0..mib << 20;
            let cut = split(&range, piece_bytes(range.end, free));
            assert_eq!(cut.count(), pieces, "{mib} MiB while {free} are free");
        }
    }

    #[test]
    fn pieces_cover_a_range() {
        for len in [1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES + 7] {
            let range = 13..13 + len;
            let pieces: Vec<_> = split(&range, PIECE_BYTES).collect();
            assert_eq!((pieces[0].start, pieces[pieces.len() - 1].end), (range.start, range.end));
            assert!(pieces.windows(2).all(|w| w[0].end == w[1].start));
            assert!(pieces.iter().all(|p| p.end - p.start <= PIECE_BYTES && !p.is_empty()));
            assert_eq!(pieces.len() as u64, len.div_ceil(PIECE_BYTES));
        }
    }
}
