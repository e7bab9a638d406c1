//! Rows of a message that its reader copies out of files, as the node knows them.

use super::files::LentFile;
use super::row_runs::{RowRuns, RowsDone};
use arrow::buffer::Buffer;
use forebay_proto::v1;
use std::sync::Arc;

/// Such rows. While this lives, the files stay with the reader.
#[derive(Debug)]
pub(super) struct FileRows {
    which: WhichRows,
    sources: Vec<RowFile>,
}

/// Which rows of the sources they are.
#[derive(Debug)]
pub(super) enum WhichRows {
    Told(RowRuns),
    /// A number of rows of this width: the plan says which. The sources are these segments.
    Planned {
        rows: usize,
        width: usize,
        segments: Vec<u32>,
    },
}

/// A source of rows that lies in a file.
#[derive(Debug)]
pub(super) struct RowFile {
    /// The rows, mapped here: that keeps the file as it is.
    pub rows: Buffer,
    pub file: Arc<LentFile>,
    /// Where they begin in the file.
    pub start: u64,
}

impl FileRows {
    pub fn new(which: WhichRows, sources: Vec<RowFile>) -> Self {
        Self { which, sources }
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> usize {
        match &self.which {
            WhichRows::Told(runs) => runs.bytes(),
            WhichRows::Planned { rows, width, .. } => rows * width,
        }
    }

    /// Writes the runs down, if they are told. True if there was room.
    pub fn write_runs(&self, to: &mut [u8]) -> bool {
        match &self.which {
            WhichRows::Told(runs) => runs.write(to),
            WhichRows::Planned { .. } => true,
        }
    }

    /// The rows' bytes, if it is told which they are.
    pub fn copied(&self) -> Option<Vec<u8>> {
        let WhichRows::Told(runs) = &self.which else { return None };
        let mut all = vec![0; runs.bytes()];
        let sources: Vec<&[u8]> = self.sources.iter().map(|source| source.rows.as_slice()).collect();
        runs.copy(&mut RowsDone::default(), &sources, &mut all);
        Some(all)
    }

    /// As a message tells them, but for the runs.
    pub fn to_wire(&self) -> v1::FileRows {
        let file = |source: &RowFile| v1::FileStart { number: source.file.number, start: source.start };
        let (width, runs, segments) = match &self.which {
            WhichRows::Told(runs) => (runs.width(), runs.count(), Vec::new()),
            WhichRows::Planned { width, segments, .. } => (*width, 0, segments.clone()),
        };
        let files = self.sources.iter().map(file).collect();
        v1::FileRows { width: width as u32, files, runs: runs as u32, segments }
    }
}
