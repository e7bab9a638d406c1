//! A finished batch: one contiguous array per column.

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::buffer::{BooleanBuffer, ScalarBuffer};
use arrow::datatypes::SchemaRef;
use forebay_proto::digest::OrderDigest;
use forebay_proto::{Error, Result};

/// One rank's rows of a step. Cheap to clone; its memory returns to the loader's pool when the last clone is
/// dropped.
#[derive(Debug, Clone)]
pub struct Batch {
    pub(crate) epoch: u64,
    pub(crate) step: u64,
    pub(crate) samples_done: u64,
    pub(crate) samples: ScalarBuffer<u64>,
    pub(crate) mask: Option<BooleanBuffer>,
    pub(crate) real_rows: usize,
    pub(crate) digest: OrderDigest,
    pub(crate) columns: RecordBatch,
}

impl Batch {
    /// The epoch, from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The step, counted from the epoch's beginning.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Samples of the epoch that all ranks together have taken once this batch is done.
    pub fn samples_done(&self) -> u64 {
        self.samples_done
    }

    /// Rows, padding included.
    pub fn rows(&self) -> usize {
        self.columns.num_rows()
    }

    /// Rows that are samples of the epoch, not padding.
    pub fn real_rows(&self) -> usize {
        self.real_rows
    }

    /// The number of each row's sample in the dataset, in file order from 0; padding has that of the row it
    /// repeats.
    pub fn sample_ids(&self) -> &[u64] {
        &self.samples
    }

    /// Set for rows that are samples, unset for padding; `None` when no row is padding.
    pub fn mask(&self) -> Option<&BooleanBuffer> {
        self.mask.as_ref()
    }

    /// The order digest of its samples, as delivered.
    pub fn digest(&self) -> OrderDigest {
        self.digest
    }

    /// The columns' names and types.
    pub fn schema(&self) -> SchemaRef {
        self.columns.schema()
    }

    /// A column by name; `NotFound` names those that there are.
    pub fn column(&self, name: &str) -> Result<ArrayRef> {
        self.columns.column_by_name(name).cloned().ok_or_else(|| {
            let schema = self.columns.schema();
            let names: Vec<_> = schema.fields().iter().map(|f| f.name().as_str()).collect();
            Error::not_found(format!("the batch has no column `{name}`: there are {}", names.join(", ")))
        })
    }

    /// All columns.
    pub fn to_record_batch(&self) -> RecordBatch {
        self.columns.clone()
    }

    /// Bytes that its columns hold in memory.
    pub fn bytes(&self) -> usize {
        self.columns.columns().iter().map(|c| c.get_buffer_memory_size()).sum()
    }
}
