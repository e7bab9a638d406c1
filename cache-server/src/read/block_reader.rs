//! Reads a part of one raw block: from the disk cache, or as it comes while it is filled, once for all.
//!
//! A fill asks other nodes first, as that of a segment does. From the object store it fetches all of the
//! block, from the first byte that is wanted on, then what lies before. One that was begun ahead is given up
//! when its reader goes away. Bytes of files that are in memory are handed over at once: a few as a copy that
//! is read from the file, more as a copy or on loan of its map. Others are brought there on a blocking thread
//! first, so no async thread meets a cold page. A disk that hangs is given up: what it holds is filled again.

use super::block::{Block, COLUMNS, bytes_of, columns};
use super::block_fill::fill;
use super::cache::Cache;
use super::fill::{FillOutcome, Underway};
use super::loans::Loans;
use super::single_flight::{InFlight, Turnout};
use super::tail::{Follow, Tail};
use crate::disk::Found;
use crate::disk::policy::Role;
use crate::events::Event;
use crate::runtime::{blocking, given_up};
use arrow::buffer::Buffer;
use bytes::Bytes;
use forebay_dataset::pool::Pool;
use forebay_dataset::ready::drop_aside;
use forebay_dataset::{ReadySegment, Urgency};
use forebay_proto::object::{BlockPart, ObjectVersion};
use forebay_proto::{Error, Result};
use std::ops::Range;
use std::sync::Arc;
use tokio::task::JoinError;
use tokio_util::task::AbortOnDropHandle;

/// Bytes that are copied at once.
pub const PIECE_BYTES: u64 = 256 << 10;

/// Bytes that are lent at once.
const LENT_BYTES: u64 = 1 << 20;

/// Bytes of a file that are brought into memory at once.
const BROUGHT_BYTES: u64 = 4 << 20;

/// How often a block is looked for: it may be evicted, or found damaged, after each time.
const LOOKS: u32 = 8;

/// Reads a part of a block.
pub struct BlockReader {
    cache: Arc<Cache>,
    pub block: Block,
    /// The bytes of the block that are still to be read.
    rest: Range<u64>,
    supply: Supply,
    urgency: Urgency,
    /// In another role than this node's.
    role: Option<Role>,
    looks: u32,
    /// Whether it began a fill itself.
    has_led: bool,
}

/// Where bytes come from.
enum Supply {
    /// Not known.
    Nowhere,
    /// Being looked for on the disk.
    Sought(AbortOnDropHandle<Result<Found>>),
    /// A file, or memory.
    Ready(ReadyBlock),
    /// A fill under way, and the hold on it.
    Fill(InFlight<FillOutcome, Underway>, Option<Follow>),
}

/// A block that can be read, and its bytes.
struct ReadyBlock {
    segment: ReadySegment,
    bytes: Buffer,
    /// Whether its pages may be touched: else only copies that were read from the file.
    may_touch: bool,
}

impl BlockReader {
    /// Finds the block or begins to fill it, ahead of any demand. Once begun it goes on by itself, until the
    /// reader is dropped.
    pub fn begin(cache: &Arc<Cache>, block: Block, bytes: Range<u64>) -> Result<Self> {
        let mut reader = Self::new(cache, block, bytes, Urgency::prefetch());
        reader.seek()?;
        Ok(reader)
    }

    /// The same of a part of an object.
    pub fn of(cache: &Arc<Cache>, object: &Arc<ObjectVersion>, part: BlockPart) -> Result<Self> {
        Self::begin(cache, Block { object: object.clone(), index: part.index }, part.bytes)
    }

    /// Takes the role of the owner, who waits for no other node.
    pub fn as_owner(cache: &Arc<Cache>, block: Block) -> Self {
        let all = 0..block.bytes();
        let mut reader = Self::new(cache, block, all, Urgency::demand());
        reader.role = Some(Role::Primary);
        reader
    }

    fn new(cache: &Arc<Cache>, block: Block, rest: Range<u64>, urgency: Urgency) -> Self {
        let (cache, supply) = (cache.clone(), Supply::Nowhere);
        Self { cache, block, rest, supply, urgency, role: None, looks: 0, has_led: false }
    }

    /// How many bytes are still to be read.
    pub fn left(&self) -> u64 {
        self.rest.end - self.rest.start
    }

    /// Where in the object the next bytes lie.
    pub fn offset(&self) -> u64 {
        self.block.range().start + self.rest.start
    }

    /// The next bytes, `most` at most, as soon as there are any; `None` at the end. Where there are `loans`
    /// they may be lent rather than copied.
    pub async fn next(&mut self, most: u64, mut loans: Option<&mut Loans>) -> Result<Option<Bytes>> {
        self.urgency.raise();
        while !self.rest.is_empty() {
            let end = self.rest.end.min(self.rest.start.saturating_add(most));
            let piece = match &mut self.supply {
                Supply::Nowhere => {
                    self.seek()?;
                    continue;
                }
                Supply::Sought(looking) => {
                    let found = looking.await.map_err(failed)??;
                    self.found(found)?;
                    continue;
                }
                Supply::Ready(ready) => {
                    let pool = &self.cache.memory.copies;
                    ready.take(self.rest.start..end, loans.as_deref_mut(), pool).await?
                }
                Supply::Fill(fill, follow) => {
                    let wait = async {
                        match follow {
                            Some(follow) => follow.next(self.rest.start, end).await,
                            None => std::future::pending().await,
                        }
                    };
                    tokio::select! {
                        biased;
                        outcome = fill.value.clone() => {
                            self.supply = filled(outcome?)?;
                            continue;
                        }
                        piece = wait => Some(piece),
                    }
                }
            };
            match piece {
                Some(piece) => {
                    self.rest.start += piece.len() as u64;
                    return Ok(Some(piece));
                }
                None => self.supply = Supply::Nowhere,
            }
        }
        Ok(None)
    }

    /// Waits until the whole block has its place. Returns it, to be read from there.
    pub async fn whole(&mut self) -> Result<ReadySegment> {
        self.urgency.raise();
        loop {
            match &mut self.supply {
                Supply::Ready(ready) => return Ok(ready.segment.clone()),
                Supply::Nowhere => self.seek()?,
                Supply::Sought(looking) => {
                    let found = looking.await.map_err(failed)??;
                    self.found(found)?;
                }
                Supply::Fill(fill, _) => self.supply = filled(fill.value.clone().await?)?,
            }
        }
    }

    /// Bytes that this reader had the node fetch from the object store.
    pub fn fetched_bytes(&self) -> u64 {
        if self.has_led { self.urgency.fetched_bytes() } else { 0 }
    }

    /// Finds the block if it is mapped and warm; begins to look for it where it may lie on the disk; else
    /// joins its fill, or leads it.
    fn seek(&mut self) -> Result<()> {
        let id = self.block.id();
        self.looks += 1;
        if self.looks > LOOKS {
            return Err(Error::retry(format!(
                "{}: block {} was filled and lost again {LOOKS} times",
                self.block.object.uri, self.block.index
            )));
        }
        let (disk, is_short) = (&self.cache.disk, self.left() <= PIECE_BYTES);
        // Once it was found unsound, or not in memory, only the file on the disk counts.
        let at_once = match is_short {
            _ if self.looks > 1 => None,
            true => disk.known(id, &*COLUMNS),
            false => disk.mapped(id, &*COLUMNS),
        };
        if let Some(segment) = at_once {
            self.cache.events.record(Event::Hit);
            self.supply = ready(segment, !is_short)?;
        } else if self.cache.lacks(id) {
            self.fill();
        } else {
            // Nearly all of it is wanted: the disk may read it in one go.
            let (cache, populate) = (self.cache.clone(), self.left() > self.block.bytes() / 2);
            let look = move || {
                let found = cache.look(id, columns());
                if populate && found.missing.is_empty() {
                    let _using: Vec<_> = found.parts.iter().map(ReadySegment::using).collect();
                    cache.disk.populate(id);
                }
                found
            };
            // The directory that hangs is set aside: what lies in it is missing now.
            let looked = async move { given_up(blocking(look).await, Found::default()) };
            self.supply = Supply::Sought(AbortOnDropHandle::new(tokio::spawn(looked)));
        }
        Ok(())
    }

    fn found(&mut self, found: Found) -> Result<()> {
        match found.parts.into_iter().next() {
            Some(segment) => {
                self.cache.events.record(Event::Hit);
                self.supply = ready(segment, true)?;
            }
            None => self.fill(),
        }
        Ok(())
    }

    /// Joins the block's fill, or leads it.
    fn fill(&mut self) {
        let id = self.block.id();
        let role = self.role.unwrap_or_else(|| self.cache.peers.ownership.role(id));
        let (tail, first) = Tail::new(self.urgency.clone());
        let underway = Underway { urgency: self.urgency.clone(), tail: Some(tail.clone()) };
        let (block, from) = (self.block.clone(), self.rest.start);
        let (turnout, fill) = self.cache.fills.join_or_lead((id, role), underway, || {
            let filled = fill(self.cache.clone(), block, role, tail, from);
            async move {
                Ok(match filled.await {
                    Ok(Some(ready)) => FillOutcome::Filled(ready),
                    Ok(None) => FillOutcome::Retry,
                    Err(e) => FillOutcome::Failed(e, columns()),
                })
            }
        });
        self.has_led = turnout == Turnout::Leader;
        let follow = match turnout {
            Turnout::Leader => Some(first),
            Turnout::Follower => fill.about.tail.as_ref().map(|tail| tail.follow()),
        };
        if turnout == Turnout::Follower {
            // This reader's own urgency raises the fill's from now on.
            if self.urgency.is_demand() {
                fill.about.urgency.raise();
            }
            self.urgency = fill.about.urgency.clone();
        }
        self.cache.events.record(Event::Miss(turnout));
        self.supply = Supply::Fill(fill, follow);
    }
}

impl Drop for BlockReader {
    fn drop(&mut self) {
        // The last holder of a block frees or unmaps megabytes.
        if let Supply::Ready(ReadyBlock { segment, bytes, .. }) =
            std::mem::replace(&mut self.supply, Supply::Nowhere)
        {
            drop(bytes);
            drop_aside([segment]);
        }
    }
}

impl ReadyBlock {
    /// Bytes from the beginning of a range on; `None` if they are to be looked for again.
    async fn take(
        &self,
        wanted: Range<u64>,
        loans: Option<&mut Loans>,
        pool: &Pool,
    ) -> Result<Option<Bytes>> {
        let part = |length: u64| {
            let length = length.min(wanted.end - wanted.start) as usize;
            self.bytes.slice_with_length(wanted.start as usize, length)
        };
        if let Some(loans) = loans
            && self.may_touch
        {
            let lent = part(LENT_BYTES);
            if self.segment.is_in_memory(&lent) {
                return Ok(loans.lend(&self.segment, lent));
            }
        }
        let piece = part(PIECE_BYTES);
        if !self.may_touch {
            let mut buffer = pool.take(piece.len());
            let is_copied = self.segment.copy_now(&piece, &mut buffer.as_slice_mut()[..piece.len()]);
            // The buffer goes back, whatever is in it.
            let copy = pool.share(buffer, piece.len());
            return Ok(is_copied.then(|| Bytes::from_owner(copy)));
        }
        if self.segment.is_in_memory(&piece) {
            return Ok(copied(&self.segment, &piece));
        }
        // Those that will be wanted next too: then they are there.
        let (segment, ahead) = (self.segment.clone(), part(BROUGHT_BYTES));
        // The map goes on that thread too: its last holder unmaps it.
        let brought = blocking(move || {
            let _using = segment.using();
            segment.bring(&ahead);
            copied(&segment, &piece)
        });
        // What lies on a disk that hangs is looked for again, and is not there.
        given_up(brought.await, None)
    }
}

fn failed(e: JoinError) -> Error {
    Error::retry(format!("a disk task failed: {e}"))
}

/// A copy of a piece of a block, if it is sound.
fn copied(segment: &ReadySegment, piece: &[u8]) -> Option<Bytes> {
    let copied = Bytes::copy_from_slice(piece);
    segment.verify().then_some(copied)
}

fn ready(segment: ReadySegment, may_touch: bool) -> Result<Supply> {
    let bytes = bytes_of(&segment.batch, 0..segment.batch.num_rows() as u64)?;
    Ok(Supply::Ready(ReadyBlock { segment, bytes, may_touch }))
}

/// Where a reader goes on after a fill.
fn filled(outcome: FillOutcome) -> Result<Supply> {
    match outcome {
        FillOutcome::Filled(segment) => ready(segment, true),
        FillOutcome::Retry => Ok(Supply::Nowhere),
        FillOutcome::Failed(e, _) => Err(e),
    }
}
