//! One message on its way into batches.
//!
//! Plain columns are copied frame by frame straight to their place in the batch; odd ones are collected,
//! become arrays when the message is complete, and are cut up for the batches. A message for whose steps
//! there is no room yet is collected whole instead. Nothing counts before the body's hash was found right, so
//! a message that breaks off leaves no trace but bytes that the next attempt overwrites.

mod layout;

use super::builder::{BatchBuilder, Commit};
use super::reorder::ReorderBuffer;
use crate::stream::Head;
use arrow::array::{Array, ArrayRef};
use arrow::buffer::{Buffer, MutableBuffer};
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use forebay_dataset::pool::Pool;
use forebay_proto::digest::OrderDigest;
use forebay_proto::{Error, Result};
pub(crate) use layout::is_schema;
use layout::{ColumnLayout, MessageLayout};
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

/// Consecutive rows of a message that go to consecutive rows of a batch.
#[derive(Debug, Clone)]
pub(crate) struct RowCopy {
    pub builder: Arc<BatchBuilder>,
    pub message_row: u32,
    pub batch_row: u32,
    pub rows: u32,
}

/// A message while its body arrives.
pub(crate) struct MessageDecoder {
    header: Bytes,
    body_bytes: usize,
    layout: MessageLayout,
    /// Stretches of the body and where they go, ascending.
    targets: Vec<Target>,
    /// The first target that is not full yet.
    next: usize,
    /// Bytes of the body so far.
    at: usize,
    scratch: Option<MutableBuffer>,
    hash: Xxh3,
    held: bool,
}

#[derive(Debug)]
struct Target {
    start: usize,
    bytes: usize,
    to: Destination,
}

#[derive(Debug)]
enum Destination {
    /// A column of a batch, from a byte on.
    Batch { builder: Arc<BatchBuilder>, column: usize, at: usize },
    /// The same place in the scratch buffer.
    Scratch,
}

/// A message whose body is complete and right.
#[derive(Debug)]
pub(crate) struct DecodedMessage {
    layout: MessageLayout,
    odd: Vec<(usize, ArrayRef)>,
    /// The whole body, if its plain columns are not in their places yet.
    held: Option<Buffer>,
}

impl RowCopy {
    /// The digest of its samples according to the plan.
    pub fn digest(&self) -> OrderDigest {
        self.builder.plan.digest(self.batch_row..self.batch_row + self.rows)
    }

    /// Adds `next` if it continues these rows on both sides.
    pub fn extend(&mut self, next: &RowCopy) -> bool {
        let continues = Arc::ptr_eq(&self.builder, &next.builder)
            && self.message_row + self.rows == next.message_row
            && self.batch_row + self.rows == next.batch_row;
        if continues {
            self.rows += next.rows;
        }
        continues
    }
}

impl MessageDecoder {
    /// Reads a message's header; `Corrupt` if it does not fit `schema`.
    pub fn new(head: &Head, schema: &SchemaRef) -> Result<Self> {
        let layout = layout::read(&head.header, head.body_bytes, schema)?;
        let mut hash = Xxh3::new();
        hash.update(&head.header);
        Ok(Self {
            header: head.header.clone(),
            body_bytes: head.body_bytes,
            layout,
            targets: Vec::new(),
            next: 0,
            at: 0,
            scratch: None,
            hash,
            held: false,
        })
    }

    /// Rows of the message.
    pub fn rows(&self) -> u32 {
        self.layout.rows
    }

    /// Sends plain columns to the batches of `copies`.
    pub fn scatter(&mut self, copies: &[RowCopy], pool: &Pool) {
        for (column, place) in self.layout.columns.iter().enumerate() {
            let (start, width) = match place {
                ColumnLayout::Plain { start, width } => (*start, *width),
                ColumnLayout::Odd(range) => {
                    self.targets.push(Target {
                        start: range.start,
                        bytes: range.len(),
                        to: Destination::Scratch,
                    });
                    continue;
                }
            };
            for copy in copies {
                copy.builder.prepare(column, width, pool);
                self.targets.push(Target {
                    start: start + copy.message_row as usize * width,
                    bytes: copy.rows as usize * width,
                    to: Destination::Batch {
                        builder: copy.builder.clone(),
                        column,
                        at: copy.batch_row as usize * width,
                    },
                });
            }
        }
        self.targets.retain(|t| t.bytes > 0);
        self.targets.sort_by_key(|t| t.start);
        if self.targets.iter().any(|t| matches!(t.to, Destination::Scratch)) {
            self.scratch = Some(pool.take(self.body_bytes));
        }
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
        let (start, end) = (self.at, self.at + bytes.len());
        self.at = end;
        for target in &self.targets[self.next..] {
            if target.start >= end {
                break;
            }
            let (from, to) = (target.start.max(start), (target.start + target.bytes).min(end));
            if from < to {
                let piece = &bytes[from - start..to - start];
                match &target.to {
                    Destination::Batch { builder, column, at } => {
                        builder.write(*column, at + from - target.start, piece);
                    }
                    Destination::Scratch => {
                        if let Some(place) =
                            self.scratch.as_mut().and_then(|s| s.as_slice_mut().get_mut(from..to))
                        {
                            place.copy_from_slice(piece);
                        }
                    }
                }
            }
        }
        // Stretches may overlap in a header that is odd but not wrong, so only a full prefix is passed for
        // good.
        let full = |t: &Target| t.start + t.bytes <= end;
        self.next += self.targets[self.next..].iter().take_while(|t| full(t)).count();
    }

    /// The body is complete. `Corrupt` if it or the header is not the one that was sent.
    pub fn complete(self, hash: u64, schema: &SchemaRef, pool: &Pool) -> Result<DecodedMessage> {
        if self.at != self.body_bytes || self.hash.digest() != hash {
            return Err(Error::corrupt("a message does not match its hash: it was damaged on the way"));
        }
        let is_odd = |l: &ColumnLayout| matches!(l, ColumnLayout::Odd(_));
        let columns = self.layout.columns.iter().enumerate();
        let odd: Vec<usize> = columns.filter(|(_, l)| is_odd(l)).map(|(i, _)| i).collect();
        let body = self.scratch.map(|s| pool.share(s, self.body_bytes));
        let arrays = match odd.is_empty() {
            true => Vec::new(),
            false => {
                let empty = Buffer::from(&[][..]);
                layout::odd_arrays(&self.header, body.as_ref().unwrap_or(&empty), schema, &odd)?
            }
        };
        let held = body.filter(|_| self.held);
        Ok(DecodedMessage { layout: self.layout, odd: odd.into_iter().zip(arrays).collect(), held })
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
        let commit = Commit { rows: copy.rows, digest: copy.digest(), odd: odd.collect() };
        buffer.commit(&copy.builder, commit)
    }
}
