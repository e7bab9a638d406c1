//! The pieces of a manifest: segments, and the parts of a mix.

use crate::error::{Error, Result};
use crate::v1;
use std::ops::Range;

/// One segment: consecutive row groups of one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Segment {
    /// Index into [`Manifest::objects`].
    pub object: u32,
    /// Index of the first row group in the object.
    pub first_row_group: u32,
    /// Number of consecutive row groups.
    pub row_groups: u32,
    /// Rows that belong to the dataset: consecutive ones of the segment's.
    pub rows: u64,
    /// Rows of the segment before them: more than 0 only where a split begins.
    pub skip: u64,
    /// Rows of the whole segment, fewer than 2^32.
    pub total_rows: u64,
    /// The dataset's rows before this segment's, in file order.
    pub first_row: u64,
    /// Estimated decoded bytes of all columns.
    pub decoded_bytes: u64,
}

/// One dataset of a mix, or the only one: consecutive segments of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Where the dataset lies, in normal form.
    pub uri: String,
    /// Indices into [`Manifest::segments`](super::Manifest::segments).
    pub segments: Range<u32>,
    /// Sum over the segments.
    pub rows: u64,
    /// Samples of this part in each block of samples; a block has the sum of all parts' slots.
    pub slots: u32,
}

/// A segment before it has its place in a manifest. Segments of an object follow each other without gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentSize {
    /// Index into the manifest's objects.
    pub object: u32,
    /// Consecutive row groups.
    pub row_groups: u32,
    /// Sum over the row groups.
    pub rows: u64,
    /// Estimated decoded bytes of all columns.
    pub decoded_bytes: u64,
}

/// Whether segments are whole and follow each other from each object's start.
pub(super) fn is_whole(segments: &[Segment]) -> bool {
    let mut next = (0, 0);
    segments.iter().all(|s| {
        let first = if s.object == next.0 { next.1 } else { 0 };
        next = (s.object, s.first_row_group + s.row_groups);
        s.first_row_group == first && s.skip == 0 && s.rows == s.total_rows
    })
}

/// Segments from their columns; `Corrupt` if those are of different lengths.
pub(super) fn segments(uri: &str, w: v1::Segments) -> Result<Vec<Segment>> {
    let n = w.object.len();
    let optional = [w.first_row_group.len(), w.skip.len(), w.total_rows.len()];
    if [w.row_groups.len(), w.rows.len(), w.decoded_bytes.len()] != [n; 3]
        || (optional != [0; 3] && optional != [n; 3])
    {
        return Err(Error::corrupt(format!("{uri}: malformed manifest: ragged segments")));
    }
    let mut next = (0, 0u32);
    let segment = |i: usize| {
        let (object, row_groups) = (w.object[i], w.row_groups[i]);
        let follows = if object == next.0 { next.1 } else { 0 };
        let first_row_group = w.first_row_group.get(i).copied().unwrap_or(follows);
        next = (object, first_row_group.saturating_add(row_groups));
        Segment {
            object,
            first_row_group,
            row_groups,
            rows: w.rows[i],
            skip: w.skip.get(i).copied().unwrap_or(0),
            total_rows: w.total_rows.get(i).copied().unwrap_or(w.rows[i]),
            first_row: 0,
            decoded_bytes: w.decoded_bytes[i],
        }
    };
    Ok((0..n).map(segment).collect())
}
