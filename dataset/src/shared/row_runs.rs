//! Rows of one width out of several sources, one after the other: a stretch of a message that its reader
//! copies by itself.

use crate::prefetch::{prefetch, rows_ahead};
use forebay_proto::{Error, Result};

/// Bytes in which a run is told.
pub const RUN_BYTES: usize = 8;

/// Sources, rows of a run and rows of a source that can be told.
const SOURCES: u64 = 1 << 12;
const RUN_ROWS: u64 = 1 << 20;
const ROWS: u64 = 1 << 32;

/// Rows of one width out of several sources, in the order in which they are copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowRuns {
    width: usize,
    runs: Vec<RowStretch>,
    bytes: usize,
}

/// Consecutive rows of a source: 12 bits for the source, 20 for the rows, 32 for the first row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RowStretch(u64);

/// How far such rows were copied.
#[derive(Debug, Clone, Copy, Default)]
pub struct RowsDone {
    run: usize,
    /// Of that run.
    bytes: usize,
}

impl RowStretch {
    fn source(self) -> usize {
        (self.0 >> 52) as usize
    }

    fn rows(self) -> usize {
        (self.0 >> 32 & (RUN_ROWS - 1)) as usize
    }

    fn first(self) -> usize {
        (self.0 & (ROWS - 1)) as usize
    }
}

impl RowRuns {
    /// None so far, of `width` bytes each, at least 1, with room for `runs` of them.
    pub fn new(width: usize, runs: usize) -> Self {
        Self { width, runs: Vec::with_capacity(runs), bytes: 0 }
    }

    /// Adds rows of a source. False if numbers of that size cannot be told.
    pub fn push(&mut self, source: usize, first: usize, rows: usize) -> bool {
        let (source, mut first, mut rows) = (source as u64, first as u64, rows as u64);
        if source >= SOURCES || first + rows > ROWS {
            return false;
        }
        self.bytes += rows as usize * self.width;
        while rows > 0 {
            let now = rows.min(RUN_ROWS - 1);
            self.runs.push(RowStretch(source << 52 | now << 32 | first));
            (first, rows) = (first + now, rows - now);
        }
        true
    }

    /// Bytes of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// How many runs there are.
    pub fn count(&self) -> usize {
        self.runs.len()
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes them down, [`RUN_BYTES`] each. True if there was room.
    pub fn write(&self, to: &mut [u8]) -> bool {
        let to = to.as_chunks_mut::<RUN_BYTES>().0;
        to.iter_mut().zip(&self.runs).for_each(|(to, run)| *to = run.0.to_le_bytes());
        to.len() >= self.runs.len()
    }

    /// Those that were written down, of sources of these lengths. `Corrupt` if one lies outside.
    pub fn read(width: usize, runs: &[u8], sources: &[usize]) -> Result<Self> {
        let runs: Vec<RowStretch> =
            runs.as_chunks().0.iter().map(|run| RowStretch(u64::from_le_bytes(*run))).collect();
        let bytes = runs.iter().map(|run| run.rows() * width).sum();
        let runs = Self { width, runs, bytes };
        runs.check(sources)?;
        Ok(runs)
    }

    /// `Corrupt` if one lies outside of sources of these lengths.
    pub(super) fn check(&self, sources: &[usize]) -> Result<()> {
        let is_inside = |run: &RowStretch| {
            let end = (run.first() + run.rows()).checked_mul(self.width);
            sources.get(run.source()).zip(end).is_some_and(|(bytes, end)| end <= *bytes)
        };
        match self.width > 0 && self.runs.iter().all(is_inside) {
            true => Ok(()),
            false => Err(Error::corrupt("rows of a message lie outside of their files")),
        }
    }

    /// Copies the next bytes out of the sources. Those behind the last row stay as they are.
    pub fn copy(&self, done: &mut RowsDone, sources: &[&[u8]], mut to: &mut [u8]) {
        let ahead = rows_ahead(self.bytes / self.runs.len().max(1));
        while let Some(run) = self.runs.get(done.run)
            && !to.is_empty()
        {
            if let Some(next) = self.runs.get(done.run + ahead) {
                let (first, bytes) = (next.first() * self.width, next.rows() * self.width);
                prefetch(sources[next.source()].get(first..first + bytes).unwrap_or_default());
            }
            let (from, bytes) = (run.first() * self.width + done.bytes, run.rows() * self.width);
            let (now, rest) = to.split_at_mut(to.len().min(bytes - done.bytes));
            now.copy_from_slice(&sources[run.source()][from..from + now.len()]);
            done.bytes += now.len();
            if done.bytes == bytes {
                *done = RowsDone { run: done.run + 1, bytes: 0 };
            }
            to = rest;
        }
    }

    /// Passes over the next bytes.
    pub fn skip(&self, done: &mut RowsDone, mut bytes: usize) {
        while let Some(run) = self.runs.get(done.run)
            && bytes > 0
        {
            let now = bytes.min(run.rows() * self.width - done.bytes);
            (done.bytes, bytes) = (done.bytes + now, bytes - now);
            if done.bytes == run.rows() * self.width {
                *done = RowsDone { run: done.run + 1, bytes: 0 };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The model: all rows in one vector. However they are taken, written down and read in between, they
        /// are those.
        #[test]
        fn rows_come_in_order(
            (width, seed) in (1usize..40, 0usize..1000),
            runs in prop::collection::vec((0usize..3, 0usize..50, 0usize..20), 0..60),
            steps in prop::collection::vec((any::<bool>(), 0usize..300), 0..60),
        ) {
            let sources = (0..3).map(|s| (0..70 * width).map(|i| (i * 31 + s * 7 + i / 251 + seed) as u8).collect());
            let sources: Vec<Vec<u8>> = sources.collect();
            let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
            let (mut told, mut model) = (RowRuns::new(width, 0), Vec::new());
            for (source, first, rows) in runs {
                prop_assert!(told.push(source, first, rows));
                model.extend_from_slice(&sources[source][first * width..(first + rows) * width]);
            }
            prop_assert_eq!(told.bytes(), model.len());
            let mut written = vec![0; told.count() * RUN_BYTES];
            let mut short = vec![0; written.len().saturating_sub(1)];
            prop_assert!(told.write(&mut written) && (written.is_empty() || !told.write(&mut short)));
            let read = RowRuns::read(width, &written, &[70 * width; 3]).unwrap();
            prop_assert_eq!(&read, &told);
            let (mut done, mut at) = (RowsDone::default(), 0);
            for (is_skipped, bytes) in steps.into_iter().chain([(false, model.len())]) {
                let bytes = bytes.min(model.len() - at);
                if is_skipped {
                    read.skip(&mut done, bytes);
                } else {
                    let mut got = vec![0; bytes];
                    read.copy(&mut done, &sources, &mut got);
                    prop_assert_eq!(&got[..], &model[at..at + bytes]);
                }
                at += bytes;
            }
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        let mut runs = RowRuns::new(3, 0);
        assert!(runs.push(4095, (1 << 32) - 1, 1) && runs.push(0, 5, 0));
        assert!(!runs.push(4096, 0, 1) && !runs.push(0, 1 << 32, 1));
        assert_eq!((runs.count(), runs.bytes()), (1, 3));
        // A run that is too long is several.
        assert!(runs.push(1, 7, 1 << 21));
        assert_eq!((runs.count(), runs.bytes()), (4, 3 + (3 << 21)));
        let mut written = vec![0; 4 * RUN_BYTES];
        assert!(runs.write(&mut written));
        let of = |sources: &[usize]| RowRuns::read(3, &written[RUN_BYTES..], sources).is_ok();
        assert!(of(&[0, (7 + (1 << 21)) * 3]));
        assert!(!of(&[0, (7 + (1 << 21)) * 3 - 1]) && !of(&[0]));
        assert!(RowRuns::read(0, &written[RUN_BYTES..], &[0, 1 << 40]).is_err());
    }
}
