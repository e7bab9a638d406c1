//! Messages of whole steps, for readers on this host that copy rows out of files and know the plan: where all
//! columns are packed, such a message is the files of the segments that the steps may read from. Neither side
//! tells the other which rows these are, and this one does not even work it out.

use super::builder::{MESSAGE_ROWS, MessageBuilder};
use super::step_range::StepRange;
use super::walk::PlanWalk;
use crate::pool::LARGE_BYTES;
use forebay_proto::plan::steps::Steps;

/// Segments that such a message may name at most: four windows of 16.
const SEGMENTS_MAX: usize = 64;

/// Where a stream may have such messages.
pub(super) struct WholeSteps<'a> {
    walk: &'a PlanWalk,
    steps: Steps<'a>,
    /// Bytes of a row.
    width: usize,
    /// Bytes that a message aims at.
    message_bytes: usize,
}

impl<'a> WholeSteps<'a> {
    /// `None` where the reader or the table needs more in its messages.
    pub fn of(walk: &'a PlanWalk, steps: Steps<'a>, builder: &MessageBuilder) -> Option<Self> {
        let layout = builder.packed_alone()?;
        let may = walk.knows_rows && walk.wants_all() && !walk.has_spans();
        let (width, message_bytes) = (layout.width, builder.budget.message_bytes);
        may.then_some(Self { walk, steps, width, message_bytes })
    }

    /// The steps from one on that make a message; `None` where a step needs more: for its padding, as its
    /// rows may be of too many segments, or fill more than one message. The first ones are short, so that the
    /// first batch comes early.
    pub fn from(&self, step: u64) -> Option<StepRange> {
        let (order, cut) = (&self.walk.order, self.walk.cut);
        let slots = self.steps.slots(step) as usize;
        let fit = (self.message_bytes / (slots * self.width)).min(MESSAGE_ROWS / slots) as u64;
        let early = (step + 1).max(LARGE_BYTES.div_ceil(slots * self.width) as u64);
        let unpadded = (order.len() - cut.first_position) / cut.global_batch;
        let count = fit.min(early).min(unpadded.saturating_sub(step));
        if count == 0 {
            return None;
        }
        let first = self.steps.position(step);
        let segments = order.segments_within(first..first + count * cut.global_batch)?;
        let rows = count as usize * slots;
        (segments.len() <= SEGMENTS_MAX).then_some(StepRange {
            first: step,
            count: count as u32,
            rows,
            segments,
        })
    }
}
