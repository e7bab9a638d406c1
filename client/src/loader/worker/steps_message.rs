//! A message of whole steps, from a node on this host: it names the files of the segments that the steps read
//! from. Which rows these are the plan says, which the reader knows as well as the node. The rows stay where
//! they are until there is room for their batches.

use crate::loader::builder::{Commit, RowCopy};
use crate::loader::position::{Committed, IfFull, Position, Scope};
use crate::loader::reorder::ReorderBuffer;
use crate::loader::row_splitter::RowSplitter;
use crate::routing::policy::Failure;
use crate::stream::{Head, SharedSegments};
use forebay_dataset::RowLayout;
use forebay_dataset::pool::Pool;
use forebay_dataset::shared::RowRuns;
use forebay_proto::hash::Hash64;
use forebay_proto::manifest::{Manifest, Segment};
use forebay_proto::{Error, Result, v1};
use parking_lot::Mutex;
use std::sync::{Arc, mpsc};
use tokio::task::spawn_blocking;

/// Of steps with at least this number of bytes another thread copies some of the batches.
const ASIDE_BYTES: usize = 512 << 10;

/// More steps than a node puts into a message: each has a row, and a message at most as many.
const STEPS_MAX: u32 = 64 << 10;

/// Such a message.
pub(super) struct StepsMessage {
    /// Its next step.
    step: u64,
    /// One past its last step.
    end: u64,
    /// Rows of a step.
    rows: usize,
    layout: RowLayout,
}

/// Copies rows to their batches, as they are planned: on any number of threads.
struct RowCopier {
    /// The rows of one step after the other.
    queue: Mutex<mpsc::Receiver<Vec<RowCopy>>>,
    segments: SharedSegments,
    manifest: Arc<Manifest>,
    layout: RowLayout,
    pool: Pool,
}

impl StepsMessage {
    /// A message with this number of rows, of a stream that began at the step `start`. `Corrupt` if it makes
    /// no sense.
    pub fn new(
        head: &Head,
        meta: &v1::MessageMeta,
        (start, rows): (u64, u32),
        scope: Scope<'_>,
    ) -> Result<Self> {
        let bad = |why: &str| Error::corrupt(format!("a message of whole steps makes no sense: {why}"));
        let mut hash = Hash64::default();
        hash.update(&head.header);
        if hash.digest() != meta.hash {
            return Err(bad("it does not match its hash"));
        }
        let schema = scope.buffer.schema();
        let layout = schema.layout.as_ref().filter(|_| schema.physical.fields().len() == 1);
        let layout = layout.ok_or_else(|| bad("not all columns are packed"))?.clone();
        let step = start.checked_add(meta.first_step);
        let step = step.filter(|step| *step < scope.epoch.count).ok_or_else(|| bad("the epoch is over"))?;
        let end = step + u64::from(meta.whole_steps);
        if meta.whole_steps > STEPS_MAX || end > scope.epoch.count {
            return Err(bad("the epoch, or any message, has fewer steps"));
        }
        let planned = (step..end).map(|step| scope.epoch.rows(step)).sum::<Result<u64>>()?;
        let per_step = (planned / u64::from(meta.whole_steps)) as usize;
        match planned == u64::from(rows) {
            true => Ok(Self { step, end, rows: per_step, layout }),
            false => Err(bad(&format!("it has {rows} rows, its steps {planned}"))),
        }
    }

    /// Takes the rows of its steps out of the files of `segments`, as many steps at once as there is room
    /// for.
    pub async fn bring(
        &mut self,
        segments: &SharedSegments,
        position: &mut Position,
        scope: Scope<'_>,
        committed: &mut Committed,
    ) -> Result<(), Failure> {
        if segments.width() != self.layout.width {
            return Err(Failure::damaged(Error::corrupt(
                "rows in files are not as wide as those of the plan",
            )));
        }
        while self.step < self.end {
            // Nobody waits to tell: all steps have room there.
            let (sender, queue) = mpsc::sync_channel((self.end - self.step) as usize);
            let copier = Arc::new(RowCopier {
                queue: Mutex::new(queue),
                segments: segments.clone(),
                manifest: scope.epoch.manifest.clone(),
                layout: self.layout.clone(),
                pool: scope.buffer.pool().clone(),
            });
            let (mut after, mut copies, mut aside) = (position.clone(), Vec::new(), None);
            let mut if_full = IfFull::Wait;
            while self.step < self.end {
                let mut next = after.clone();
                let placed = next.pass_step(self.step, &scope, *committed, if_full).await?;
                let Some(placed) = placed else { break };
                // Both ends are here.
                sender.send(placed.copies.clone()).ok();
                copies.extend(placed.copies);
                (after, self.step, if_full) = (next, self.step + 1, IfFull::Return);
                let left = (self.end - self.step) as usize * self.rows * self.layout.width;
                if aside.is_none() && left >= ASIDE_BYTES {
                    let copier = copier.clone();
                    aside = Some(spawn_blocking(move || copier.work()));
                }
            }
            drop(sender);
            let here = copier.work();
            if let Some(aside) = aside {
                aside.await.map_err(|e| Error::corrupt(format!("copying rows failed: {e}")))??;
            }
            here?;
            commit(&copies, segments, scope.buffer)?;
            *position = after;
            *committed = position.committed(scope.segments).max(*committed);
        }
        Ok(())
    }

    /// The message is over. `Corrupt` if its rows did not come.
    pub fn end(self) -> Result<(), Failure> {
        match self.step == self.end {
            true => Ok(()),
            false => {
                Err(Failure::damaged(Error::corrupt("a message of whole steps ended before its rows came")))
            }
        }
    }
}

/// The rows were copied. Nothing of them counts before their files were found as they were.
fn commit(copies: &[RowCopy], segments: &SharedSegments, buffer: &ReorderBuffer) -> Result<(), Failure> {
    if !segments.is_sound() {
        let changed = "a segment's file was changed while rows were copied out of it";
        return Err(Failure::damaged(Error::corrupt(changed)));
    }
    for copy in copies {
        // Nothing of them lies together: they were split as they came.
        let commit = Commit { rows: copy.rows, digest: copy.digest(), ..Commit::default() };
        buffer.commit(&copy.builder, commit)?;
    }
    Ok(())
}

impl RowCopier {
    /// Copies rows until no more come.
    fn work(&self) -> Result<()> {
        loop {
            let next = self.queue.lock().recv();
            let Ok(copies) = next else { return Ok(()) };
            for copy in copies {
                let rows = self.segments.rows(self.runs(&copy)?)?;
                let mut splitter = RowSplitter::new(&rows, &self.layout, &self.pool);
                splitter.split(&copy.builder, copy.batch_row as usize, copy.rows as usize);
            }
        }
    }

    /// Which rows of the segments go to a batch, by the plan. `Retry` if a segment is missing.
    fn runs(&self, copy: &RowCopy) -> Result<RowRuns> {
        let (plan, end) = (&copy.builder.plan, copy.batch_row + copy.rows);
        let mut runs = RowRuns::new(self.layout.width, copy.rows as usize);
        let first = plan.pieces.partition_point(|piece| piece.first + piece.rows <= copy.batch_row);
        for piece in plan.pieces[first..].iter().take_while(|piece| piece.first < end) {
            let missing = || Error::retry(format!("a message lacks the file of segment {}", piece.segment));
            let source = self.segments.source(piece.segment).ok_or_else(missing)?;
            let Segment { first_row, skip, .. } = self.manifest.segment(piece.segment)?;
            let rows = piece.first.max(copy.batch_row)..(piece.first + piece.rows).min(end);
            let samples = &plan.samples[rows.start as usize..rows.end as usize];
            for run in samples.chunk_by(|one, next| one + 1 == *next) {
                let first = skip + run[0] - first_row;
                if !runs.push(source, first as usize, run.len()) {
                    return Err(Error::corrupt("rows of a message cannot be told by their numbers"));
                }
            }
        }
        Ok(runs)
    }
}

#[cfg(test)]
mod tests;
