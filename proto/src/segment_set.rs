//! A set of a dataset's segments, by index, and its form on the wire.

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
pub struct SegmentSet {
    words: Vec<u64>,
    /// Segments of the dataset.
    count: u32,
    len: u32,
}

impl SegmentSet {
    /// None of `count` segments.
    pub fn new(count: u32) -> Self {
        Self { words: vec![0; count.div_ceil(64) as usize], count, len: 0 }
    }

    /// All of `count` segments.
    pub fn all(count: u32) -> Self {
        let mut set = Self { words: vec![u64::MAX; count.div_ceil(64) as usize], count, len: count };
        set.cut();
        set
    }

    /// The segments that the wire names; bits past the last segment are ignored.
    pub fn from_wire(bytes: &[u8], count: u32) -> Self {
        if bytes.is_empty() {
            return Self::all(count);
        }
        let mut set = Self::new(count);
        for (word, bytes) in set.words.iter_mut().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(whole);
        }
        set.cut();
        set.len = set.words.iter().map(|word| word.count_ones()).sum();
        set
    }

    /// The bytes that name these segments on the wire.
    pub fn to_wire(&self) -> Vec<u8> {
        if self.len == self.count {
            return Vec::new();
        }
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(self.count.div_ceil(8) as usize);
        bytes
    }

    /// Adds a segment; false if it was there or the dataset has no such segment.
    pub fn insert(&mut self, segment: u32) -> bool {
        let is_new = segment < self.count && !self.contains(segment);
        if is_new {
            self.words[segment as usize / 64] |= 1 << (segment % 64);
            self.len += 1;
        }
        is_new
    }

    /// Takes a segment out; false if it was not there.
    pub fn remove(&mut self, segment: u32) -> bool {
        let was_there = self.contains(segment);
        if was_there {
            self.words[segment as usize / 64] &= !(1 << (segment % 64));
            self.len -= 1;
        }
        was_there
    }

    /// Whether a segment is in the set.
    pub fn contains(&self, segment: u32) -> bool {
        self.words.get(segment as usize / 64).is_some_and(|word| word & (1 << (segment % 64)) != 0)
    }

    /// Number of segments in the set.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether the set has no segment.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The segments, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0u32..).zip(&self.words).flat_map(|(i, &word)| {
            let next = |rest: &u64| Some(rest & (rest - 1)).filter(|rest| *rest != 0);
            let bits = std::iter::successors(Some(word).filter(|word| *word != 0), next);
            bits.map(move |rest| i * 64 + rest.trailing_zeros())
        })
    }

    /// Bytes of memory that the set takes.
    pub fn bytes(&self) -> usize {
        size_of_val(self.words.as_slice())
    }

    /// Clears the bits past the last segment.
    fn cut(&mut self) {
        if let Some(last) = self.words.last_mut().filter(|_| !self.count.is_multiple_of(64)) {
            *last &= (1 << (self.count % 64)) - 1;
        }
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
    }

    proptest! {
        #[test]
        fn it_is_a_set(count in 1u32..300, changes in prop::collection::vec((any::<bool>(), 0u32..320), 0..400)) {
            let (mut set, mut model) = (SegmentSet::new(count), BTreeSet::new());
            for (is_insert, segment) in changes {
                match is_insert {
                    true => prop_assert_eq!(set.insert(segment), segment < count && model.insert(segment)),
                    false => prop_assert_eq!(set.remove(segment), model.remove(&segment)),
                }
                prop_assert_eq!(set.contains(segment), model.contains(&segment));
            }
            prop_assert_eq!((set.len() as usize, set.is_empty()), (model.len(), model.is_empty()));
            prop_assert!(set.iter().eq(model.iter().copied()));
            prop_assert_eq!(SegmentSet::from_wire(&set.to_wire(), count), set);
        }
    }
}
