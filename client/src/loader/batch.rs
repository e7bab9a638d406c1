//! A finished batch: one contiguous array per column.

use arrow::array::{ArrayRef, RecordBatch};
use arrow::buffer::{BooleanBuffer, ScalarBuffer};
use forebay_dataset::slice_bytes;
use forebay_proto::digest::{ContentDigest, OrderDigest};
use forebay_proto::plan::packing::PackedSteps;
use forebay_proto::{Error, Result};

/// One rank's rows of a step. Cheap to clone; its memory returns to the loader's pool when the last clone is
/// dropped.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Batch {
    /// The epoch, from 0.
    pub epoch: u64,
    /// Counted from the epoch's beginning.
    pub step: u64,
    /// Samples of the epoch that all ranks together have taken once this batch is done.
    pub samples_done: u64,
    /// The number of each row's sample in the dataset, in file order from 0; padding has that of the row it
    /// repeats.
    pub sample_ids: ScalarBuffer<u64>,
    /// Set for rows that are samples, unset for padding; `None` when no row is padding.
    pub mask: Option<BooleanBuffer>,
    /// Rows that are samples of the epoch, not padding.
    pub real_rows: usize,
    /// The order digest of its samples, as delivered.
    pub digest: OrderDigest,
    /// The content digest of its samples, if the settings ask for it.
    pub content: Option<ContentDigest>,
    /// The sequences of tokens that its rows make, if the settings ask for some. Then its rows are documents
    /// in the order of the epoch, and the first one is padding if an earlier batch began it.
    pub sequences: Option<Sequences>,
    /// Its data. Memory of fixed-width columns is read by nobody else, and may be handed to who writes to it.
    pub columns: RecordBatch,
}

/// Sequences of tokens that the rows of a batch make: their tokens one after the other, cut into equal parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sequences {
    /// Sequences of the batch, those without a token included: the same on all ranks.
    pub count: u64,
    /// Tokens of each, the last of those with tokens apart.
    pub length: u32,
    /// The position in the epoch of the first row.
    pub first: u64,
    /// Tokens at the beginning of the first row that earlier batches had.
    pub skip: u32,
    /// Tokens from there on that belong to the batch; what lies behind them comes in the next one.
    pub tokens: u64,
    /// Sequences of the batch that have a token.
    pub own: u64,
    /// Sequences of the step that have a token, over all ranks.
    pub all: u64,
    /// Tokens of the next sample that all ranks together have taken once this batch is done.
    pub tokens_done: u32,
}

impl Sequences {
    pub(super) fn of(packed: &PackedSteps, step: u64) -> Self {
        let own = &packed.steps[step as usize];
        Self {
            count: packed.sequences,
            length: packed.sequence_tokens,
            first: packed.spans[step as usize].first,
            skip: own.skip,
            tokens: own.tokens,
            own: own.tokens.div_ceil(packed.sequence_tokens.into()),
            all: own.sequences,
            tokens_done: own.end.offset,
        }
    }
}

impl Batch {
    /// Rows, padding included.
    pub fn rows(&self) -> usize {
        self.columns.num_rows()
    }

    /// A column by name; `NotFound` names those that there are.
    pub fn column(&self, name: &str) -> Result<ArrayRef> {
        self.columns.column_by_name(name).cloned().ok_or_else(|| {
            let schema = self.columns.schema();
            let names: Vec<_> = schema.fields().iter().map(|f| f.name().as_str()).collect();
            Error::not_found(format!("the batch has no column `{name}`: there are {}", names.join(", ")))
        })
    }

    /// Bytes of its values, whatever more its buffers have room for.
    pub fn bytes(&self) -> usize {
        self.columns.columns().iter().map(|c| slice_bytes(c)).sum()
    }
}
