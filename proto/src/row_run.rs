//! The rows of a message by step and segment: a typed view of `MessageMeta.runs`.

use crate::error::{Error, Result};
use crate::v1::MessageMeta;

/// Consecutive rows of a message that belong to one step and come from one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowRun {
    /// Steps after the message's `first_step`.
    pub step: u32,
    /// Index into the manifest's segments.
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
    /// The runs in the order of the message's rows; `Corrupt` if numbers are left that make no whole run.
    pub fn row_runs(&self) -> Result<impl ExactSizeIterator<Item = RowRun> + '_> {
        let (triples, []) = self.runs.as_chunks::<3>() else {
            return Err(Error::corrupt("a message's runs make no sense: they are not triples"));
        };
        Ok(triples.iter().map(|&[step, segment, rows]| RowRun { step, segment, rows }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn runs_survive_the_wire_and_a_part_of_one_is_told() {
        let runs = [RowRun { step: 0, segment: 7, rows: 100 }, RowRun { step: 2, segment: 1, rows: 1 }];
        let mut meta = MessageMeta { runs: RowRun::to_wire(&runs), ..Default::default() };
        assert!(meta.row_runs().unwrap().eq(runs));
        for _ in 0..2 {
            meta.runs.push(3);
            let error = meta.row_runs().map(|runs| runs.len()).unwrap_err();
            assert!(error.kind == Kind::Corrupt && error.message.contains("not triples"), "{error}");
        }
        meta.runs.push(3);
        assert_eq!(meta.row_runs().unwrap().len(), 3);
    }
}
