//! Digests of an epoch: proof that the same samples were seen in the same places, and with the same values.
//!
//! Both are set hashes: the wrapping sum, over the samples, of a 128-bit hash. Sums commute, so the digests
//! of ranks, steps, messages and stretches of a run merge in any order, and two epochs have equal digests
//! exactly when they saw the same (up to a chance of about 2^-128).
//!
//! * [`OrderDigest`] hashes position and sample id (little endian, 8 bytes each) by xxh3-128. The sample id
//!   is the sample's row in the whole dataset in file order. It follows from the plan alone.
//! * [`ContentDigest`] hashes position and the canonical bytes of the row, which docs/order.md defines. It
//!   follows from the plan and the data.

use crate::error::Result;
use crate::hash::xxh3_128;
use crate::manifest::Digest;
use std::fmt;

/// A mergeable digest, and its text of 32 hex digits.
macro_rules! set_digest {
    ($(#[$docs:meta])* $name:ident) => {
        $(#[$docs])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
        pub struct $name(u128);

        impl $name {
            /// Adds all samples of another digest.
            pub fn merge(&mut self, other: $name) {
                self.0 = self.0.wrapping_add(other.0);
            }

            /// The 16 bytes, big endian.
            pub fn to_bytes(self) -> [u8; 16] {
                self.0.to_be_bytes()
            }

            /// From the 16 bytes of `to_bytes`.
            pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
                Ok(Self(Digest::from_bytes(bytes)?.0))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                Digest(self.0).fmt(f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = crate::Error;

            /// From the 32 hex digits that it is printed as.
            fn from_str(s: &str) -> Result<Self> {
                Ok(Self(s.parse::<Digest>()?.0))
            }
        }
    };
}

set_digest!(
    /// Which samples stood where; the default is that of no sample.
    OrderDigest
);

set_digest!(
    /// Which values stood where; the default is that of no sample.
    ContentDigest
);

impl OrderDigest {
    /// Adds the sample of this number at its position. Samples may be added in any order: the digest is a
    /// sum.
    #[inline]
    pub fn add(&mut self, position: u64, sample: u64) {
        let mut pair = [0; 16];
        pair[..8].copy_from_slice(&position.to_le_bytes());
        pair[8..].copy_from_slice(&sample.to_le_bytes());
        self.0 = self.0.wrapping_add(xxh3_128(&pair));
    }
}

impl ContentDigest {
    /// Adds one sample: its position as 8 bytes, little endian, and behind them its row's canonical bytes.
    pub fn add(&mut self, positioned_row: &[u8]) {
        self.0 = self.0.wrapping_add(xxh3_128(positioned_row));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_in_any_order_and_tells_places_apart() {
        let of = |pairs: &[(u64, u64)]| {
            let mut d = OrderDigest::default();
            pairs.iter().for_each(|&(p, s)| d.add(p, s));
            d
        };
        let whole = of(&[(0, 5), (1, 3), (2, 4)]);
        let mut merged = of(&[(2, 4)]);
        merged.merge(of(&[(1, 3), (0, 5)]));
        assert_eq!(whole, merged);
        assert_ne!(whole, of(&[(0, 3), (1, 5), (2, 4)]), "swapped");
        assert_ne!(whole, of(&[(0, 5), (1, 3)]), "lost");
        assert_ne!(whole, of(&[(0, 5), (1, 3), (2, 4), (2, 4)]), "repeated");
        assert_eq!(OrderDigest::from_bytes(&whole.to_bytes()).unwrap(), whole);
        assert_eq!(whole.to_string().parse::<OrderDigest>().unwrap(), whole);
    }

    #[test]
    fn the_text_of_a_digest_has_32_hex_digits() {
        for wrong in ["", "12ab", "+123456789abcdef0123456789abcdef", "0x123456789abcdef0123456789abcde", "g"]
        {
            let e = wrong.parse::<ContentDigest>().unwrap_err();
            assert!(e.message.contains("32 hex digits"), "{wrong}: {e}");
        }
    }

    #[test]
    fn a_content_digest_is_the_sum_of_its_rows_hashes() {
        let of = |rows: &[&[u8]]| {
            let mut d = ContentDigest::default();
            rows.iter().for_each(|row| d.add(row));
            d
        };
        let (a, b) = (&b"\0\0\0\0\0\0\0\0a"[..], &b"\x01\0\0\0\0\0\0\0b"[..]);
        assert_eq!(of(&[a, b]), ContentDigest(xxh3_128(a).wrapping_add(xxh3_128(b))));
        let mut merged = of(&[b]);
        merged.merge(of(&[a]));
        assert_eq!(merged, of(&[a, b]));
        assert_ne!(of(&[a, b, b]), of(&[a, b]), "repeated");
    }
}
