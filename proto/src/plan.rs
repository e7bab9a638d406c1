//! The plan: the global order of an epoch's samples, a pure function of (segments, seed, epoch, shuffle).
//!
//! # Version 1, for other implementations
//!
//! All arithmetic is on unsigned 64-bit integers and wraps; `hi(a, b)` is the upper half of the 128-bit product.
//!
//! 1. **Keys.** `key(domain, index)` is xxh3-64 of the 40 bytes `"FBPLAN01"`, seed, epoch, domain, index (little
//!    endian, 8 bytes each).
//! 2. **Segments** are permuted by Fisher-Yates: `seq = [0, 1, .. S-1]`; for i from S-1 down to 1 swap `seq[i]` with
//!    `seq[hi(r, i + 1)]`, r being the next value of SplitMix64 started from `key(0, 0)`.
//! 3. **Windows** are consecutive runs of W segments of `seq` (the last may be shorter).
//! 4. **Rows** of window k, n in all, numbered in the order of its segments in `seq`, are permuted among themselves:
//!    the window's position x holds its row `P(x)`, where P is the keyed bijection of [`permute`] under `key(1, k)`.
//! 5. The windows follow each other.
//!
//! A **mix** of parts, part d having n(d) slots of a block of B = sum of n(d) positions and N(d) rows, has K blocks in an
//! epoch, K = max(1, min over d of floor(N(d) / n(d))), so that no part is read more than once in an epoch if that can
//! be. Slot x of block k is y = `P(x)` under `key(2, k)` for n = B; the parts' slots lie one after the other in 0 .. B,
//! and if y is slot j of part d, then the position holds sample number m = (epoch K + k) n(d) + j of that part: position
//! m mod N(d) of the part's own order of epoch floor(m / N(d)), whose seed is xxh3-64 of the 40 bytes of `key` with the
//! mix's seed, epoch 0, domain 3, index d. So parts roll over by themselves, each in its own time.
//!
//! `full` is one window of all segments; `none` is file order. Any position is found in O(log S) without state, so a
//! resume costs what a start costs, and nothing but the segments' sizes is kept in memory.
//!
//! [`steps`] cuts the order into steps and ranks, and lays the rows of a batch out.

mod mix;
pub mod permute;
mod sequence;
pub mod steps;

use crate::error::{Error, Result};
use crate::manifest::{Digest, Manifest};
use crate::v1;
use mix::Mix;
use sequence::Sequence;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64;

/// The order's version. Changing what any plan yields means changing this.
pub const VERSION: u32 = 1;

/// How rows are shuffled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shuffle {
    /// File order.
    None,
    /// Segments are shuffled, then rows within each window of so many segments (at least 1).
    Window(u32),
    /// A uniform shuffle of all rows.
    Full,
}

impl std::fmt::Display for Shuffle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Shuffle::None => f.write_str("none"),
            Shuffle::Window(w) => write!(f, "window({w})"),
            Shuffle::Full => f.write_str("full"),
        }
    }
}

impl std::str::FromStr for Shuffle {
    type Err = Error;

    /// `none`, `full`, `window(4)` or plainly `4`.
    fn from_str(s: &str) -> Result<Self> {
        let digits = s.strip_prefix("window(").and_then(|r| r.strip_suffix(')')).unwrap_or(s);
        match (s, digits.parse::<u32>()) {
            ("none", _) => Ok(Shuffle::None),
            ("full", _) => Ok(Shuffle::Full),
            (_, Ok(w)) if w > 0 => Ok(Shuffle::Window(w)),
            _ => Err(Error::invalid(format!(
                "shuffle `{s}` is unknown: use none, full or a window of 1 or more segments, as in window(4)"
            ))),
        }
    }
}

/// What makes an epoch's order, besides the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PlanKey {
    /// The dataset's version.
    pub manifest: Digest,
    /// The run's seed.
    pub seed: u64,
    /// The epoch, from 0.
    pub epoch: u64,
    /// How rows are shuffled.
    pub shuffle: Shuffle,
}

/// Where a sample lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Sample {
    /// Segment number in the manifest.
    pub segment: u32,
    /// Row among those of the segment that belong to the dataset (a split may begin within a segment).
    pub row: u32,
}

/// The order of one epoch.
#[derive(Debug, Clone)]
pub struct Order {
    key: PlanKey,
    course: Course,
}

#[derive(Debug, Clone)]
enum Course {
    One(Sequence),
    Mix(Mix),
}

impl Order {
    /// The order of `manifest`'s samples in one epoch.
    pub fn new(manifest: &Manifest, seed: u64, epoch: u64, shuffle: Shuffle) -> Self {
        let rows: Vec<u64> = manifest.segments().iter().map(|s| s.rows).collect();
        let key = PlanKey { manifest: manifest.digest(), seed, epoch, shuffle };
        match manifest.parts() {
            [_] | [] => Self::of_segments(&rows, key),
            parts => Self { key, course: Course::Mix(Mix::new(&rows, parts, key)) },
        }
    }

    /// The order over segments of the given row counts.
    pub fn of_segments(rows: &[u64], key: PlanKey) -> Self {
        Self { key, course: Course::One(Sequence::new(rows, 0, key)) }
    }

    /// What made this order.
    pub fn key(&self) -> &PlanKey {
        &self.key
    }

    /// How many samples an epoch of `manifest` has: its rows, or what a mix of them gives.
    pub fn samples(manifest: &Manifest) -> u64 {
        match manifest.parts() {
            [_] | [] => manifest.rows(),
            parts => mix::blocks(parts) * mix::block(parts),
        }
    }

    /// How many samples the epoch has.
    pub fn len(&self) -> u64 {
        match &self.course {
            Course::One(sequence) => sequence.len(),
            Course::Mix(mix) => mix.len(),
        }
    }

    /// Whether the epoch has no sample.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sample at a position; `None` past the end.
    pub fn at(&self, position: u64) -> Option<Sample> {
        let mut one = [Sample::default()];
        (position < self.len()).then(|| {
            self.fill(position, &mut one);
            one[0]
        })
    }

    /// Writes the samples at `position ..` to `out`. All of them must be positions of the epoch.
    ///
    /// # Panics
    /// If `position + out.len()` exceeds [`Order::len`].
    pub fn fill(&self, position: u64, out: &mut [Sample]) {
        assert!(position + out.len() as u64 <= self.len(), "positions past the end of the epoch");
        match &self.course {
            Course::One(sequence) => sequence.fill(position, out),
            Course::Mix(mix) => mix.fill(position, out),
        }
    }

    /// The segments that positions `from ..` touch, in the order in which windows need them: all that a prefetch must
    /// know. Ends with the epoch. A mix that reads a part more than once names its segments as often.
    pub fn segments_from(&self, from: u64) -> Vec<u32> {
        match &self.course {
            Course::One(sequence) => sequence.segments_from(from).map(|(_, s)| s).collect(),
            Course::Mix(mix) => mix.segments_from(from),
        }
    }

    /// Which segments are read between which positions, in the order in which they are first needed: every position
    /// outside of a segment's spans is read from another one. Of a mix, a segment has as many as its part comes round.
    pub fn spans(&self) -> Vec<(u32, Range<u64>)> {
        match &self.course {
            Course::One(sequence) => sequence.spans().collect(),
            Course::Mix(mix) => mix.spans(),
        }
    }

    /// How many segments a position may be read from: those of a window, over all parts.
    pub fn window_segments(&self) -> usize {
        match (&self.course, self.key.shuffle) {
            (_, Shuffle::None) => 1,
            (Course::One(_), Shuffle::Window(w)) => w as usize,
            (Course::Mix(mix), Shuffle::Window(w)) => mix.parts().saturating_mul(w as usize),
            (_, Shuffle::Full) => usize::MAX,
        }
    }
}

/// The key of a permutation: see the module's text.
fn derive(key: &PlanKey, domain: u64, index: u64) -> u64 {
    let mut bytes = [0; 40];
    bytes[..8].copy_from_slice(b"FBPLAN01");
    for (i, n) in [key.seed, key.epoch, domain, index].into_iter().enumerate() {
        bytes[8 + 8 * i..16 + 8 * i].copy_from_slice(&n.to_le_bytes());
    }
    xxh3_64(&bytes)
}

impl From<Shuffle> for v1::Shuffle {
    fn from(s: Shuffle) -> Self {
        use v1::shuffle::Kind;
        let (kind, window) = match s {
            Shuffle::None => (Kind::None, 0),
            Shuffle::Window(w) => (Kind::Window, w),
            Shuffle::Full => (Kind::Full, 0),
        };
        v1::Shuffle { kind: kind.into(), window }
    }
}

impl TryFrom<v1::Shuffle> for Shuffle {
    type Error = Error;

    fn try_from(s: v1::Shuffle) -> Result<Self> {
        use v1::shuffle::Kind;
        match (Kind::try_from(s.kind), s.window) {
            (Ok(Kind::None), _) => Ok(Shuffle::None),
            (Ok(Kind::Full), _) => Ok(Shuffle::Full),
            (Ok(Kind::Window), w) if w > 0 => Ok(Shuffle::Window(w)),
            _ => Err(Error::invalid(format!("unknown shuffle {s:?}: use equal versions of Forebay"))),
        }
    }
}

impl From<PlanKey> for v1::Plan {
    fn from(k: PlanKey) -> Self {
        v1::Plan {
            version: VERSION,
            manifest: k.manifest.to_bytes().to_vec().into(),
            seed: k.seed,
            epoch: k.epoch,
            shuffle: Some(k.shuffle.into()),
        }
    }
}

impl TryFrom<v1::Plan> for PlanKey {
    type Error = Error;

    fn try_from(p: v1::Plan) -> Result<Self> {
        if p.version != VERSION {
            return Err(Error::invalid(format!(
                "plan version {} is unknown here, this build knows {VERSION}: use equal versions of Forebay",
                p.version
            )));
        }
        let shuffle = p.shuffle.unwrap_or_default().try_into()?;
        Ok(PlanKey { manifest: Digest::from_bytes(&p.manifest)?, seed: p.seed, epoch: p.epoch, shuffle })
    }
}

#[cfg(test)]
mod tests;
