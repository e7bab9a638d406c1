//! Where an epoch reads each segment: intervals of positions, by segment and in the order of need. 32 bytes
//! for each segment.

use forebay_proto::plan::Order;
use std::ops::Range;

/// The positions between which a segment is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AccessInterval {
    pub segment: u32,
    pub start: u64,
    /// One past the last.
    pub end: u64,
}

/// All intervals of an epoch.
#[derive(Debug)]
pub(super) struct AccessSchedule {
    /// In the order of need: ascending by `start`.
    intervals: Vec<AccessInterval>,
    /// Positions of the longest interval.
    longest: u64,
    /// Entry i of `first` says where the intervals of segment i begin in `by_segment`.
    first: Vec<u32>,
    by_segment: Vec<u32>,
}

/// Bytes that the intervals of an epoch take.
pub(super) fn bytes(segments: usize) -> usize {
    32 * segments
}

impl AccessSchedule {
    /// The intervals of an order over `segments` segments, the last step of which is padded with rows of the
    /// epoch's first `padding` positions.
    pub fn new(order: &Order, segments: usize, padding: u64) -> Self {
        Self::of(order.spans(), segments, order.len(), padding)
    }

    fn of(spans: Vec<(u32, Range<u64>)>, segments: usize, samples: u64, padding: u64) -> Self {
        let interval =
            |(segment, span): (u32, Range<u64>)| AccessInterval { segment, start: span.start, end: span.end };
        let mut intervals: Vec<AccessInterval> = spans.into_iter().map(interval).collect();
        let padded = intervals.partition_point(|t| t.start < padding);
        let last = samples.saturating_sub(1);
        let again: Vec<_> = intervals[..padded]
            .iter()
            .map(|t| AccessInterval { segment: t.segment, start: last, end: samples + 1 })
            .collect();
        intervals.extend(again);
        let longest = intervals.iter().map(|t| t.end - t.start).max().unwrap_or(0);
        let mut first = vec![0u32; segments + 1];
        for t in &intervals {
            first[t.segment as usize + 1] += 1;
        }
        for i in 0..segments {
            first[i + 1] += first[i];
        }
        let (mut next, mut by_segment) = (first.clone(), vec![0; intervals.len()]);
        for (i, t) in intervals.iter().enumerate() {
            let place = &mut next[t.segment as usize];
            by_segment[*place as usize] = i as u32;
            *place += 1;
        }
        Self { intervals, longest, first, by_segment }
    }

    /// A segment's first interval that is not over at a position.
    pub fn next(&self, segment: u32, from: u64) -> Option<AccessInterval> {
        let segment = segment as usize;
        let range = *self.first.get(segment)? as usize..*self.first.get(segment + 1)? as usize;
        self.by_segment[range].iter().map(|&i| self.intervals[i as usize]).find(|t| t.end > from)
    }

    /// All intervals that are not over at a position, in the order of need.
    pub fn due(&self, from: u64) -> impl Iterator<Item = AccessInterval> + '_ {
        let earliest = from.saturating_sub(self.longest);
        let begin = self.intervals.partition_point(|t| t.start < earliest);
        self.intervals[begin..].iter().filter(move |t| t.end > from).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn intervals_are_found_by_segment_and_by_need(
            mut spans in prop::collection::vec((0u32..20, 0u64..100, 1u64..50), 0..60), from in 0u64..160,
            padding in 0u64..30,
        ) {
            spans.sort_by_key(|s| s.1);
            let ranges: Vec<_> = spans.iter().map(|(s, start, n)| (*s, *start..start + n)).collect();
            let uses = AccessSchedule::of(ranges.clone(), 20, 150, padding);
            let padded = ranges.iter().filter(|(_, r)| r.start < padding).map(|(s, _)| (*s, 149..151));
            let all: Vec<(u32, Range<u64>)> = ranges.iter().cloned().chain(padded).collect();
            for segment in 0..20 {
                let next = all.iter().find(|(s, r)| *s == segment && r.end > from);
                prop_assert_eq!(uses.next(segment, from).map(|t| (t.segment, t.start..t.end)), next.cloned());
            }
            let due: Vec<_> = uses.due(from).map(|t| (t.segment, t.start..t.end)).collect();
            let want: Vec<_> = all.into_iter().filter(|(_, r)| r.end > from).collect();
            prop_assert_eq!(due, want);
        }
    }
}
