//! The order of a mix: parts take turns in fixed proportion, each in an order of its own. Defined in
//! [`super`].

use super::key::{PlanKey, Sample, derive};
use super::permute::Permutation;
use super::sequence::Sequence;
use crate::manifest::Part;
use std::ops::Range;

/// Positions of a block: the parts' slots together.
pub(super) fn block(parts: &[Part]) -> u64 {
    parts.iter().map(|p| u64::from(p.slots)).sum()
}

/// Blocks in an epoch.
pub(super) fn blocks(parts: &[Part]) -> u64 {
    parts.iter().map(|p| p.rows / u64::from(p.slots)).min().unwrap_or(0).max(1)
}

/// The order of one epoch of a mix.
#[derive(Debug, Clone)]
pub(super) struct Mix {
    key: PlanKey,
    parts: Vec<PartOrders>,
    block: u64,
    blocks: u64,
}

/// A part, and those of its own epochs that the mix's epoch touches.
#[derive(Debug, Clone)]
struct PartOrders {
    slots: u64,
    rows: u64,
    /// The part's sample number at the epoch's start.
    first: u64,
    first_epoch: u64,
    orders: Vec<Sequence>,
}

impl Mix {
    /// The order over segments of the given row counts, which belong to `parts`, each with at least one row.
    pub fn new(rows: &[u64], parts: &[Part], key: PlanKey) -> Self {
        let (block, blocks) = (block(parts), blocks(parts));
        let part = |(index, p): (usize, &Part)| {
            let slots = u64::from(p.slots);
            // An epoch past the last number of a sample is some epoch, as for a single dataset.
            let samples = blocks * slots;
            let first = key.epoch.saturating_mul(samples).min(u64::MAX - samples);
            let (first_epoch, last_epoch) = (first / p.rows, (first + samples - 1) / p.rows);
            let seed = derive(&PlanKey { epoch: 0, ..key }, 3, index as u64);
            let own = &rows[p.segments.start as usize..p.segments.end as usize];
            let order = |epoch| Sequence::new(own, p.segments.start, PlanKey { seed, epoch, ..key });
            let orders = (first_epoch..=last_epoch).map(order).collect();
            PartOrders { slots, rows: p.rows, first, first_epoch, orders }
        };
        Self { key, parts: parts.iter().enumerate().map(part).collect(), block, blocks }
    }

    pub fn len(&self) -> u64 {
        self.block * self.blocks
    }

    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Writes the samples at `position ..`, block by block.
    pub fn fill(&self, position: u64, mut out: &mut [Sample]) {
        let mut samples = vec![Sample::default(); self.block as usize];
        let mut places = vec![0; self.block as usize];
        let (mut k, mut x) = (position / self.block, position % self.block);
        while !out.is_empty() {
            let mut at = 0;
            for part in &self.parts {
                part.fill(k, &mut samples[at as usize..(at + part.slots) as usize]);
                at += part.slots;
            }
            Permutation::new(self.block, derive(&self.key, 2, k)).apply_all(0, &mut places);
            let n = out.len().min((self.block - x) as usize);
            let (now, rest) = out.split_at_mut(n);
            for (sample, &y) in now.iter_mut().zip(&places[x as usize..]) {
                *sample = samples[y as usize];
            }
            (out, k, x) = (rest, k + 1, 0);
        }
    }

    /// Each segment with the positions between which it is read, once for each time that its part comes
    /// round.
    pub fn spans(&self) -> Vec<(u32, Range<u64>)> {
        let mut all = Vec::new();
        for part in &self.parts {
            let (first, end) = (part.first, part.first + self.blocks * part.slots);
            for (i, order) in part.orders.iter().enumerate() {
                let start = (part.first_epoch + i as u64) * part.rows;
                let within = order.spans().map(|(segment, s)| (segment, start + s.start..start + s.end));
                let within = within.filter(|(_, s)| s.start < end && s.end > first);
                all.extend(within.map(|(segment, s)| {
                    let from = (s.start.max(first) - first) / part.slots;
                    let to = (s.end.min(end) - first).div_ceil(part.slots);
                    (segment, from * self.block..to * self.block)
                }));
            }
        }
        all.sort_by_key(|(_, range)| range.start);
        all
    }
}

impl PartOrders {
    /// The part's samples of block `k`.
    fn fill(&self, k: u64, mut out: &mut [Sample]) {
        let mut m = self.first + k * self.slots;
        while !out.is_empty() {
            let (epoch, at) = (m / self.rows, m % self.rows);
            let n = out.len().min((self.rows - at) as usize);
            let (now, rest) = out.split_at_mut(n);
            self.orders[(epoch - self.first_epoch) as usize].fill(at, now);
            (out, m) = (rest, m + n as u64);
        }
    }
}
