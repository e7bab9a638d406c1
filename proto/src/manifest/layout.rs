//! The pieces of a manifest: objects, segments, and the parts of a mix.

use std::ops::Range;

/// One Parquet file of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Key relative to the manifest's URI; empty when the URI names the object itself.
    pub key: String,
    /// The object store's tag of this version of the bytes.
    pub etag: String,
    /// In bytes.
    pub size: u64,
}

/// One segment: consecutive row groups of one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// A segment before it has its place in a manifest.
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
