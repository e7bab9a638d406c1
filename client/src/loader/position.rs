//! A stream's place in the plan: which rows it must bring next, checked against what its messages say they
//! bring.

use super::builder::{BatchBuilder, RowCopy};
use super::reorder::{Opened, ReorderBuffer};
use super::sampler::Epoch;
use forebay_proto::digest::OrderDigest;
use forebay_proto::plan::steps::Run;
use forebay_proto::{Error, Result, SegmentSet};
use std::fmt;
use std::sync::Arc;

/// How far a stream's rows have been committed: all before this step, and those that lie before this row of
/// its batch. So it holds for any part of the stream's segments too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Committed {
    pub step: u64,
    pub row: u32,
}

/// Rows that a message says it brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StepRun {
    pub step: u64,
    pub segment: u32,
    pub rows: u32,
}

/// All rows of a step, which a message says it brings.
#[derive(Debug, Clone, Copy)]
struct AllRows(u64);

/// A stream's place in the plan: the row that it must bring next.
#[derive(Debug, Clone)]
pub(crate) struct Position {
    step: u64,
    /// One past the last row of the batch that was passed.
    row: u32,
    piece: usize,
    /// Rows passed of that piece.
    taken: u32,
    /// The step's batch, once it was needed.
    builder: Option<Arc<BatchBuilder>>,
}

/// Whether to wait for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IfFull {
    Wait,
    Return,
}

/// What a position moves in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scope<'a> {
    pub epoch: &'a Epoch,
    pub buffer: &'a ReorderBuffer,
    pub segments: &'a SegmentSet,
}

/// The rows of a message, or of one of its runs.
#[derive(Debug, Default)]
pub(crate) struct Advance {
    /// Rows that their batches do not have yet.
    pub copies: Vec<RowCopy>,
    /// The digest of all its rows according to the plan, committed before or not.
    pub digest: OrderDigest,
}

impl Committed {
    /// The first rows of a step's batch that are committed, as far as this says.
    pub fn rows_of(self, step: u64) -> u32 {
        if step == self.step { self.row } else { 0 }
    }
}

impl Position {
    /// At the beginning of a step.
    pub fn at(step: u64) -> Self {
        Self { step, row: 0, piece: 0, taken: 0, builder: None }
    }

    /// Moves past a run that begins at `message_row` of a message, and says where its rows go; those that are
    /// committed already are left out. `None` if there is no room and none was to be waited for; the position
    /// is of no use then. `Corrupt` if the plan says otherwise.
    pub async fn pass(
        &mut self,
        run: StepRun,
        message_row: u32,
        scope: &Scope<'_>,
        committed: Committed,
        if_full: IfFull,
    ) -> Result<Option<Advance>> {
        let Some(builder) = self.go_to(run.step, run, scope, if_full).await? else { return Ok(None) };
        let mut advance = Advance::default();
        let mut left = run.rows;
        while left > 0 {
            let piece = match self.next_piece(scope.segments) {
                Some(piece) if piece.segment == run.segment => piece,
                Some(other) => {
                    return Err(self.unexpected(run, scope, format_args!("segment {}", other.segment)));
                }
                None => return Err(self.unexpected(run, scope, "no more rows of this step")),
            };
            let rows = left.min(piece.rows - self.taken);
            self.take(&mut advance, &builder, (piece, rows), message_row + run.rows - left, committed);
            left -= rows;
        }
        Ok(Some(advance))
    }

    /// Moves past all that is left of a step, whose rows are numbered as in its batch; else as
    /// [`Self::pass`].
    pub async fn pass_step(
        &mut self,
        step: u64,
        scope: &Scope<'_>,
        committed: Committed,
        if_full: IfFull,
    ) -> Result<Option<Advance>> {
        let Some(builder) = self.go_to(step, AllRows(step), scope, if_full).await? else { return Ok(None) };
        let mut advance = Advance::default();
        while let Some(piece) = self.next_piece(scope.segments) {
            let (rows, row) = (piece.rows - self.taken, piece.first + self.taken);
            self.take(&mut advance, &builder, (piece, rows), row, committed);
        }
        Ok(Some(advance))
    }

    /// Moves to a step of which a message brings `what`, and returns its batch; as [`Self::pass`].
    async fn go_to(
        &mut self,
        step: u64,
        what: impl fmt::Display + Copy,
        scope: &Scope<'_>,
        if_full: IfFull,
    ) -> Result<Option<Arc<BatchBuilder>>> {
        if step >= scope.epoch.count {
            return Err(self.unexpected(what, scope, "the epoch is over"));
        }
        while self.step < step {
            if !self.load(scope, if_full).await? {
                return Ok(None);
            }
            if let Some(piece) = self.next_piece(scope.segments) {
                let want = format_args!("segment {} of step {}", piece.segment, self.step);
                return Err(self.unexpected(what, scope, want));
            }
            *self = Self::at(self.step + 1);
        }
        if self.step > step {
            return Err(self.unexpected(what, scope, format_args!("step {} or later", self.step)));
        }
        if !self.load(scope, if_full).await? {
            return Ok(None);
        }
        match self.builder.clone() {
            Some(builder) => Ok(Some(builder)),
            None => Err(self.unexpected(what, scope, "a later step")),
        }
    }

    /// Moves past the next rows of a piece, which lie from `message_row` of the message on.
    fn take(
        &mut self,
        advance: &mut Advance,
        builder: &Arc<BatchBuilder>,
        (piece, rows): (Run, u32),
        message_row: u32,
        committed: Committed,
    ) {
        let (builder, batch_row) = (builder.clone(), piece.first + self.taken);
        let known = committed.rows_of(self.step).saturating_sub(batch_row);
        self.row = batch_row + rows;
        self.taken += rows;
        advance.push(RowCopy { builder, message_row, batch_row, rows }, known);
    }

    /// Checks that nothing is missing up to the epoch's end.
    pub async fn finish(&mut self, scope: &Scope<'_>) -> Result<()> {
        while self.step < scope.epoch.count {
            self.load(scope, IfFull::Wait).await?;
            if let Some(piece) = self.next_piece(scope.segments) {
                return Err(Error::corrupt(format!(
                    "the stream of epoch {} ended before segment {} of step {}",
                    scope.epoch.number(),
                    piece.segment,
                    self.step
                )));
            }
            *self = Self::at(self.step + 1);
        }
        Ok(())
    }

    /// The rows that are committed once all rows before this position are.
    pub fn committed(&mut self, segments: &SegmentSet) -> Committed {
        let over = self.builder.is_some() && self.next_piece(segments).is_none();
        match over {
            true => Committed { step: self.step + 1, row: 0 },
            false => Committed { step: self.step, row: self.row },
        }
    }

    /// Finds the step's batch, unless it was handed out; false if there is no room.
    async fn load(&mut self, scope: &Scope<'_>, if_full: IfFull) -> Result<bool> {
        if self.builder.is_none() {
            self.builder = match if_full {
                IfFull::Wait => scope.buffer.open(scope.epoch, self.step).await?,
                IfFull::Return => match scope.buffer.try_open(scope.epoch, self.step)? {
                    Opened::Open(builder) => Some(builder),
                    Opened::Past => None,
                    Opened::Full => return Ok(false),
                },
            };
        }
        Ok(true)
    }

    /// The piece that the stream's next row belongs to. A batch that was handed out has none.
    fn next_piece(&mut self, segments: &SegmentSet) -> Option<Run> {
        let pieces = &self.builder.as_ref()?.plan.pieces;
        loop {
            let piece = *pieces.get(self.piece)?;
            if segments.contains(piece.segment) && self.taken < piece.rows {
                return Some(piece);
            }
            self.piece += 1;
            self.taken = 0;
        }
    }

    fn unexpected(&self, what: impl fmt::Display, scope: &Scope<'_>, want: impl fmt::Display) -> Error {
        let epoch = scope.epoch.number();
        Error::corrupt(format!("a message of epoch {epoch} brings {what}, the plan has {want} next"))
    }
}

impl fmt::Display for StepRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows of segment {} for step {}", self.rows, self.segment, self.step)
    }
}

impl fmt::Display for AllRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "all rows of step {}", self.0)
    }
}

impl Advance {
    /// Adds rows, the first `known` rows of which were committed before.
    fn push(&mut self, copy: RowCopy, known: u32) {
        self.digest.merge(copy.digest());
        let known = known.min(copy.rows);
        if known == copy.rows {
            return;
        }
        self.add(RowCopy {
            message_row: copy.message_row + known,
            batch_row: copy.batch_row + known,
            rows: copy.rows - known,
            ..copy
        });
    }

    fn add(&mut self, copy: RowCopy) {
        if !self.copies.last_mut().is_some_and(|last| last.extend(&copy)) {
            self.copies.push(copy);
        }
    }

    /// Adds what follows.
    pub fn append(&mut self, next: Advance) {
        self.digest.merge(next.digest);
        next.copies.into_iter().for_each(|copy| self.add(copy));
    }
}
