//! The rows of a message by step and segment: a typed view of `MessageMeta.runs`.

use crate::v1::MessageMeta;

/// Consecutive rows of a message that belong to one step and come from one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowRun {
    /// Steps after the message's `first_step`.
    pub step: u32,
    /// Index of the segment.
    pub segment: u32,
    /// Number of rows.
    pub rows: u32,
}

impl RowRun {
    /// Runs as [`MessageMeta`] holds them: three numbers each.
    pub fn to_wire(runs: &[RowRun]) -> Vec<u32> {
        runs.iter().flat_map(|run| [run.step, run.segment, run.rows]).collect()
    }
}

impl MessageMeta {
    /// The runs in the order of the message's rows. Numbers at the end that make no whole run are left out.
    pub fn row_runs(&self) -> impl ExactSizeIterator<Item = RowRun> + '_ {
        let (triples, _) = self.runs.as_chunks::<3>();
        triples.iter().map(|&[step, segment, rows]| RowRun { step, segment, rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_survive_the_wire() {
        let runs = [RowRun { step: 0, segment: 7, rows: 100 }, RowRun { step: 2, segment: 1, rows: 1 }];
        let mut meta = MessageMeta { runs: RowRun::to_wire(&runs), ..Default::default() };
        assert!(meta.row_runs().eq(runs));
        meta.runs.push(3);
        assert_eq!(meta.row_runs().len(), 2);
    }
}
