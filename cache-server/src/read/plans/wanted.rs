//! Which segments the open streams of a job want.
//!
//! The ranks of a run ask a node for the same segments, so there are few distinct sets however many streams
//! there are. Each is kept once, with a count; their union says in one look whether a segment is wanted at
//! all.

use forebay_proto::SegmentSet;
use std::sync::Arc;

/// The sets that open streams want.
#[derive(Debug, Default)]
pub(super) struct WantedSegments {
    /// Streams that want all segments.
    all: usize,
    /// Each distinct set, with the number of its streams.
    sets: Vec<(Arc<SegmentSet>, usize)>,
    /// The segments that are in any of the sets.
    union: Option<SegmentSet>,
}

impl WantedSegments {
    /// A stream comes that wants a set; `None` = all. Returns the set as it is shared by all streams that
    /// want the same.
    pub fn add(&mut self, wanted: Option<Arc<SegmentSet>>) -> Option<Arc<SegmentSet>> {
        let Some(wanted) = wanted else {
            self.all += 1;
            return None;
        };
        if let Some((set, streams)) = self.sets.iter_mut().find(|(set, _)| *set == wanted) {
            *streams += 1;
            return Some(set.clone());
        }
        match &mut self.union {
            Some(union) => union.extend(wanted.iter()),
            None => self.union = Some(wanted.as_ref().clone()),
        }
        self.sets.push((wanted.clone(), 1));
        Some(wanted)
    }

    /// A stream goes that wanted a set; `None` = all.
    pub fn remove(&mut self, wanted: Option<&Arc<SegmentSet>>) {
        let Some(wanted) = wanted else {
            self.all = self.all.saturating_sub(1);
            return;
        };
        let Some(at) = self.sets.iter().position(|(set, _)| Arc::ptr_eq(set, wanted)) else { return };
        self.sets[at].1 -= 1;
        if self.sets[at].1 > 0 {
            return;
        }
        self.sets.swap_remove(at);
        self.union = self.sets.first().map(|(set, _)| set.as_ref().clone());
        if let Some(union) = &mut self.union {
            self.sets.iter().skip(1).for_each(|(set, _)| union.extend(set.iter()));
        }
    }

    /// Whether an open stream wants a segment.
    pub fn contains(&self, segment: u32) -> bool {
        self.all > 0 || self.union.as_ref().is_some_and(|union| union.contains(segment))
    }

    /// Whether no stream is open.
    pub fn is_empty(&self) -> bool {
        self.all == 0 && self.sets.is_empty()
    }

    /// Bytes of memory that the sets take.
    pub fn bytes(&self) -> usize {
        let sets = self.sets.iter().map(|(set, _)| set.as_ref()).chain(&self.union);
        sets.map(SegmentSet::bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_segment_is_wanted_while_an_open_stream_wants_it(
            changes in prop::collection::vec((any::<bool>(), prop::option::of(0u8..16)), 0..60),
        ) {
            // Sets of four segments.
            let set = |bits: u8| Arc::new(SegmentSet::from_wire(&[bits], 4));
            let (mut wanted, mut open) = (WantedSegments::default(), Vec::new());
            for (comes, bits) in changes {
                if comes || open.is_empty() {
                    open.push(wanted.add(bits.map(set)));
                } else {
                    wanted.remove(open.swap_remove(open.len() / 2).as_ref());
                }
                for segment in 0..4 {
                    let is_wanted = |set: &Option<Arc<SegmentSet>>| {
                        set.as_ref().is_none_or(|set| set.contains(segment))
                    };
                    prop_assert_eq!(wanted.contains(segment), open.iter().any(is_wanted));
                }
                prop_assert_eq!(wanted.is_empty(), open.is_empty());
                prop_assert!(wanted.sets.len() <= 16);
            }
        }
    }
}
