//! The filter of a manifest: which rows of its objects a dataset has.
//!
//! `forebay-dataset` gives the predicate its meaning. Here it is a text, and how many rows it leaves of each
//! row group: a segment of such a dataset is the rows that are left of its row groups.

use super::layout::{Segment, SegmentSize};
use crate::v1;

/// Bytes of a predicate at most: all that read a manifest parse it.
pub const FILTER_BYTES_MAX: usize = 16 << 10;

/// Which rows of its objects a dataset has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    wire: v1::Filter,
    /// For each segment where its row groups begin in the filter's rows, and where the last one ends.
    starts: Vec<usize>,
}

/// A segment of a filtered dataset before it has its place in a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilteredSegment {
    /// The segment; its rows are those that are left.
    pub size: SegmentSize,
    /// Its first row group in the object.
    pub first_row_group: u32,
    /// Rows that are left of each row group.
    pub rows: Vec<u32>,
}

impl Filter {
    /// The predicate, true for these rows, in normal form; empty where only deleted rows are left out.
    pub fn predicate(&self) -> &str {
        &self.wire.predicate
    }

    /// Rows that are left of each row group of each segment.
    pub fn rows(&self) -> &[u32] {
        &self.wire.rows
    }

    /// Rows that are left of each row group of a segment; none if there is no such segment.
    pub fn rows_of(&self, segment: u32) -> &[u32] {
        let at = |i: usize| self.starts.get(i).copied();
        let range = at(segment as usize).zip(at(segment as usize + 1));
        range.and_then(|(start, end)| self.wire.rows.get(start..end)).unwrap_or_default()
    }

    /// The same predicate for other row groups.
    pub(crate) fn with_rows(&self, rows: Vec<u32>) -> v1::Filter {
        v1::Filter { predicate: self.predicate().to_owned(), rows }
    }
}

impl From<&Filter> for v1::Filter {
    fn from(filter: &Filter) -> Self {
        filter.wire.clone()
    }
}

impl Filter {
    /// The filter of some segments, or why it cannot be theirs.
    pub(super) fn new(wire: v1::Filter, segments: &[Segment]) -> Result<Self, String> {
        if wire.predicate.len() > FILTER_BYTES_MAX {
            return Err(format!("a filter of {} bytes", wire.predicate.len()));
        }
        let (mut starts, mut at) = (Vec::with_capacity(segments.len() + 1), 0usize);
        for (i, s) in segments.iter().enumerate() {
            starts.push(at);
            let own = at.checked_add(s.row_groups as usize).and_then(|end| wire.rows.get(at..end));
            let own = own.ok_or("ragged filter")?;
            let sum: u64 = own.iter().map(|rows| u64::from(*rows)).sum();
            if sum != s.total_rows {
                return Err(format!("segment {i} has {} rows, the filter leaves {sum}", s.total_rows));
            }
            at += own.len();
        }
        starts.push(at);
        match at == wire.rows.len() {
            true => Ok(Self { wire, starts }),
            false => Err("ragged filter".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Result;
    use crate::manifest::Manifest;
    use crate::v1::Object;

    fn filtered(predicate: &str, rows: &[&[u32]]) -> Result<Manifest> {
        let object = Object { key: "o".into(), etag: "e".into(), size: 9, ..Default::default() };
        let mut first_row_group = 3;
        let segment = |rows: &&[u32]| {
            first_row_group += 4;
            let (row_groups, sum) = (rows.len() as u32, rows.iter().map(|r| u64::from(*r)).sum());
            let size = SegmentSize { object: 0, row_groups, rows: sum, decoded_bytes: 8 * sum };
            FilteredSegment { size, first_row_group, rows: rows.to_vec() }
        };
        let kept = rows.iter().map(segment).collect();
        Manifest::new_filtered("s3://b/a", 1, vec![1], vec![object], (predicate.to_owned(), kept, None))
    }

    #[test]
    fn a_filter_is_part_of_the_version_and_of_the_segments() {
        let m = filtered("x > 3", &[&[2, 0, 5], &[7]]).unwrap();
        let other = filtered("x > 4", &[&[2, 0, 5], &[7]]).unwrap();
        let moved = filtered("x > 3", &[&[2, 1, 4], &[7]]).unwrap();
        assert!(m.digest() != other.digest() && m.digest() != moved.digest());
        assert!(m.segment_id(0).unwrap() != moved.segment_id(0).unwrap());
        assert!(m.segment_id(1).unwrap() == moved.segment_id(1).unwrap());
        assert!(m.segment_id(1).unwrap() != other.segment_id(1).unwrap());
        assert_eq!((m.rows(), m.filter().unwrap().rows_of(0)), (14, &[2, 0, 5][..]));
        assert_eq!((m.segments()[1].first_row_group, m.filter().unwrap().rows_of(2)), (11, &[][..]));
        let wire = v1::Manifest::from(&m);
        assert_eq!((wire.format, Manifest::try_from(wire.clone()).unwrap()), (3, m.clone()));
        for bad in [
            v1::Filter { predicate: String::new(), rows: vec![2, 0, 5, 7] },
            v1::Filter { predicate: "x".repeat(FILTER_BYTES_MAX + 1), rows: vec![2, 0, 5, 7] },
            v1::Filter { predicate: "x > 3".into(), rows: vec![2, 0, 5] },
            v1::Filter { predicate: "x > 3".into(), rows: vec![2, 0, 5, 7, 1] },
            v1::Filter { predicate: "x > 3".into(), rows: vec![2, 0, 6, 7] },
        ] {
            assert!(Manifest::try_from(v1::Manifest { filter: Some(bad), ..wire.clone() }).is_err());
        }
        assert!(Manifest::try_from(v1::Manifest { format: 2, ..wire.clone() }).is_err());
        assert!(Manifest::try_from(v1::Manifest { filter: None, ..wire }).is_err());
    }

    #[test]
    fn splits_and_mixes_keep_the_filter_of_their_segments() {
        let m = filtered("x > 3", &[&[2, 0, 5], &[7], &[1, 1]]).unwrap();
        let split = m.split(&"8:15".parse().unwrap()).unwrap();
        assert_eq!((split.rows(), split.filter().unwrap().rows()), (7, &[7, 1, 1][..]));
        assert_eq!(split.segment_id(0).unwrap(), m.segment_id(1).unwrap());
        for empty in ["0:0", "7:7", "8:8", "16:16"] {
            let split = m.split(&empty.parse().unwrap()).unwrap();
            assert_eq!((split.rows(), split.segments().len()), (0, 0), "{empty}");
            assert!(split.filter().unwrap().rows().is_empty(), "{empty}");
        }
        let mix = Manifest::mix(&[(split.clone(), 1.0), (m.clone(), 2.0)]).unwrap();
        assert_eq!(mix.filter().unwrap().rows_of(2), &[2, 0, 5]);
        assert_eq!(mix.segment_id(2).unwrap(), m.segment_id(0).unwrap());
        let other = filtered("x > 4", &[&[2]]).unwrap();
        assert!(Manifest::mix(&[(m, 1.0), (other, 1.0)]).unwrap_err().message.contains("filters differ"));
    }
}
