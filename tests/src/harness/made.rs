//! Objects by a rule: any stretch of one can be made, and checked, without the rest, so that a set of many
//! gigabytes needs neither disk nor memory.

use bytes::Bytes;
use std::ops::Range;

/// An object whose bytes are a function of its seed and their places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MadeObject {
    /// Objects of other seeds have other bytes.
    pub seed: u64,
    /// In bytes.
    pub size: u64,
}

/// Bytes of a word of the rule.
const WORD: u64 = 8;

impl MadeObject {
    /// A stretch of it.
    pub fn bytes(&self, range: Range<u64>) -> Bytes {
        let mut made = Vec::new();
        self.make(range, &mut made);
        made.into()
    }

    /// The same in a buffer that is used again.
    fn make(&self, range: Range<u64>, made: &mut Vec<u8>) {
        made.clear();
        let first = range.start / WORD;
        let words = first..range.end.div_ceil(WORD);
        made.extend(words.flat_map(|n| word(self.seed, n).to_le_bytes()));
        made.truncate((range.end - first * WORD) as usize);
        made.drain(..(range.start - first * WORD) as usize);
    }

    /// How many of these bytes, which begin `at` a place of the object, are not the object's. Those beyond
    /// its end are not.
    pub fn wrong_bytes(&self, at: u64, bytes: &[u8], buffer: &mut Vec<u8>) -> u64 {
        let end = (at + bytes.len() as u64).min(self.size.max(at));
        self.make(at..end, buffer);
        let beyond = bytes.len() - buffer.len();
        if bytes[..buffer.len()] == **buffer {
            return beyond as u64;
        }
        (bytes.iter().zip(&*buffer).filter(|(a, b)| a != b).count() + beyond) as u64
    }

    /// What an object store may call this version.
    pub fn etag(&self) -> String {
        format!("{:016x}{:016x}", word(self.seed, u64::MAX), self.size)
    }
}

/// Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014 (SplitMix64).
fn word(seed: u64, n: u64) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let z = seed.wrapping_mul(GOLDEN).wrapping_add(n.wrapping_mul(GOLDEN)) ^ seed.rotate_left(32);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_fit_together_and_wrong_bytes_are_counted() {
        let object = MadeObject { seed: 7, size: 1003 };
        let all = object.bytes(0..1003);
        assert_eq!(all.len(), 1003);
        for (start, end) in [(0, 0), (0, 1), (5, 21), (8, 16), (990, 1003), (1003, 1003)] {
            assert_eq!(object.bytes(start..end), all[start as usize..end as usize], "{start} {end}");
        }
        assert_ne!(all, MadeObject { seed: 8, size: 1003 }.bytes(0..1003));
        let mut buffer = Vec::new();
        assert_eq!(object.wrong_bytes(100, &all[100..300], &mut buffer), 0);
        let mut broken = all[100..300].to_vec();
        (broken[3], broken[77]) = (!broken[3], !broken[77]);
        assert_eq!(object.wrong_bytes(100, &broken, &mut buffer), 2);
        assert!(object.wrong_bytes(101, &all[100..300], &mut buffer) > 150, "shifted by one");
        assert_eq!(object.wrong_bytes(1000, &[all[1000], all[1001], all[1002], 0, 0], &mut buffer), 2);
    }
}
