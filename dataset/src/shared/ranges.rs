//! Which bytes of a region are free.

use std::collections::BTreeMap;

/// Ranges begin and end at multiples of this: a page.
pub(super) const ALIGNMENT: usize = 4096;

/// The free ranges of a region. The first that fits is taken: a reader that keeps up then reads bytes that
/// are still in the processor's cache.
#[derive(Debug)]
pub(super) struct FreeRanges {
    /// Start and length; no two touch.
    free: BTreeMap<usize, usize>,
}

impl FreeRanges {
    /// All of `bytes`, which are a multiple of the alignment.
    pub fn new(bytes: usize) -> Self {
        Self { free: BTreeMap::from([(0, bytes)]) }
    }

    /// Takes a range of at least `bytes` bytes: its start and length.
    pub fn take(&mut self, bytes: usize) -> Option<(usize, usize)> {
        let bytes = bytes.max(1).checked_next_multiple_of(ALIGNMENT)?;
        let (start, length) = self.free.iter().find(|(_, length)| **length >= bytes)?;
        let (start, length) = (*start, *length);
        self.free.remove(&start);
        if length > bytes {
            self.free.insert(start + bytes, length - bytes);
        }
        Some((start, bytes))
    }

    /// Gives a range back that was taken.
    pub fn give(&mut self, mut start: usize, mut bytes: usize) {
        if let Some((before, length)) = self.free.range(..start).next_back()
            && before + length == start
        {
            (start, bytes) = (*before, length + bytes);
        }
        if let Some(after) = self.free.remove(&(start + bytes)) {
            bytes += after;
        }
        self.free.insert(start, bytes);
    }

    /// Length of the longest one.
    pub fn longest(&self) -> usize {
        self.free.values().copied().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGES: usize = 32;

    proptest! {
        /// The model is a list of pages with their owners.
        #[test]
        fn ranges_never_overlap_and_all_come_back(steps in prop::collection::vec((any::<bool>(), 1..20_000usize), 1..200)) {
            let mut ranges = FreeRanges::new(PAGES * ALIGNMENT);
            let mut owners: [Option<usize>; PAGES] = [None; PAGES];
            let mut taken: Vec<(usize, (usize, usize))> = Vec::new();
            for (number, (takes, size)) in steps.into_iter().enumerate() {
                if takes || taken.is_empty() {
                    let pages = size.div_ceil(ALIGNMENT);
                    let first = owners.windows(pages).position(|window| window.iter().all(Option::is_none));
                    let range = ranges.take(size);
                    prop_assert_eq!(range, first.map(|page| (page * ALIGNMENT, pages * ALIGNMENT)));
                    if let (Some(first), Some(range)) = (first, range) {
                        owners[first..first + pages].fill(Some(number));
                        taken.push((number, range));
                    }
                } else {
                    let (owner, (start, bytes)) = taken.swap_remove(size % taken.len());
                    ranges.give(start, bytes);
                    owners.iter_mut().filter(|o| **o == Some(owner)).for_each(|o| *o = None);
                }
                let longest = owners.chunk_by(|a, b| a.is_none() == b.is_none());
                let longest = longest.filter(|run| run[0].is_none()).map(<[_]>::len).max().unwrap_or(0);
                prop_assert_eq!(ranges.longest(), longest * ALIGNMENT);
            }
            taken.into_iter().for_each(|(_, (start, bytes))| ranges.give(start, bytes));
            prop_assert_eq!(ranges.free, BTreeMap::from([(0, PAGES * ALIGNMENT)]));
        }
    }
}
