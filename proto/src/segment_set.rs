//! A set of a dataset's segments, by index, and its form on the wire.

use fixedbitset::FixedBitSet;

/// Some of `count` segments: a bit for each, and their number.
///
/// On the wire (`segments` in tickets and loads) bit s is bit `s % 8` of byte `s / 8`, and no bytes mean all
/// segments.
///
/// ```
/// use forebay_proto::SegmentSet;
///
/// let mut some = SegmentSet::new(10);
/// some.extend([1, 9]);
/// assert_eq!(some.to_wire(), [0b10, 0b10]);
/// assert_eq!(SegmentSet::from_wire(&[0b10, 0b10], 10), some);
/// assert_eq!(SegmentSet::from_wire(&[], 10).len(), 10);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentSet(FixedBitSet);

impl SegmentSet {
    /// None of `count` segments.
    pub fn new(count: u32) -> Self {
        Self(FixedBitSet::with_capacity(count as usize))
    }

    /// All of `count` segments.
    pub fn all(count: u32) -> Self {
        let mut set = Self::new(count);
        set.0.insert_range(..);
        set
    }

    /// The segments that the wire names; bits past the last segment are ignored.
    pub fn from_wire(bytes: &[u8], count: u32) -> Self {
        if bytes.is_empty() {
            return Self::all(count);
        }
        let is_named = |s: &u32| bytes.get(*s as usize / 8).is_some_and(|byte| byte & (1 << (s % 8)) != 0);
        let mut set = Self::new(count);
        set.extend((0..count).filter(is_named));
        set
    }

    /// The bytes that name these segments on the wire.
    pub fn to_wire(&self) -> Vec<u8> {
        if self.0.is_full() {
            return Vec::new();
        }
        let mut bytes = vec![0; self.0.len().div_ceil(8)];
        self.iter().for_each(|s| bytes[s as usize / 8] |= 1 << (s % 8));
        bytes
    }

    /// Adds a segment; false if it was there or the dataset has no such segment.
    pub fn insert(&mut self, segment: u32) -> bool {
        (segment as usize) < self.0.len() && !self.0.put(segment as usize)
    }

    /// Whether a segment is in the set.
    pub fn contains(&self, segment: u32) -> bool {
        self.0.contains(segment as usize)
    }

    /// Number of segments in the set.
    pub fn len(&self) -> u32 {
        self.0.count_ones(..) as u32
    }

    /// Whether the set has no segment.
    pub fn is_empty(&self) -> bool {
        self.0.is_clear()
    }

    /// The segments, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.ones().map(|segment| segment as u32)
    }

    /// Bytes of memory that the set takes.
    pub fn bytes(&self) -> usize {
        size_of_val(self.0.as_slice())
    }
}

impl Extend<u32> for SegmentSet {
    fn extend<T: IntoIterator<Item = u32>>(&mut self, segments: T) {
        for segment in segments {
            self.insert(segment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_wire_names_all_segments_by_no_bytes() {
        for count in [0, 1, 8, 63, 64, 65, 200] {
            let all = SegmentSet::all(count);
            assert_eq!(all.to_wire(), [0u8; 0]);
            assert_eq!(all.iter().collect::<Vec<_>>(), (0..count).collect::<Vec<_>>());
            assert_eq!(SegmentSet::from_wire(&[0xff; 100], count), all);
            assert!(!all.contains(count) && !all.clone().insert(count));
        }
        assert_eq!(SegmentSet::new(9).to_wire(), [0, 0]);
        assert_eq!(SegmentSet::from_wire(&[2], 100).iter().collect::<Vec<_>>(), [1]);
        assert_eq!([0, 1, 64, 640].map(|count| SegmentSet::new(count).bytes()), [0, 8, 8, 80]);
    }

    proptest! {
        #[test]
        fn it_is_a_set(count in 1u32..300, segments in prop::collection::vec(0u32..320, 0..400)) {
            let (mut set, mut model) = (SegmentSet::new(count), BTreeSet::new());
            for segment in segments {
                prop_assert_eq!(set.insert(segment), segment < count && model.insert(segment));
                prop_assert_eq!(set.contains(segment), model.contains(&segment));
            }
            prop_assert_eq!((set.len() as usize, set.is_empty()), (model.len(), model.is_empty()));
            prop_assert!(set.iter().eq(model.iter().copied()));
            prop_assert_eq!(SegmentSet::from_wire(&set.to_wire(), count), set);
        }
    }
}
