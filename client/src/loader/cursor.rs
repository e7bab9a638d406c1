//! A stream's place in the plan: which rows it must bring next, checked against what its messages say they bring.

use super::landing::Part;
use super::merge::{Assembly, Opened, Window};
use super::sampler::{Epoch, Piece};
use forebay_proto::{Error, Result};
use std::sync::Arc;

/// How far a stream's rows have been committed: all before this step, and those that lie before this row of its batch.
/// So it holds for any part of the stream's segments too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Mark {
    pub step: u64,
    pub row: u32,
}

/// A set of segments, as a ticket's bits; empty = all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Segments(pub Vec<u8>);

/// Rows that a message says it brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub step: u64,
    pub segment: u32,
    pub rows: u32,
}

/// A stream's place in the plan.
#[derive(Debug, Clone)]
pub(crate) struct Cursor {
    step: u64,
    /// One past the last row of the batch that was passed.
    row: u32,
    piece: usize,
    /// Rows passed of that piece.
    taken: u32,
    /// The step's batch, once it was needed.
    assembly: Option<Arc<Assembly>>,
}

/// Whether to wait for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    Wait,
    Now,
}

impl Segments {
    /// Of `count` segments, those listed.
    pub fn of(list: &[u32], count: usize) -> Self {
        if list.len() == count {
            return Self::default();
        }
        let mut bits = vec![0; count.div_ceil(8)];
        for &s in list {
            bits[s as usize / 8] |= 1 << (s % 8);
        }
        Self(bits)
    }

    /// Whether a segment is among them.
    pub fn has(&self, segment: u32) -> bool {
        self.0.is_empty() || self.0.get(segment as usize / 8).is_some_and(|b| b & (1 << (segment % 8)) != 0)
    }
}

impl Cursor {
    /// At the beginning of a step.
    pub fn at(step: u64) -> Self {
        Self { step, row: 0, piece: 0, taken: 0, assembly: None }
    }

    /// Passes a run that begins at `message_row` and adds its rows' places to `parts`, in the message's order,
    /// leaving out those before `done`. False if there is no room and none was to be waited for; the cursor and
    /// `parts` are of no use then. `Corrupt` if the plan says otherwise.
    pub async fn pass(
        &mut self,
        run: Run,
        message_row: u32,
        at: &Place<'_>,
        room: Room,
    ) -> Result<Option<Passed>> {
        if run.step >= at.epoch.count {
            return Err(self.unexpected(run, at, "the epoch is over"));
        }
        while self.step < run.step {
            if self.load(at, room).await?.is_none() {
                return Ok(None);
            }
            if let Some(piece) = self.next_piece(at.segments) {
                return Err(self.unexpected(
                    run,
                    at,
                    &format!("segment {} of step {}", piece.segment, self.step),
                ));
            }
            *self = Self::at(self.step + 1);
        }
        if self.step > run.step {
            return Err(self.unexpected(run, at, &format!("step {} or later", self.step)));
        }
        let assembly = match self.load(at, room).await? {
            None => return Ok(None),
            Some(Some(assembly)) => assembly,
            Some(None) => return Err(self.unexpected(run, at, "a later step")),
        };
        let mut passed = Passed::default();
        let mut left = run.rows;
        while left > 0 {
            let piece = match self.next_piece(at.segments) {
                Some(piece) if piece.segment == run.segment => piece,
                Some(piece) => return Err(self.unexpected(run, at, &format!("segment {}", piece.segment))),
                None => return Err(self.unexpected(run, at, "no more rows of this step")),
            };
            let rows = left.min(piece.rows - self.taken);
            let part = Part {
                assembly: assembly.clone(),
                message_row: message_row + run.rows - left,
                batch_row: piece.first + self.taken,
                rows,
            };
            let known =
                if self.step == at.done.step { at.done.row.saturating_sub(part.batch_row) } else { 0 };
            self.row = part.batch_row + rows;
            self.taken += rows;
            passed.push(part, known);
            left -= rows;
        }
        Ok(Some(passed))
    }

    /// Checks that nothing is missing up to the epoch's end.
    pub async fn finish(&mut self, at: &Place<'_>) -> Result<()> {
        while self.step < at.epoch.count {
            self.load(at, Room::Wait).await?;
            if let Some(piece) = self.next_piece(at.segments) {
                return Err(Error::corrupt(format!(
                    "the stream of epoch {} ended before segment {} of step {}",
                    at.epoch.number(),
                    piece.segment,
                    self.step
                )));
            }
            *self = Self::at(self.step + 1);
        }
        Ok(())
    }

    /// The mark that says that all before the cursor is committed.
    pub fn mark(&mut self, segments: &Segments) -> Mark {
        let over = self.assembly.is_some() && self.next_piece(segments).is_none();
        match over {
            true => Mark { step: self.step + 1, row: 0 },
            false => Mark { step: self.step, row: self.row },
        }
    }

    /// The step's batch, `Some(None)` if it was handed out; `None` if there is no room.
    async fn load(&mut self, at: &Place<'_>, room: Room) -> Result<Option<Option<Arc<Assembly>>>> {
        if let Some(assembly) = &self.assembly {
            return Ok(Some(Some(assembly.clone())));
        }
        self.assembly = match room {
            Room::Wait => at.window.open(at.epoch, self.step).await?,
            Room::Now => match at.window.try_open(at.epoch, self.step)? {
                Opened::Open(assembly) => Some(assembly),
                Opened::Past => None,
                Opened::Full => return Ok(None),
            },
        };
        Ok(Some(self.assembly.clone()))
    }

    /// The piece that the stream's next row belongs to. A batch that was handed out has none.
    fn next_piece(&mut self, segments: &Segments) -> Option<Piece> {
        let pieces = &self.assembly.as_ref()?.plan.pieces;
        loop {
            let piece = *pieces.get(self.piece)?;
            if segments.has(piece.segment) && self.taken < piece.rows {
                return Some(piece);
            }
            self.piece += 1;
            self.taken = 0;
        }
    }

    fn unexpected(&self, run: Run, at: &Place<'_>, want: &str) -> Error {
        Error::corrupt(format!(
            "a message of epoch {} brings {} rows of segment {} for step {}, the plan has {want} next",
            at.epoch.number(),
            run.rows,
            run.segment,
            run.step
        ))
    }
}

/// What a cursor moves in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub epoch: &'a Epoch,
    pub window: &'a Window,
    pub segments: &'a Segments,
    pub done: Mark,
}

/// The rows of a message, or of one of its runs.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    /// Rows that are new.
    pub parts: Vec<Part>,
    /// The digest of all its rows according to the plan, committed before or not.
    pub digest: forebay_proto::digest::OrderDigest,
}

impl Passed {
    /// Adds a part, the first `known` rows of which were committed before.
    fn push(&mut self, part: Part, known: u32) {
        self.digest.merge(part.digest());
        let known = known.min(part.rows);
        if known == part.rows {
            return;
        }
        self.add(Part {
            message_row: part.message_row + known,
            batch_row: part.batch_row + known,
            rows: part.rows - known,
            ..part
        });
    }

    fn add(&mut self, part: Part) {
        if !self.parts.last_mut().is_some_and(|last| last.extend(&part)) {
            self.parts.push(part);
        }
    }

    /// Adds what follows.
    pub fn append(&mut self, next: Passed) {
        self.digest.merge(next.digest);
        next.parts.into_iter().for_each(|p| self.add(p));
    }
}
