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
//! `full` is one window of all segments; `none` is file order. Any position is found in O(log S) without state, so a
//! resume costs what a start costs, and nothing but the segments' sizes is kept in memory.
//!
//! [`steps`] cuts the order into steps and ranks, and lays the rows of a batch out.

pub mod permute;
pub mod steps;

use crate::error::{Error, Result};
use crate::manifest::{Digest, Manifest};
use crate::v1;
use permute::{Permutation, SplitMix64, high};
use xxhash_rust::xxh3::xxh3_64;

/// The order's version. Changing what any plan yields means changing this.
pub const VERSION: u32 = 1;

/// Positions that are permuted at a time.
const BLOCK: usize = 256;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sample {
    /// Segment number in the manifest.
    pub segment: u32,
    /// Row within the segment.
    pub row: u32,
}

/// The order of one epoch.
#[derive(Debug, Clone)]
pub struct Order {
    key: PlanKey,
    /// Segment numbers in the order they are visited.
    sequence: Vec<u32>,
    /// Rows before entry i of `sequence`; one more entry than `sequence`, the last is the number of rows.
    starts: Vec<u64>,
    /// Segments in a window.
    window: usize,
}

/// One window of an order.
struct Window {
    /// First position, and one past the last.
    range: std::ops::Range<u64>,
    /// Its entries of `sequence`.
    first: usize,
    last: usize,
    rows: Option<Permutation>,
}

impl Order {
    /// The order of `manifest`'s samples in one epoch.
    pub fn new(manifest: &Manifest, seed: u64, epoch: u64, shuffle: Shuffle) -> Self {
        let rows: Vec<u64> = manifest.segments().iter().map(|s| s.rows).collect();
        Self::of_segments(&rows, PlanKey { manifest: manifest.digest(), seed, epoch, shuffle })
    }

    /// The order over segments of the given row counts.
    pub fn of_segments(rows: &[u64], key: PlanKey) -> Self {
        let mut sequence: Vec<u32> = (0..rows.len() as u32).collect();
        if key.shuffle != Shuffle::None {
            let mut random = SplitMix64(derive(&key, 0, 0));
            for i in (1..sequence.len()).rev() {
                sequence.swap(i, high(random.next(), i as u64 + 1) as usize);
            }
        }
        let mut starts = Vec::with_capacity(rows.len() + 1);
        let mut total = 0;
        starts.push(0);
        for &s in &sequence {
            total += rows[s as usize];
            starts.push(total);
        }
        let window = match key.shuffle {
            Shuffle::Window(w) => (w as usize).clamp(1, rows.len().max(1)),
            _ => rows.len().max(1),
        };
        Self { key, sequence, starts, window }
    }

    /// What made this order.
    pub fn key(&self) -> &PlanKey {
        &self.key
    }

    /// How many samples the epoch has.
    pub fn len(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Whether the epoch has no sample.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sample at a position; `None` past the end.
    pub fn at(&self, position: u64) -> Option<Sample> {
        let mut one = [Sample { segment: 0, row: 0 }];
        (position < self.len()).then(|| {
            self.fill(position, &mut one);
            one[0]
        })
    }

    /// Writes the samples at `position ..` to `out`. All of them must be positions of the epoch.
    ///
    /// # Panics
    /// If `position + out.len()` exceeds [`Order::len`].
    pub fn fill(&self, mut position: u64, mut out: &mut [Sample]) {
        assert!(position + out.len() as u64 <= self.len(), "positions past the end of the epoch");
        while !out.is_empty() {
            let window = self.window_of(position);
            let n = out.len().min((window.range.end - position) as usize);
            let (now, rest) = out.split_at_mut(n);
            self.fill_window(&window, position, now);
            position += n as u64;
            out = rest;
        }
    }

    /// The segments that positions `from ..` touch, in the order in which windows need them: all that a prefetch must
    /// know. Ends with the epoch.
    pub fn segments_from(&self, from: u64) -> impl Iterator<Item = u32> + '_ {
        let first = match from < self.len() {
            true => match self.key.shuffle {
                Shuffle::None => self.entry_of(from, 0, self.sequence.len()),
                _ => self.window_of(from).first,
            },
            false => self.sequence.len(),
        };
        self.sequence[first..].iter().copied()
    }

    fn window_of(&self, position: u64) -> Window {
        let entry = self.entry_of(position, 0, self.sequence.len());
        let index = entry / self.window;
        let first = index * self.window;
        let last = (first + self.window).min(self.sequence.len());
        let range = self.starts[first]..self.starts[last];
        let rows = (self.key.shuffle != Shuffle::None)
            .then(|| Permutation::new(range.end - range.start, derive(&self.key, 1, index as u64)));
        Window { range, first, last, rows }
    }

    fn fill_window(&self, window: &Window, position: u64, out: &mut [Sample]) {
        let start = window.range.start;
        let starts = &self.starts[window.first..=window.last];
        let Some(rows) = &window.rows else {
            let mut entry = self.entry_of(position, window.first, window.last) - window.first;
            for (i, s) in out.iter_mut().enumerate() {
                let place = position + i as u64;
                while place >= starts[entry + 1] {
                    entry += 1;
                }
                *s = self.sample(window.first + entry, place);
            }
            return;
        };
        // Segments of a window are mostly of one size: guess the entry by proportion, then correct.
        let (count, n) = ((window.last - window.first) as u64, window.range.end - start);
        let scale = ((u128::from(count) << 64) / u128::from(n)).min(u128::from(u64::MAX)) as u64;
        let mut places = [0; BLOCK];
        for (block, out) in out.chunks_mut(places.len()).enumerate() {
            let places = &mut places[..out.len()];
            rows.apply_all(position - start + (block * BLOCK) as u64, places);
            for (s, &x) in out.iter_mut().zip(&*places) {
                let place = start + x;
                let mut entry = (high(x, scale).min(count - 1)) as usize;
                if place < starts[entry] || place >= starts[entry + 1] {
                    entry = starts.partition_point(|&b| b <= place) - 1;
                }
                *s = self.sample(window.first + entry, place);
            }
        }
    }

    fn sample(&self, entry: usize, place: u64) -> Sample {
        Sample { segment: self.sequence[entry], row: (place - self.starts[entry]) as u32 }
    }

    /// The entry of `sequence` in `first .. last` that holds row `place` of the unshuffled windows.
    fn entry_of(&self, place: u64, first: usize, last: usize) -> usize {
        first + self.starts[first..=last].partition_point(|&b| b <= place) - 1
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
