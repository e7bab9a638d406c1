//! xxh3 (Y. Collet, <https://xxhash.com>): the hash behind digests, checksums and placement. All crates take
//! it from here.

use std::fmt;
use std::hash::Hasher;
use twox_hash::xxhash3_64::{self, DEFAULT_SECRET_LENGTH};
use twox_hash::{XxHash3_64, XxHash3_128, xxhash3_128};

/// The secret of hashes without a seed, as it lies in the program: nothing is allocated.
type Secret = &'static [u8; DEFAULT_SECRET_LENGTH];

/// xxh3-64 of `bytes`.
pub fn xxh3_64(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// xxh3-64 of `bytes` with a seed.
pub fn xxh3_64_with_seed(bytes: &[u8], seed: u64) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, bytes)
}

/// xxh3-128 of `bytes`.
#[inline]
pub fn xxh3_128(bytes: &[u8]) -> u128 {
    XxHash3_128::oneshot(bytes)
}

/// xxh3-64 of bytes that come piece by piece.
#[derive(Clone)]
pub struct Hash64(xxhash3_64::RawHasher<Secret>);

/// xxh3-128 of bytes that come piece by piece.
#[derive(Clone)]
pub struct Hash128(xxhash3_128::RawHasher<Secret>);

impl Default for Hash64 {
    fn default() -> Self {
        Self(xxhash3_64::RawHasher::new(xxhash3_64::SecretBuffer::default()))
    }
}

impl Default for Hash128 {
    fn default() -> Self {
        Self(xxhash3_128::RawHasher::new(xxhash3_128::SecretBuffer::default()))
    }
}

impl Hash64 {
    /// Takes the next bytes. How all of them are cut into calls makes no difference.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// The hash of all bytes so far.
    pub fn digest(&self) -> u64 {
        self.0.finish()
    }
}

impl Hash128 {
    /// Takes the next bytes. How all of them are cut into calls makes no difference.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// The hash of all bytes so far.
    pub fn digest(&self) -> u128 {
        self.0.finish_128()
    }
}

impl fmt::Debug for Hash64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hash64({:016x})", self.digest())
    }
}

impl fmt::Debug for Hash128 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hash128({:032x})", self.digest())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of the reference implementation, for every way in which it treats lengths apart.
    #[test]
    fn hashes_are_those_of_the_reference() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for (length, short, seeded, long) in REFERENCE {
            let bytes = &bytes[..length];
            assert_eq!(xxh3_64(bytes), short, "{length} bytes");
            assert_eq!(xxh3_64_with_seed(bytes, 7), seeded, "{length} bytes");
            assert_eq!(xxh3_128(bytes), long, "{length} bytes");
            for piece in [1, 7, 64, 1024] {
                let (mut pieces_64, mut pieces_128) = (Hash64::default(), Hash128::default());
                for piece in bytes.chunks(piece) {
                    pieces_64.update(piece);
                    pieces_128.update(piece);
                }
                assert_eq!((pieces_64.digest(), pieces_128.digest()), (short, long), "{length} by {piece}");
            }
        }
    }

    const REFERENCE: [(usize, u64, u64, u128); 12] = [
        (0, 0x2d06800538d394c2, 0x913ae0873e9b7eb8, 0x99aa06d3014798d86001c324468d497f),
        (1, 0xc44bdff4074eecdb, 0x2c45aa60ff5dc0e5, 0xa6cd5e9392000f6ac44bdff4074eecdb),
        (3, 0xe14090f554a5ea90, 0x48c8bb51d079026a, 0x977fcbc0448b49f6e14090f554a5ea90),
        (8, 0xcd1c7f88482fcaef, 0xee899c590407f2d9, 0x7b4966a681f18d5779d85adaeefd615e),
        (16, 0x81e9eb8634460bb9, 0xf8e1626ce833688f, 0x78e8ab538d3acaab37286a19cf622308),
        (100, 0x4ff5f6c0d102cd55, 0x6af0cdb21541e47b, 0xb268b5b7684b0badc02ce6bb06aa387f),
        (128, 0x75eca5c5d5594884, 0x762c4838f9b449af, 0x5ac741c59c95d36ae1f0636051ccd2be),
        (200, 0xe07bfbc15015bf69, 0xf58716b6f5f4f488, 0xddc90e87387183a23572cb319f206ea7),
        (240, 0x5eb2467c8c9e3969, 0xd2ed7a4b56d8b64b, 0x640a6149838a7599b2e6947c477a4ab0),
        (241, 0x2d431e984c441f15, 0x4043c3782b7cbe3c, 0xe817e20e53e42a8c2d431e984c441f15),
        (1024, 0xe99def1145f12936, 0x3b30d80269e99891, 0xdf4c8b9ff9715101e99def1145f12936),
        (5000, 0xb9daede5f99f736e, 0xd96fdf0c8d7117a7, 0xdf8bd4ddb16d1d1cb9daede5f99f736e),
    ];
}
