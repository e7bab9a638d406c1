//! A message's strings or binaries on their way straight into batches.
//!
//! The offsets come first in a body. Once they are there it is known where in which batch each value goes.

use super::layout::ColumnLayout;
use crate::loader::builder::RowCopy;
use std::ops::Range;

/// Receives a column of a message into the batches of its rows: first the offsets, then the values of each
/// row in their place.
#[derive(Debug)]
pub(super) struct ColumnReceiver {
    pub column: usize,
    /// Where its offsets lie in the body, and the bytes of each.
    pub offsets: Range<usize>,
    width: usize,
    values: Range<usize>,
    /// The offsets as they came.
    raw: Vec<u8>,
    /// The same, read; empty until all have come, and if they make no sense.
    read: Vec<usize>,
    claims: Vec<Claim>,
}

/// A place in a batch that no other message may use.
#[derive(Debug)]
struct Claim {
    column: usize,
    copy: RowCopy,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.copy.builder.release(self.column);
    }
}

impl ColumnReceiver {
    /// Claims the places of a variable column's values; `None` if not all of them can be had.
    pub fn claim(column: usize, layout: &ColumnLayout, copies: &[RowCopy]) -> Option<Self> {
        let ColumnLayout::Variable { offsets, width, values, .. } = layout else { return None };
        let claim = |copy: &RowCopy| {
            let claimed = copy.builder.claim(column, copy.batch_row);
            claimed.then(|| Claim { column, copy: copy.clone() })
        };
        let claims = copies.iter().map(claim).collect::<Option<Vec<_>>>()?;
        let (offsets, width, values) = (offsets.clone(), *width, values.clone());
        let raw = vec![0; offsets.len()];
        Some(Self { column, offsets, width, values, raw, read: Vec::new(), claims })
    }

    /// The place of bytes of the offsets.
    pub fn place(&mut self, at: usize, bytes: usize) -> Option<&mut [u8]> {
        self.raw.get_mut(at..at + bytes)
    }

    /// All offsets have come: where in the body the values of each claimed place lie, and how many rows they
    /// are. Nothing if the offsets make no sense.
    pub fn aim(&mut self) -> impl Iterator<Item = (&RowCopy, Range<usize>)> {
        let offsets: Option<Vec<usize>> = match self.width {
            4 => self.raw.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b).try_into().ok()).collect(),
            _ => self.raw.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b).try_into().ok()).collect(),
        };
        let bytes = self.values.len();
        let is_sound = |o: &Vec<usize>| o.is_sorted() && o.last().is_some_and(|last| *last <= bytes);
        self.read = offsets.filter(is_sound).unwrap_or_default();
        let (read, start) = (&self.read, self.values.start);
        self.claims.iter().filter_map(move |Claim { copy, .. }| {
            let first = copy.message_row as usize;
            let (from, to) = (read.get(first)?, read.get(first + copy.rows as usize)?);
            Some((copy, start + from..start + to))
        })
    }

    /// Whether the offsets have come and make sense.
    pub fn is_sound(&self) -> bool {
        !self.read.is_empty()
    }

    /// The lengths of the values of some rows.
    pub fn lengths(&self, copy: &RowCopy) -> Vec<usize> {
        let first = copy.message_row as usize;
        let offsets = &self.read[first..=first + copy.rows as usize];
        offsets.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }
}
