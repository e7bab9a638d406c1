//! Some steps of a rank, and the message that names the files of their segments.

use super::wire::{Message, PlannedRows};
use crate::packed::{Form, PackedSchema, RowLayout};
use crate::ready::ReadySegment;
use crate::segment_batch::SegmentBatch;
use crate::shared::MessagePool;
use forebay_proto::{Result, v1};

/// Some steps: all rows that the rank has in them.
#[derive(Debug, Clone)]
pub(super) struct StepRange {
    pub first: u64,
    pub count: u32,
    pub rows: usize,
    /// The segments of which these rows may be.
    pub segments: Vec<u32>,
}

impl StepRange {
    /// The message; `None` if one of these segments, which are `sources`, does not lie in a file that the
    /// reader takes.
    pub fn message(
        &self,
        wanted: &PackedSchema,
        layout: &RowLayout,
        (segments, sources): (&[u32], &[ReadySegment]),
        pool: &MessagePool,
    ) -> Result<Option<Message>> {
        let blocks: Option<Vec<_>> =
            sources.iter().map(|source| Some(&source.batch.whole_rows(layout)?.bytes)).collect();
        let rows = blocks
            .and_then(|blocks| pool.over(sources).refer_planned(&blocks, segments, layout.width, self.rows));
        let Some(rows) = rows else { return Ok(None) };
        let batch = SegmentBatch::of_rows(&wanted.schema, layout, rows, Vec::new(), self.rows);
        let meta = v1::MessageMeta { first_step: self.first, whole_steps: self.count, ..Default::default() };
        let planned = PlannedRows { rows: self.rows as u32, segments: segments.to_vec() };
        Message::of_planned(&batch.to_form(wanted, Form::Packed)?, meta, planned, pool).map(Some)
    }
}
