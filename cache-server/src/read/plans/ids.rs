//! Which segments of a dataset an id names: the ids in order, to be searched by halves.

use forebay_proto::manifest::{Manifest, SegmentId};

/// The segments of a dataset by id.
#[derive(Debug)]
pub(super) struct SegmentIds {
    /// Half of an id, and the segment's number; ascending.
    entries: Vec<(u64, u32)>,
}

/// Bytes that the ids of a dataset's segments take.
pub(super) fn bytes(segments: usize) -> usize {
    size_of::<(u64, u32)>() * segments
}

/// Half of an id is enough: two segments that share it would only be taken for needed as soon as the other.
fn half(id: SegmentId) -> u64 {
    id.0.0 as u64
}

impl SegmentIds {
    /// The ids of a dataset's segments. A mix may hold a segment more than once.
    pub fn of(manifest: &Manifest) -> Self {
        let numbers = 0..manifest.segments().len() as u32;
        Self::new(numbers.filter_map(|s| Some((half(manifest.segment_id(s).ok()?), s))).collect())
    }

    fn new(mut entries: Vec<(u64, u32)>) -> Self {
        entries.sort_unstable();
        Self { entries }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The numbers of the segments with this id: mostly one or none.
    pub fn find(&self, id: SegmentId) -> impl Iterator<Item = u32> + '_ {
        let half = half(id);
        let first = self.entries.partition_point(|(have, _)| *have < half);
        self.entries[first..].iter().take_while(move |(have, _)| *have == half).map(|(_, number)| *number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::manifest::Digest;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_id_is_found_and_no_other(
            halves in prop::collection::vec(prop_oneof![any::<u64>(), 0u64..4, (u64::MAX - 2)..=u64::MAX], 0..200),
            other: u64,
        ) {
            let ids = SegmentIds::new(halves.iter().zip(0..).map(|(h, i)| (*h, i)).collect());
            for wanted in halves.iter().chain([&other]) {
                let found: Vec<u32> = ids.find(SegmentId(Digest(u128::from(*wanted)))).collect();
                let all = halves.iter().zip(0u32..).filter(|(h, _)| *h == wanted);
                prop_assert_eq!(found, all.map(|(_, i)| i).collect::<Vec<_>>());
            }
        }
    }
}
