//! Which segments of a dataset an id names, found in two reads of memory.
//!
//! Ids are hashes, so their upper bits say where to look: a directory of as many buckets as there are segments, and the
//! segments in the order of their ids. 12 to 20 bytes for each segment.

use forebay_proto::manifest::{Manifest, SegmentId};

/// The segments of a dataset by id.
#[derive(Debug)]
pub(super) struct Ids {
    /// Upper bits of an id's 64 that name its bucket.
    bits: u32,
    /// Where each bucket begins in `entries`; one more at the end.
    buckets: Vec<u32>,
    /// Half of an id, and the segment's number; ascending.
    entries: Vec<(u64, u32)>,
}

/// Bytes that the ids of so many segments take.
pub(super) fn bytes(segments: usize) -> usize {
    24 * segments
}

/// Half of an id is enough: two segments that share it would only be taken for needed as soon as the other.
fn half(id: SegmentId) -> u64 {
    id.0.0 as u64
}

impl Ids {
    /// The ids of a dataset's segments. A mix may hold a segment more than once.
    pub fn of(manifest: &Manifest) -> Self {
        let numbers = 0..manifest.segments().len() as u32;
        Self::new(numbers.filter_map(|s| Some((half(manifest.segment_id(s).ok()?), s))).collect())
    }

    fn new(mut entries: Vec<(u64, u32)>) -> Self {
        entries.sort_unstable();
        let bits = entries.len().next_power_of_two().trailing_zeros();
        let mut buckets = Vec::with_capacity((1 << bits) + 1);
        let mut at = 0;
        for bucket in 0..1 << bits {
            while at < entries.len() && bucket_of(entries[at].0, bits) < bucket {
                at += 1;
            }
            buckets.push(at as u32);
        }
        buckets.push(entries.len() as u32);
        Self { bits, buckets, entries }
    }

    /// How many segments there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The numbers of the segments with this id: mostly one or none.
    pub fn find(&self, id: SegmentId) -> impl Iterator<Item = u32> + '_ {
        let half = half(id);
        let bucket = bucket_of(half, self.bits);
        let range = self.buckets[bucket] as usize..self.buckets[bucket + 1] as usize;
        self.entries[range].iter().filter(move |(have, _)| *have == half).map(|(_, number)| *number)
    }
}

fn bucket_of(half: u64, bits: u32) -> usize {
    half.checked_shr(64 - bits).unwrap_or(0) as usize
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
            let ids = Ids::new(halves.iter().zip(0..).map(|(h, i)| (*h, i)).collect());
            for wanted in halves.iter().chain([&other]) {
                let found: Vec<u32> = ids.find(SegmentId(Digest(u128::from(*wanted)))).collect();
                let all = halves.iter().zip(0u32..).filter(|(h, _)| *h == wanted);
                prop_assert_eq!(found, all.map(|(_, i)| i).collect::<Vec<_>>());
            }
        }
    }
}
