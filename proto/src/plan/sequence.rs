//! The order of one dataset: segments permuted, cut into windows, the rows of each window permuted.

use super::key::{PlanKey, Sample, Shuffle, derive};
use super::permute::{Permutation, SplitMix64, high};
use std::ops::Range;

/// Positions that are permuted at a time.
const BLOCK: usize = 256;

/// The order of one epoch of one dataset.
#[derive(Debug, Clone)]
pub(super) struct Sequence {
    key: PlanKey,
    /// Added to segment numbers: the first segment of the part.
    first_segment: u32,
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
    range: Range<u64>,
    /// Its entries of `sequence`.
    first: usize,
    last: usize,
    rows: Option<Permutation>,
}

impl Sequence {
    /// The order over segments of the given row counts, numbered from `first_segment`.
    pub fn new(rows: &[u64], first_segment: u32, key: PlanKey) -> Self {
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
        Self { key, first_segment, sequence, starts, window }
    }

    /// How many samples the epoch has.
    pub fn len(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Writes the samples at `position ..` to `out`. All of them must be positions of the epoch.
    ///
    /// # Panics
    /// If `position + out.len()` exceeds [`Sequence::len`].
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

    /// Segments that are read together: in file order there are no windows, each lies by itself.
    fn together(&self) -> usize {
        if self.key.shuffle == Shuffle::None { 1 } else { self.window }
    }

    /// The segments of the windows in which some positions lie, at least one, all of them of the epoch.
    pub fn segments_within(&self, positions: Range<u64>) -> impl Iterator<Item = u32> + '_ {
        let (width, count) = (self.together(), self.sequence.len());
        let window = |position| self.entry_of(position, 0, count) / width * width;
        let (first, last) = (window(positions.start), window(positions.end - 1));
        let segments = &self.sequence[first..(last + width).min(count)];
        segments.iter().map(|segment| self.first_segment + segment)
    }

    /// Each segment with the positions between which it is read, in the order of `sequence`.
    pub fn spans(&self) -> impl Iterator<Item = (u32, Range<u64>)> + '_ {
        let width = self.together();
        self.sequence.iter().enumerate().map(move |(i, segment)| {
            let first = i / width * width;
            let end = (first + width).min(self.sequence.len());
            (self.first_segment + segment, self.starts[first]..self.starts[end])
        })
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
        Sample {
            segment: self.first_segment + self.sequence[entry],
            row: (place - self.starts[entry]) as u32,
        }
    }

    /// The entry of `sequence` in `first .. last` that holds row `place` of the unshuffled windows.
    fn entry_of(&self, place: u64, first: usize, last: usize) -> usize {
        first + self.starts[first..=last].partition_point(|&b| b <= place) - 1
    }
}
