//! Which segments the open streams of a job want.
//!
//! The ranks of a run ask a node for the same segments, so there are few distinct sets however many streams
//! there are. Each is kept once, with a count.

use forebay_proto::SegmentSet;
use std::sync::Arc;

/// The distinct sets that open streams want, each with the number of its streams; `None` = all segments.
#[derive(Debug, Default)]
pub(super) struct WantedSegments(Vec<(Option<Arc<SegmentSet>>, usize)>);

impl WantedSegments {
    /// A stream comes that wants a set. Returns the set as it is shared by all streams that want the same.
    pub fn add(&mut self, wanted: Option<Arc<SegmentSet>>) -> Option<Arc<SegmentSet>> {
        if let Some((set, streams)) = self.0.iter_mut().find(|(set, _)| *set == wanted) {
            *streams += 1;
            return set.clone();
        }
        self.0.push((wanted.clone(), 1));
        wanted
    }

    /// A stream goes that wanted a set.
    pub fn remove(&mut self, wanted: &Option<Arc<SegmentSet>>) {
        let Some(at) = self.0.iter().position(|(set, _)| set == wanted) else { return };
        self.0[at].1 -= 1;
        if self.0[at].1 == 0 {
            self.0.swap_remove(at);
        }
    }

    /// Whether an open stream wants a segment.
    pub fn contains(&self, segment: u32) -> bool {
        self.0.iter().any(|(set, _)| set.as_ref().is_none_or(|set| set.contains(segment)))
    }

    /// Whether no stream is open.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes of memory that the sets take.
    pub fn bytes(&self) -> usize {
        self.0.iter().filter_map(|(set, _)| set.as_ref()).map(|set| set.bytes()).sum()
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
                    wanted.remove(&open.swap_remove(open.len() / 2));
                }
                for segment in 0..4 {
                    let is_wanted = |set: &Option<Arc<SegmentSet>>| {
                        set.as_ref().is_none_or(|set| set.contains(segment))
                    };
                    prop_assert_eq!(wanted.contains(segment), open.iter().any(is_wanted));
                }
                prop_assert_eq!(wanted.is_empty(), open.is_empty());
                prop_assert!(wanted.0.len() <= 17, "each once, and all");
            }
        }
    }
}
