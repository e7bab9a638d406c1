//! The plan: the global order of an epoch's samples, a pure function of (segments, seed, epoch, shuffle).
//!
//! # Version 1, for other implementations
//!
//! All arithmetic is on unsigned 64-bit integers and wraps; `hi(a, b)` is the upper half of the 128-bit
//! product.
//!
//! 1. **Keys.** `key(domain, index)` is xxh3-64 of the 40 bytes `"FBPLAN01"`, seed, epoch, domain, index
//!    (little endian, 8 bytes each).
//! 2. **Segments** are permuted by Fisher-Yates: `seq = [0, 1, .. S-1]`; for i from S-1 down to 1 swap
//!    `seq[i]` with `seq[hi(r, i + 1)]`, r being the next value of SplitMix64 started from `key(0, 0)`.
//! 3. **Windows** are consecutive runs of W segments of `seq` (the last may be shorter).
//! 4. **Rows** of window k, n in all, numbered in the order of its segments in `seq`, are permuted among
//!    themselves: the window's position x holds its row `P(x)`, where P is the keyed bijection of [`permute`]
//!    under `key(1, k)`.
//! 5. The windows follow each other.
//!
//! A **mix** of parts, part d having n(d) slots of a block of B = sum of n(d) positions and N(d) rows, has K
//! blocks in an epoch, K = max(1, min over d of floor(N(d) / n(d))), so that no part is read more than once
//! in an epoch if that can be. Slot x of block k is y = `P(x)` under `key(2, k)` for n = B; the parts' slots
//! lie one after the other in 0 .. B, and if y is slot j of part d, then the position holds sample number m =
//! (epoch K + k) n(d) + j of that part: position m mod N(d) of the part's own order of epoch floor(m / N(d)),
//! whose seed is xxh3-64 of the 40 bytes of `key` with the mix's seed, epoch 0, domain 3, index d. So parts
//! roll over by themselves, each in its own time.
//!
//! `full` is one window of all segments; `none` is file order. Any position is found in O(log S) without
//! state, so a resume costs what a start costs, and nothing but the segments' sizes is kept in memory.
//!
//! [`steps`] cuts the order into steps and ranks, and lays the rows of a batch out. [`packing`] cuts it by
//! tokens instead.

mod key;
mod mix;
pub mod packing;
mod permute;
mod sequence;
pub mod steps;

use crate::manifest::Manifest;
use mix::Mix;
use sequence::Sequence;
use std::ops::Range;

pub use key::{PlanKey, Sample, Shuffle, VERSION};

/// The order of one epoch: which sample stands at which position.
#[derive(Debug, Clone)]
pub struct Order {
    key: PlanKey,
    kind: OrderKind,
}

#[derive(Debug, Clone)]
enum OrderKind {
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
            parts => Self { key, kind: OrderKind::Mix(Mix::new(&rows, parts, key)) },
        }
    }

    /// The order over segments of the given row counts.
    pub fn of_segments(rows: &[u64], key: PlanKey) -> Self {
        Self { key, kind: OrderKind::One(Sequence::new(rows, 0, key)) }
    }

    /// The manifest's digest, seed, epoch and shuffle that it was made with.
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
        match &self.kind {
            OrderKind::One(sequence) => sequence.len(),
            OrderKind::Mix(mix) => mix.len(),
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
        match &self.kind {
            OrderKind::One(sequence) => sequence.fill(position, out),
            OrderKind::Mix(mix) => mix.fill(position, out),
        }
    }

    /// The segments that positions `from ..` touch, in the order in which windows need them: all that a
    /// prefetch must know. Ends with the epoch. A mix that reads a part more than once names its segments as
    /// often.
    pub fn segments_from(&self, from: u64) -> Vec<u32> {
        let spans = self.spans().into_iter().filter(|(_, span)| span.end > from);
        spans.map(|(segment, _)| segment).collect()
    }

    /// The segments of which the samples at some positions may be: those of their windows. `None` for a mix.
    ///
    /// # Panics
    /// If there is no position among them, or one past the end.
    pub fn segments_within(&self, positions: Range<u64>) -> Option<Vec<u32>> {
        assert!(positions.start < positions.end && positions.end <= self.len(), "positions of the epoch");
        match &self.kind {
            OrderKind::One(sequence) => Some(sequence.segments_within(positions).collect()),
            OrderKind::Mix(_) => None,
        }
    }

    /// Which segments are read between which positions, in the order in which they are first needed: every
    /// position outside of a segment's spans is read from another one. Of a mix, a segment has as many as its
    /// part comes round.
    pub fn spans(&self) -> Vec<(u32, Range<u64>)> {
        match &self.kind {
            OrderKind::One(sequence) => sequence.spans().collect(),
            OrderKind::Mix(mix) => mix.spans(),
        }
    }

    /// How many segments a position may be read from: those of a window, over all parts.
    pub fn window_segments(&self) -> usize {
        match (&self.kind, self.key.shuffle) {
            (_, Shuffle::None) => 1,
            (OrderKind::One(_), Shuffle::Window(w)) => w as usize,
            (OrderKind::Mix(mix), Shuffle::Window(w)) => mix.parts().saturating_mul(w as usize),
            (_, Shuffle::Full) => usize::MAX,
        }
    }
}

#[cfg(test)]
mod tests;
