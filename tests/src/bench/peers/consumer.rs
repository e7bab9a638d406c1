//! What a subject reports, and the consumer of Rust batches: the same as `tests/peers/consumer.py` has for
//! batches in Python. It reads the first byte of each column and sums one column, so that rows that were left
//! out, or came twice, are found.

use crate::bench::warm::{Shape, touch};
use anyhow::Context;
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Int64Type, UInt8Type};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::Path;

/// The report of a process that has read epochs.
#[derive(Debug, Serialize, Deserialize)]
pub struct PeerEpochs {
    /// Why it cannot; then there is nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cannot: Option<String>,
    #[serde(default)]
    pub epochs: Vec<PeerEpoch>,
    /// The most memory that it had resident, with its children and servers.
    #[serde(default)]
    pub peak_mb: f64,
}

/// One epoch.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct PeerEpoch {
    #[serde(flatten)]
    pub content: Content,
    pub seconds: f64,
    /// Of these, those that the consumer took.
    pub consumer_s: f64,
    /// Processor time of the process, its children, and its servers.
    pub cpu_s: f64,
    pub first_batch_ms: f64,
}

/// Which half a process reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    First,
    Second,
}

/// The report of a process that has read a half.
#[derive(Debug, Deserialize)]
pub struct HalfRead {
    /// Why it cannot; then there is nothing else.
    pub cannot: Option<String>,
    #[serde(flatten)]
    pub content: Option<Content>,
    /// From the making of the loader to its first batch.
    #[serde(default)]
    pub seconds: f64,
}

/// What was in an epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    pub rows: u64,
    pub checksum: u64,
}

impl Content {
    /// Adds a batch, and touches each of its columns.
    pub fn consume(&mut self, shape: Shape, batch: &RecordBatch) -> anyhow::Result<()> {
        if batch.num_rows() > 0 {
            touch(batch)?;
            self.rows += batch.num_rows() as u64;
            self.checksum = self.checksum.wrapping_add(checksum(shape, batch)?);
        }
        Ok(())
    }

    /// That of a file of Parquet.
    pub fn of_file(shape: Shape, path: &Path) -> anyhow::Result<Self> {
        let mut content = Self::default();
        for batch in ParquetRecordBatchReaderBuilder::try_new(File::open(path)?)?.build()? {
            content.consume(shape, &batch?)?;
        }
        Ok(content)
    }

    /// That of two parts.
    pub fn and(self, other: Self) -> Self {
        Self { rows: self.rows + other.rows, checksum: self.checksum.wrapping_add(other.checksum) }
    }

    /// That of several such files.
    pub fn times(self, files: u64) -> Self {
        Self { rows: self.rows * files, checksum: self.checksum.wrapping_mul(files) }
    }
}

/// The last byte of each row of X; the ids of T; the length and the last byte of each row of B.
fn checksum(shape: Shape, batch: &RecordBatch) -> anyhow::Result<u64> {
    let column =
        |name: &str| batch.column_by_name(name).with_context(|| format!("there is no column {name}"));
    Ok(match shape {
        Shape::X => {
            let lists = column("x")?.as_fixed_size_list();
            let (first, width) = (lists.value_offset_at(0), lists.value_length() as usize);
            let bytes = &lists.values().as_primitive::<UInt8Type>().values()[first..];
            bytes.chunks_exact(width).take(lists.len()).map(|row| u64::from(row[width - 1])).sum()
        }
        Shape::T => {
            let ids = column("id")?.as_primitive::<Int64Type>().values();
            ids.iter().fold(0, |sum: u64, id| sum.wrapping_add(*id as u64))
        }
        Shape::B => {
            let values = column("b")?.as_binary::<i32>();
            let rows = (0..values.len()).map(|row| values.value(row));
            rows.map(|value| value.len() as u64 + u64::from(value.last().copied().unwrap_or(0))).sum()
        }
        Shape::N => anyhow::bail!("peers do not read N"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    #[test]
    fn content_is_the_sum_of_its_batches_and_a_lost_row_shows() {
        for shape in [Shape::X, Shape::T, Shape::B] {
            let batch = shape.batch(9, 0, &mut Rng::with_seed(3)).expect("a batch");
            let of = |parts: &[(usize, usize)]| {
                let mut content = Content::default();
                for (from, rows) in parts {
                    content.consume(shape, &batch.slice(*from, *rows)).expect("consumed");
                }
                content
            };
            assert_eq!(of(&[(4, 5), (0, 4)]), of(&[(0, 9)]), "{shape:?}");
            assert_ne!(of(&[(0, 8), (0, 1)]), of(&[(0, 9)]), "{shape:?}: a row came twice, one was left out");
        }
    }
}
