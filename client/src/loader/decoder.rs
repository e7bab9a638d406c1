//! One message on its way into batches.
//!
//! Plain columns are copied frame by frame straight to their place in the batch, and so are strings and
//! binaries that continue what the batch has. Packed rows that lie in files are split into their columns on
//! that way. Odd columns are collected, become arrays when the message is complete, and are cut up for the
//! batches. A message for whose steps there is no room yet is collected whole instead. Nothing counts before
//! the body's hash was found right, so a message that breaks off leaves no trace but bytes that the next
//! attempt overwrites.

mod column_receiver;
mod layout;

use super::builder::{BatchBuilder, Commit, RowCopy};
use super::reorder::ReorderBuffer;
use super::row_splitter::RowSplitter;
use crate::stream::{Head, SharedRows};
use arrow::array::{Array, ArrayRef};
use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use column_receiver::ColumnReceiver;
use forebay_dataset::pool::{Pool, PoolBuffer};
use forebay_dataset::shared::RowsDone;
use forebay_dataset::{PackedSchema, RowLayout};
use forebay_proto::hash::Hash64;
use forebay_proto::{Error, Result};
pub(crate) use layout::is_schema;
use layout::{ColumnLayout, MessageLayout};
use std::ops::Range;
use std::sync::Arc;

/// A message while its body arrives.
pub(crate) struct MessageDecoder {
    header: Bytes,
    body_bytes: usize,
    layout: MessageLayout,
    /// Stretches of the body and where they go, ascending.
    targets: Vec<Target>,
    /// The first target that is not full yet.
    next: usize,
    /// Those of columns whose values go straight into batches, in the order of their offsets.
    receivers: Vec<ColumnReceiver>,
    /// How many of them have their offsets.
    aimed: usize,
    /// Where the batches' memory comes from.
    pool: Option<Pool>,
    /// Bytes of the body so far.
    at: usize,
    scratch: Option<PoolBuffer>,
    hash: Hash64,
    held: bool,
    /// Parts of the body that were copied out of files.
    rows: Vec<SharedRows>,
    /// The packed rows were split into their columns.
    is_split: bool,
}

#[derive(Debug)]
struct Target {
    start: usize,
    bytes: usize,
    to: Destination,
}

#[derive(Debug)]
enum Destination {
    /// A column of a batch, from a byte on, and the bytes of a row.
    Batch { builder: Arc<BatchBuilder>, column: usize, at: usize, width: usize },
    /// A column's values in a batch, from a byte on.
    Values { builder: Arc<BatchBuilder>, column: usize, at: usize },
    /// The offsets of one of the receivers.
    Offsets { receiver: usize },
    /// The same place in the scratch buffer.
    Scratch,
}

/// A message whose body is complete and right.
#[derive(Debug)]
pub(crate) struct DecodedMessage {
    layout: MessageLayout,
    odd: Vec<(usize, ArrayRef)>,
    receivers: Vec<ColumnReceiver>,
    /// The whole body, if its plain columns are not in their places yet.
    held: Option<Buffer>,
    /// Its packed rows were split into their columns.
    is_split: bool,
}

impl MessageDecoder {
    /// Reads a message's header; `Corrupt` if it does not fit `schema`.
    pub fn new(head: &Head, schema: &SchemaRef) -> Result<Self> {
        let layout = layout::read(&head.header, head.body_bytes, schema)?;
        let mut hash = Hash64::default();
        hash.update(&head.header);
        Ok(Self {
            header: head.header.clone(),
            body_bytes: head.body_bytes,
            layout,
            targets: Vec::new(),
            next: 0,
            receivers: Vec::new(),
            aimed: 0,
            pool: None,
            at: 0,
            scratch: None,
            hash,
            held: false,
            rows: Vec::new(),
            is_split: false,
        })
    }

    /// How many rows the header says that the message has.
    pub fn rows(&self) -> u32 {
        self.layout.rows
    }

    /// Sends columns to the batches of `copies` as far as their places are known.
    pub fn scatter(&mut self, copies: &[RowCopy], pool: &Pool) {
        let scratch =
            |all: &Range<usize>| Target { start: all.start, bytes: all.len(), to: Destination::Scratch };
        for (column, place) in self.layout.columns.iter().enumerate() {
            let (start, width) = match place {
                ColumnLayout::Plain { start, width } => (*start, *width),
                ColumnLayout::Variable { all, .. } => {
                    match ColumnReceiver::claim(column, place, copies) {
                        Some(receiver) => self.receivers.push(receiver),
                        None => self.targets.push(scratch(all)),
                    }
                    continue;
                }
                ColumnLayout::Odd(all) => {
                    self.targets.push(scratch(all));
                    continue;
                }
            };
            for copy in copies {
                self.targets.push(Target {
                    start: start + copy.message_row as usize * width,
                    bytes: copy.rows as usize * width,
                    to: Destination::Batch {
                        builder: copy.builder.clone(),
                        column,
                        at: copy.batch_row as usize * width,
                        width,
                    },
                });
            }
        }
        self.receivers.sort_by_key(|receiver| receiver.offsets.end);
        self.targets.extend(self.receivers.iter().enumerate().map(|(number, receiver)| Target {
            start: receiver.offsets.start,
            bytes: receiver.offsets.len(),
            to: Destination::Offsets { receiver: number },
        }));
        self.targets.retain(|t| t.bytes > 0);
        self.targets.sort_by_key(|t| t.start);
        if self.targets.iter().any(|t| matches!(t.to, Destination::Scratch)) {
            self.scratch = Some(pool.take(self.body_bytes));
        }
        self.pool = Some(pool.clone());
    }

    /// Collects the whole body: its batches cannot be opened yet.
    pub fn hold(&mut self, pool: &Pool) {
        self.held = true;
        self.targets = vec![Target { start: 0, bytes: self.body_bytes, to: Destination::Scratch }];
        self.scratch = Some(pool.take(self.body_bytes));
    }

    /// Takes the next bytes of the body.
    pub fn push(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.push_shared(bytes);
    }

    /// Takes the next bytes of the body, which lie in shared memory: the message's hash leaves them out.
    pub fn push_shared(&mut self, mut bytes: &[u8]) {
        // Offsets decide where the bytes behind them go.
        while let Some(end) = self.receivers.get(self.aimed).map(|receiver| receiver.offsets.end) {
            let (now, rest) = bytes.split_at(bytes.len().min(end.saturating_sub(self.at)));
            self.place_bytes(now);
            bytes = rest;
            if self.at < end {
                return;
            }
            self.aim();
        }
        self.place_bytes(bytes);
    }

    /// Takes the next part of the body, whose rows lie in files.
    pub fn push_rows(&mut self, rows: SharedRows, schema: &PackedSchema) {
        match &schema.layout {
            Some(layout) if self.are_packed(&rows, layout) => self.split_rows(&rows, layout),
            _ => self.copy_rows(&rows),
        }
        self.rows.push(rows);
    }

    fn copy_rows(&mut self, rows: &SharedRows) {
        let (mut done, mut at) = (RowsDone::default(), 0);
        self.place(rows.bytes(), |piece, to| {
            if piece.start < at {
                (done, at) = (RowsDone::default(), 0);
            }
            rows.skip(&mut done, piece.start - at);
            rows.copy(&mut done, to);
            at = piece.end;
        });
    }

    /// Whether the next part of the body, `rows`, is all packed rows of the message, and goes to batches
    /// alone.
    fn are_packed(&self, rows: &SharedRows, layout: &RowLayout) -> bool {
        let packed = ColumnLayout::Plain { start: self.at, width: layout.width };
        let is_column = self.layout.columns.first() == Some(&packed)
            && rows.bytes() == self.layout.rows as usize * layout.width;
        let end = self.at + rows.bytes();
        let mut targets = self.targets[self.next..].iter().take_while(|target| target.start < end);
        is_column && targets.all(|target| matches!(target.to, Destination::Batch { column: 0, .. }))
    }

    /// Has packed rows copied and split, a few at a time.
    fn split_rows(&mut self, rows: &SharedRows, layout: &RowLayout) {
        let Some(pool) = &self.pool else { return };
        let (mut splitter, mut at) = (RowSplitter::new(rows, layout, pool), self.at);
        let end = at + rows.bytes();
        while let Some(target) = self.targets.get(self.next).filter(|target| target.start < end) {
            self.next += 1;
            let Destination::Batch { builder, at: place, .. } = &target.to else { continue };
            splitter.skip(target.start - at);
            at = target.start + target.bytes;
            splitter.split(builder, place / layout.width, target.bytes / layout.width);
        }
        (self.at, self.is_split) = (end, true);
    }

    /// The offsets of the next receiver have come.
    fn aim(&mut self) {
        let (Some(receiver), Some(pool)) = (self.receivers.get_mut(self.aimed), &self.pool) else { return };
        self.aimed += 1;
        let column = receiver.column;
        for (copy, values) in receiver.aim().filter(|(_, values)| !values.is_empty()) {
            let builder = copy.builder.clone();
            let at = builder.reserve(column, values.len(), copy.rows as usize, pool);
            let to = Destination::Values { builder, column, at };
            let place = self.targets.partition_point(|target| target.start <= values.start);
            self.targets.insert(place, Target { start: values.start, bytes: values.len(), to });
        }
    }

    /// Has the next bytes of the body copied to where they go: `copy` writes a stretch of them to its place.
    fn place(&mut self, bytes: usize, mut copy: impl FnMut(Range<usize>, &mut [u8])) {
        let (start, end) = (self.at, self.at + bytes);
        self.at = end;
        for target in &self.targets[self.next..] {
            if target.start >= end {
                break;
            }
            let (from, to) = (target.start.max(start), (target.start + target.bytes).min(end));
            if from >= to {
                continue;
            }
            let (bytes, within) = (to - from, from - target.start);
            let copy = |place: &mut [u8]| copy(from - start..to - start, place);
            match &target.to {
                Destination::Batch { builder, column, at, width } => {
                    if let Some(pool) = &self.pool {
                        builder.prepare(*column, *width, pool);
                    }
                    builder.fill(*column, at + within, bytes, copy)
                }
                Destination::Values { builder, column, at } => {
                    builder.land(*column, at + within, bytes, copy)
                }
                Destination::Offsets { receiver } => {
                    self.receivers[*receiver].place(within, bytes).map(copy).is_some()
                }
                Destination::Scratch => {
                    let scratch = self.scratch.as_mut().and_then(|s| s.as_slice_mut().get_mut(from..to));
                    scratch.map(copy).is_some()
                }
            };
        }
        // Stretches may overlap in a header that is odd but not wrong, so only a full prefix is passed for
        // good.
        let full = |t: &Target| t.start + t.bytes <= end;
        self.next += self.targets[self.next..].iter().take_while(|t| full(t)).count();
    }

    /// Copies bytes to where they go.
    fn place_bytes(&mut self, bytes: &[u8]) {
        self.place(bytes.len(), |piece, to| to.copy_from_slice(&bytes[piece]));
    }

    /// The body is complete. `Corrupt` if it or the header is not the one that was sent.
    pub fn complete(self, hash: u64, schema: &SchemaRef, pool: &Pool) -> Result<DecodedMessage> {
        if self.at != self.body_bytes || self.hash.digest() != hash {
            return Err(Error::corrupt("a message does not match its hash: it was damaged on the way"));
        }
        if !self.rows.iter().all(SharedRows::is_sound) {
            return Err(Error::corrupt("a segment's file was changed while rows were copied out of it"));
        }
        if !self.receivers.iter().all(ColumnReceiver::is_sound) {
            return Err(Error::corrupt("the offsets of a column in a message make no sense"));
        }
        let is_placed = |column: usize, layout: &ColumnLayout| match layout {
            ColumnLayout::Plain { .. } => true,
            _ => self.receivers.iter().any(|receiver| receiver.column == column),
        };
        let columns = self.layout.columns.iter().enumerate();
        let odd: Vec<usize> = columns.filter(|(i, l)| !is_placed(*i, l)).map(|(i, _)| i).collect();
        let body = self.scratch.map(|s| pool.share(s, self.body_bytes));
        let arrays = match odd.is_empty() {
            true => Vec::new(),
            false => {
                let empty = Buffer::from(&[][..]);
                layout::odd_arrays(&self.header, body.as_ref().unwrap_or(&empty), schema, &odd)?
            }
        };
        let held = body.filter(|_| self.held);
        let (odd, receivers) = (odd.into_iter().zip(arrays).collect(), self.receivers);
        Ok(DecodedMessage { layout: self.layout, odd, receivers, held, is_split: self.is_split })
    }
}

impl DecodedMessage {
    /// Commits rows of the message to their batch.
    pub fn commit(&self, copy: &RowCopy, buffer: &ReorderBuffer) -> Result<()> {
        if let Some(body) = &self.held {
            for (column, place) in self.layout.columns.iter().enumerate() {
                let ColumnLayout::Plain { start, width } = place else { continue };
                copy.builder.prepare(column, *width, buffer.pool());
                let from = start + copy.message_row as usize * width;
                let rows = &body[from..from + copy.rows as usize * width];
                copy.builder.write(column, copy.batch_row as usize * width, rows);
            }
        }
        let odd = self.odd.iter().map(|(column, array)| {
            (*column, copy.batch_row, array.slice(copy.message_row as usize, copy.rows as usize))
        });
        let landed = self.receivers.iter().map(|receiver| (receiver.column, receiver.lengths(copy)));
        let (odd, landed) = (odd.collect(), landed.collect());
        let rows = copy.batch_row..copy.batch_row + copy.rows;
        let together = if self.is_split { 0..0 } else { rows };
        let commit = Commit { rows: copy.rows, digest: copy.digest(), odd, landed, together };
        buffer.commit(&copy.builder, commit)
    }
}

#[cfg(test)]
mod tests;
