//! The buffers of a pool that nobody uses.

use super::PoolBuffer;
use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;

/// Such buffers, by their lengths and by when they came back. Of lengths there are few, as they are rounded.
#[derive(Debug, Default)]
pub(super) struct IdleBuffers {
    /// Of each length, the one that came back last at the end, each with its number.
    of_length: BTreeMap<usize, VecDeque<(u64, PoolBuffer)>>,
    /// How many have come back.
    count: u64,
}

impl IdleBuffers {
    /// Adds one that came back.
    pub fn push(&mut self, buffer: PoolBuffer) {
        self.count += 1;
        self.of_length.entry(buffer.len()).or_default().push_back((self.count, buffer));
    }

    /// The one of such a length that came back last: of all of them it is the likeliest to lie in the
    /// processor's cache.
    pub fn latest(&mut self, lengths: RangeInclusive<usize>) -> Option<PoolBuffer> {
        let back = |buffers: &VecDeque<(u64, PoolBuffer)>| buffers.back().map(|(number, _)| *number);
        let (_, buffers) = self.of_length.range_mut(lengths).max_by_key(|(_, buffers)| back(buffers))?;
        buffers.pop_back().map(|(_, buffer)| buffer)
    }

    /// The one that came back first.
    pub fn oldest(&mut self) -> Option<PoolBuffer> {
        let front = |buffers: &VecDeque<(u64, PoolBuffer)>| buffers.front().map(|(number, _)| *number);
        let buffers =
            self.of_length.values_mut().filter(|buffers| !buffers.is_empty()).min_by_key(|b| front(b))?;
        buffers.pop_front().map(|(_, buffer)| buffer)
    }

    /// What the pool holds without use.
    pub fn bytes(&self) -> usize {
        self.of_length.iter().map(|(length, buffers)| length * buffers.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_of_a_length_and_the_oldest_of_all() {
        let mut idle = IdleBuffers::default();
        let lengths = [8, 16, 8, 64, 16, 8];
        let mut at = Vec::new();
        for length in lengths {
            let buffer = PoolBuffer::new(length);
            at.push(buffer.as_slice().as_ptr());
            idle.push(buffer);
        }
        let place = |buffer: Option<PoolBuffer>| {
            let address = buffer?.as_slice().as_ptr();
            at.iter().position(|other| *other == address)
        };
        let bytes: usize = lengths.iter().sum();
        assert_eq!(idle.bytes(), bytes);
        assert_eq!(place(idle.latest(32..=48)), None);
        assert_eq!(place(idle.latest(8..=16)), Some(5));
        assert_eq!(place(idle.latest(8..=16)), Some(4));
        assert_eq!(place(idle.oldest()), Some(0));
        assert_eq!(place(idle.latest(16..=128)), Some(3), "it came back after the one of 16");
        assert_eq!([place(idle.oldest()), place(idle.oldest())], [Some(1), Some(2)]);
        assert_eq!((place(idle.oldest()), place(idle.latest(0..=usize::MAX))), (None, None));
        assert_eq!(idle.bytes(), 0);
    }
}
