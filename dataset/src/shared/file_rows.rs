//! Rows of a message that its reader copies out of files, as the node knows them.

use super::files::LentFile;
use super::row_runs::{RowRuns, RowsDone};
use arrow::buffer::Buffer;
use forebay_proto::v1;
use std::sync::Arc;

/// Such rows. While this lives, the files stay with the reader.
#[derive(Debug)]
pub(super) struct FileRows {
    runs: RowRuns,
    sources: Vec<RowFile>,
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
    pub fn new(runs: RowRuns, sources: Vec<RowFile>) -> Self {
        Self { runs, sources }
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> usize {
        self.runs.bytes()
    }

    /// Writes the runs down. True if there was room.
    pub fn write_runs(&self, to: &mut [u8]) -> bool {
        self.runs.write(to)
    }

    /// The rows' bytes.
    pub fn copied(&self) -> Vec<u8> {
        let mut all = vec![0; self.runs.bytes()];
        let sources: Vec<&[u8]> = self.sources.iter().map(|source| source.rows.as_slice()).collect();
        self.runs.copy(&mut RowsDone::default(), &sources, &mut all);
        all
    }

    /// As a message tells them, but for the runs.
    pub fn to_wire(&self) -> v1::FileRows {
        let file = |source: &RowFile| v1::FileStart { number: source.file.number, start: source.start };
        v1::FileRows {
            width: self.runs.width() as u32,
            files: self.sources.iter().map(file).collect(),
            runs: self.runs.count() as u32,
        }
    }
}
