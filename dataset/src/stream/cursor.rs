//! Cursors: they go through the rows that a ticket asks for, and have messages built of them.

use super::builder::{MESSAGE_ROWS, MessageBuilder, MessageRows};
use super::read_ahead::ReadAhead;
use super::walk::PlanWalk;
use super::whole_steps::WholeSteps;
use crate::ready::ReadySegment;
use forebay_proto::Result;
use forebay_proto::plan::Sample;
use forebay_proto::plan::steps::{Slot, Steps};
use std::collections::HashSet;

/// Rows of the plan that are passed in one go where none of them is wanted: a fraction of a millisecond.
const STRETCH_ROWS: usize = 16 << 10;

/// A rank's place in a plan: it goes from step to step.
struct PlanCursor<'a> {
    walk: &'a PlanWalk,
    steps: Steps<'a>,
    step: u64,
    slots: Vec<Slot>,
    /// Rows passed since other tasks had their turn.
    passed: usize,
}

impl<'a> PlanCursor<'a> {
    fn new(walk: &'a PlanWalk) -> Result<Self> {
        Ok(Self { walk, steps: walk.steps()?, step: 0, slots: Vec::new(), passed: 0 })
    }

    /// The number of the step that comes next; `None` after the last.
    fn step(&self) -> Option<u64> {
        (self.step < self.steps.count()).then_some(self.step)
    }

    /// The rank's rows of the next step, to which the cursor moves on.
    async fn rows(&mut self) -> &[Slot] {
        self.steps.batch(self.step, self.walk.rank, &mut self.slots);
        self.step += 1;
        self.passed += self.slots.len();
        if self.passed >= STRETCH_ROWS {
            self.passed = 0;
            tokio::task::yield_now().await;
        }
        &self.slots
    }
}

/// The rows of a plan that a rank reads, in step order.
#[tracing::instrument(level = "trace", skip_all)]
pub(super) async fn follow_plan(walk: PlanWalk, mut builder: MessageBuilder) -> Result<()> {
    let manifest = builder.reading.manifest.clone();
    let mut ahead = ReadAhead::start(&builder, &walk);
    let mut cursor = PlanCursor::new(&walk)?;
    let steps = cursor.steps;
    let mut message = MessageRows::default();
    let whole = WholeSteps::of(&walk, steps, &builder);
    // Steps before this one were tried to be sent whole.
    let mut tried = 0;
    while let Some(step) = cursor.step() {
        let position = steps.position(step);
        if let Some(range) = whole.as_ref().filter(|_| step >= tried).and_then(|whole| whole.from(step)) {
            if !message.is_empty() {
                builder.send(std::mem::take(&mut message)).await?;
            }
            builder.hooks.reached(position);
            if let Some(ahead) = &mut ahead {
                range.segments.iter().for_each(|segment| ahead.reached(*segment));
            }
            tried = step + u64::from(range.count);
            if builder.send_whole(&range).await? {
                cursor.step = tried;
                continue;
            }
        }
        if message.is_empty() {
            builder.hooks.reached(position);
        }
        // By segment, to do once all that is the same for the rows of a run.
        for run in cursor.rows().await.chunk_by(|a, b| a.sample.segment == b.sample.segment) {
            let number = run[0].sample.segment;
            if !walk.wants(number) {
                continue;
            }
            if let Some(ahead) = &mut ahead {
                ahead.reached(number);
            }
            let segment = manifest.segment(number)?;
            let mut left = run;
            while !left.is_empty() {
                let (now, later) = left.split_at(builder.room(&message, &segment).min(left.len()));
                message.push(step, now.iter().map(|slot| slot.sample), &segment);
                for slot in now.iter().filter(|slot| steps.is_real(slot)) {
                    message.digest.add(slot.position, segment.first_row + u64::from(slot.sample.row));
                }
                left = later;
                if builder.room(&message, &segment) == 0 {
                    builder.send(std::mem::take(&mut message)).await?;
                    builder.hooks.reached(position);
                }
            }
        }
    }
    if !message.is_empty() {
        builder.send(message).await?;
    }
    builder.hooks.reached(u64::MAX);
    Ok(())
}

/// All rows in file order, up to `limit`.
pub(super) async fn scan(mut builder: MessageBuilder, limit: u64) -> Result<()> {
    let mut left = limit;
    let manifest = builder.reading.manifest.clone();
    for segment in 0..manifest.segments().len() as u32 {
        if left == 0 {
            break;
        }
        builder.hold(&HashSet::from([segment])).await?;
        let Some(ReadySegment { batch, .. }) = builder.held(segment).cloned() else { continue };
        let part = manifest.segment(segment)?;
        let rows = part.rows.min(left) as usize;
        let bytes = batch.value_bytes() / batch.num_rows().max(1);
        let per_message = (builder.budget.message_bytes / bytes.max(1)).clamp(1, MESSAGE_ROWS);
        drop(batch);
        for first in (0..rows).step_by(per_message) {
            let n = per_message.min(rows - first);
            let message = builder.stretch(segment, part.skip as usize + first, n, bytes * n).await?;
            builder.deliver(message).await?;
        }
        left -= rows as u64;
    }
    Ok(())
}

/// Explicit rows in the order asked for.
pub(super) async fn rows(mut builder: MessageBuilder, samples: Vec<Sample>) -> Result<()> {
    let manifest = builder.reading.manifest.clone();
    let mut message = MessageRows::default();
    for sample in samples {
        let segment = manifest.segment(sample.segment)?;
        message.push(0, std::iter::once(sample), &segment);
        if builder.room(&message, &segment) == 0 {
            builder.send(std::mem::take(&mut message)).await?;
        }
    }
    if !message.is_empty() {
        builder.send(message).await?;
    }
    Ok(())
}
