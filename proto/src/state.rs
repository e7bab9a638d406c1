//! The loader state: all that a resume needs, under 100 bytes and the same on every rank.

use crate::error::{Error, Result};
use crate::hash::xxh3_64;
use crate::manifest::Digest;
use crate::plan::{self, PlanKey, Shuffle};

/// Bytes of an encoded state.
pub const BYTES: usize = 65;

const MAGIC: &[u8; 4] = b"FBST";

/// The version of states that stand between two tokens; others have that of the plan.
const TOKENS_VERSION: u32 = 2;

/// Where a run stands: epoch `key.epoch` has delivered its samples `0 .. samples_done`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoaderState {
    /// The dataset's version, seed, epoch and shuffle.
    pub key: PlanKey,
    /// Samples of the epoch that all ranks together have taken.
    pub samples_done: u64,
    /// Of a run that packs: tokens of the next sample that are done too.
    pub tokens_done: Option<u32>,
}

impl LoaderState {
    /// The state as bytes: magic, version (u32), manifest digest, seed, epoch, shuffle kind (u8), window
    /// (u32), samples done, tokens done (u32), and an xxh3-64 of all that; little endian. The version is that
    /// of the plan, or 2 for a run that packs.
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let (kind, window) = match self.key.shuffle {
            Shuffle::None => (0u8, 0),
            Shuffle::Window(w) => (1, w),
            Shuffle::Full => (2, 0),
        };
        let mut b = Vec::with_capacity(BYTES);
        b.extend_from_slice(MAGIC);
        let version = if self.tokens_done.is_some() { TOKENS_VERSION } else { plan::VERSION };
        b.extend_from_slice(&version.to_le_bytes());
        b.extend_from_slice(&self.key.manifest.to_bytes());
        b.extend_from_slice(&self.key.seed.to_le_bytes());
        b.extend_from_slice(&self.key.epoch.to_le_bytes());
        b.push(kind);
        b.extend_from_slice(&window.to_le_bytes());
        b.extend_from_slice(&self.samples_done.to_le_bytes());
        b.extend_from_slice(&self.tokens_done.unwrap_or(0).to_le_bytes());
        let hash = xxh3_64(&b);
        b.extend_from_slice(&hash.to_le_bytes());
        let mut out = [0; BYTES];
        out.copy_from_slice(&b);
        out
    }

    /// Reads [`LoaderState::to_bytes`] back; `Corrupt` if damaged, `Invalid` if of another plan version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let b: &[u8; BYTES] = bytes
            .try_into()
            .map_err(|_| Error::corrupt(format!("a loader state has {BYTES} bytes, this {}", bytes.len())))?;
        let u32_at = |i: usize| u32::from_le_bytes(b[i..i + 4].try_into().expect("4 bytes"));
        let u64_at = |i: usize| u64::from_le_bytes(b[i..i + 8].try_into().expect("8 bytes"));
        if &b[..4] != MAGIC || u64_at(BYTES - 8) != xxh3_64(&b[..BYTES - 8]) {
            return Err(Error::corrupt("the loader state is damaged: its checksum does not match"));
        }
        let version = u32_at(4);
        if ![plan::VERSION, TOKENS_VERSION].contains(&version) {
            return Err(Error::invalid(format!(
                "the loader state is of version {version}, this build reads {} and {TOKENS_VERSION}",
                plan::VERSION
            )));
        }
        let shuffle = match (b[40], u32_at(41)) {
            (0, _) => Shuffle::None,
            (1, w) if w > 0 => Shuffle::Window(w),
            (2, _) => Shuffle::Full,
            (k, w) => return Err(Error::corrupt(format!("the loader state has unknown shuffle {k}/{w}"))),
        };
        let key = PlanKey {
            manifest: Digest::from_bytes(&b[8..24])?,
            seed: u64_at(24),
            epoch: u64_at(32),
            shuffle,
        };
        let tokens_done = (version == TOKENS_VERSION).then(|| u32_at(53));
        Ok(Self { key, samples_done: u64_at(45), tokens_done })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_and_is_small() {
        for shuffle in [Shuffle::None, Shuffle::Window(7), Shuffle::Full] {
            let key = PlanKey { manifest: Digest(42 << 80), seed: u64::MAX, epoch: 3, shuffle };
            let [state, packed] =
                [None, Some(77)].map(|tokens_done| LoaderState { key, samples_done: 1 << 40, tokens_done });
            assert_eq!(LoaderState::from_bytes(&packed.to_bytes()).unwrap(), packed);
            let bytes = state.to_bytes();
            // As builds before packing wrote it.
            assert_eq!((&bytes[4..8], &bytes[53..57]), (&[1, 0, 0, 0][..], &[0; 4][..]));
            assert_eq!((packed.to_bytes()[4], packed.to_bytes()[53]), (2, 77));
            assert!(bytes.len() < 100);
            assert_eq!(LoaderState::from_bytes(&bytes).unwrap(), state);
            for i in 0..bytes.len() {
                let mut bad = bytes;
                bad[i] ^= 1;
                assert!(LoaderState::from_bytes(&bad).is_err(), "byte {i}");
            }
        }
    }

    #[test]
    fn a_window_of_no_segments_is_none() {
        let key = PlanKey { manifest: Digest(1), seed: 0, epoch: 0, shuffle: Shuffle::Window(1) };
        let mut bytes = LoaderState { key, samples_done: 0, tokens_done: None }.to_bytes();
        bytes[41] = 0;
        let hash = xxh3_64(&bytes[..BYTES - 8]);
        bytes[BYTES - 8..].copy_from_slice(&hash.to_le_bytes());
        let e = LoaderState::from_bytes(&bytes).unwrap_err();
        assert!(e.message.contains("unknown shuffle 1/0"), "{e}");
    }
}
