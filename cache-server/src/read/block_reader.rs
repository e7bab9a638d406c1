//! Reads a part of one raw block: from the disk cache, or as it comes while it is filled, once for all.
//!
//! A fill asks other nodes first, as that of a segment does. From the object store it fetches all of the
//! block, from the first byte that is wanted on, then what lies before. One that was begun ahead is given up
//! when its reader goes away. Bytes of files are copied on a blocking thread, so no async thread meets a cold
//! page.

use super::block::{Block, batch_of, bytes_of, columns};
use super::cache::Cache;
use super::fill::{FillOutcome, Underway};
use super::memory::MemoryPermit;
use super::single_flight::{InFlight, Turnout};
use super::tail::{Follow, Tail};
use crate::cluster::peers::{Content, WantedColumns};
use crate::disk::Found;
use crate::disk::policy::Role;
use crate::events::Event;
use crate::runtime::blocking;
use bytes::Bytes;
use forebay_dataset::ready::drop_aside;
use forebay_dataset::{ReadySegment, SegmentBatch, Urgency};
use forebay_proto::object::{BlockPart, ObjectVersion};
use forebay_proto::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// Bytes that are copied at once.
pub const PIECE_BYTES: u64 = 256 << 10;

/// What lies before the first byte that is wanted is fetched first where it is no more than this: a request
/// more would cost more.
const HEAD_BYTES: u64 = 512 << 10;

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
    /// Whether the first piece is copied in one go with the look for the block: a turn on another thread
    /// less.
    copies_first: bool,
    /// That piece.
    first: Option<Bytes>,
}

/// Where bytes come from.
enum Supply {
    /// Not known.
    Nowhere,
    /// A file, or memory.
    Ready(ReadySegment),
    /// A fill under way, and the hold on it.
    Fill(InFlight<FillOutcome, Underway>, Option<Follow>),
}

impl BlockReader {
    /// Finds the block or begins to fill it, ahead of any demand. Once begun it goes on by itself, until the
    /// reader is dropped.
    pub async fn begin(cache: &Arc<Cache>, block: Block, bytes: Range<u64>) -> Result<Self> {
        Self::begin_as(cache, block, bytes, false).await
    }

    async fn begin_as(
        cache: &Arc<Cache>,
        block: Block,
        bytes: Range<u64>,
        copies_first: bool,
    ) -> Result<Self> {
        let mut reader = Self {
            cache: cache.clone(),
            block,
            rest: bytes,
            supply: Supply::Nowhere,
            urgency: Urgency::prefetch(),
            role: None,
            looks: 0,
            has_led: false,
            copies_first,
            first: None,
        };
        reader.look().await?;
        Ok(reader)
    }

    /// The same of a part of an object, `is_next` if that is read at once.
    pub async fn of(
        cache: &Arc<Cache>,
        object: &Arc<ObjectVersion>,
        part: BlockPart,
        is_next: bool,
    ) -> Result<Self> {
        Self::begin_as(cache, Block { object: object.clone(), index: part.index }, part.bytes, is_next).await
    }

    /// How many bytes are still to be read.
    pub fn left(&self) -> u64 {
        self.rest.end - self.rest.start
    }

    /// Where in the object the next bytes lie.
    pub fn offset(&self) -> u64 {
        self.block.range().start + self.rest.start
    }

    /// The next bytes, as soon as there are any; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        self.urgency.raise();
        while !self.rest.is_empty() {
            let piece = match &mut self.supply {
                Supply::Nowhere => {
                    self.look().await?;
                    continue;
                }
                Supply::Ready(_) if self.first.is_some() => self.first.take(),
                Supply::Ready(ready) => {
                    let piece = self.rest.start..self.rest.end.min(self.rest.start + PIECE_BYTES);
                    copy(ready.clone(), piece).await?
                }
                Supply::Fill(fill, follow) => {
                    let wait = async {
                        match follow {
                            Some(follow) => follow.next(self.rest.start, self.rest.end).await,
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
            match &self.supply {
                Supply::Ready(ready) => return Ok(ready.clone()),
                Supply::Nowhere => self.look().await?,
                Supply::Fill(fill, _) => self.supply = filled(fill.value.clone().await?)?,
            }
        }
    }

    /// Bytes that this reader had the node fetch from the object store.
    pub fn fetched_bytes(&self) -> u64 {
        if self.has_led { self.urgency.fetched_bytes() } else { 0 }
    }

    /// Takes the role of the owner, who waits for no other node.
    pub fn as_owner(cache: &Arc<Cache>, block: Block) -> Self {
        let (rest, urgency) = (0..block.bytes(), Urgency::demand());
        let (supply, role) = (Supply::Nowhere, Some(Role::Primary));
        Self {
            cache: cache.clone(),
            block,
            rest,
            supply,
            urgency,
            role,
            looks: 0,
            has_led: false,
            copies_first: false,
            first: None,
        }
    }

    /// Finds the block, or joins its fill, or leads it.
    async fn look(&mut self) -> Result<()> {
        let id = self.block.id();
        self.looks += 1;
        if self.looks > LOOKS {
            return Err(Error::retry(format!(
                "{}: block {} was filled and lost again {LOOKS} times",
                self.block.object.uri, self.block.index
            )));
        }
        // Nearly all of it is wanted: the disk may read it in one go.
        let (cache, populate) = (self.cache.clone(), self.left() > self.block.bytes() / 2);
        let piece = self.rest.start..self.rest.end.min(self.rest.start + PIECE_BYTES);
        let piece = Some(piece).filter(|_| self.copies_first);
        let look = move || {
            let found = cache.look(id, columns());
            if populate && found.missing.is_empty() {
                cache.disk.populate(id);
            }
            let first = found.parts.first().zip(piece).map(|(ready, piece)| copy_now(ready, piece));
            (found, first)
        };
        let (Found { parts, .. }, first) = blocking(look).await?;
        if let Some(ready) = parts.into_iter().next() {
            self.cache.events.record(Event::Hit);
            // One that is not sound is found out again by the copy that follows.
            self.first = first.transpose()?.flatten();
            self.supply = Supply::Ready(ready);
            return Ok(());
        }
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
        Ok(())
    }
}

impl Drop for BlockReader {
    fn drop(&mut self) {
        // The last holder of a block frees or unmaps megabytes.
        if let Supply::Ready(ready) = std::mem::replace(&mut self.supply, Supply::Nowhere) {
            drop_aside([ready]);
        }
    }
}

/// Where a reader goes on after a fill.
fn filled(outcome: FillOutcome) -> Result<Supply> {
    match outcome {
        FillOutcome::Filled(ready) => Ok(Supply::Ready(ready)),
        FillOutcome::Retry => Ok(Supply::Nowhere),
        FillOutcome::Failed(e, _) => Err(e),
    }
}

/// A copy of a piece of a block; `None` if the file behind it is not sound any more.
async fn copy(ready: ReadySegment, piece: Range<u64>) -> Result<Option<Bytes>> {
    // The map goes on that thread too: its last holder unmaps it.
    blocking(move || copy_now(&ready, piece)).await?
}

/// The same at once: not for an async thread.
fn copy_now(ready: &ReadySegment, piece: Range<u64>) -> Result<Option<Bytes>> {
    let bytes = bytes_of(&ready.batch, piece)?;
    let copied = Bytes::copy_from_slice(&bytes);
    Ok(ready.verify().then_some(copied))
}

/// Fills a block; `None` if it is there now, or nobody wants it any more.
async fn fill(
    cache: Arc<Cache>,
    block: Block,
    role: Role,
    tail: Arc<Tail>,
    from: u64,
) -> Result<Option<ReadySegment>> {
    let origin = block.origin();
    let id = origin.id;
    // Another fill may have ended between the look of this one's caller and its lead.
    let look = cache.clone();
    if !blocking(move || look.look(id, columns())).await?.parts.is_empty() {
        return Ok(None);
    }
    let wanted = WantedColumns {
        content: Content::Block(&block.object, block.index),
        origin: &origin,
        columns: &columns(),
        ask_owner: role == Role::Replica,
    };
    let fetched = async {
        let urgency = &tail.urgency;
        match cache.peers.fetch(&wanted, |bytes| cache.memory.fills.acquire(bytes, urgency)).await? {
            Some(copy) => Ok(copy),
            None => fetch(&cache, &block, &tail, from).await,
        }
    };
    let fetched = tokio::select! {
        biased;
        fetched = fetched => fetched,
        () = tail.abandoned() => {
            tracing::debug!(object = &*origin.object, block = block.index, "nobody wants a block any more: its fill is given up");
            return Ok(None);
        }
    };
    let placed = match fetched {
        Ok((batch, filling)) => {
            let put = cache.clone();
            blocking(move || put.put(&origin, batch, None, filling)).await?.map(Some)
        }
        Err(e) => Err(e),
    };
    tail.clear();
    placed
}

/// Fetches a block from the object store, for its readers piece by piece.
async fn fetch(cache: &Cache, block: &Block, tail: &Tail, from: u64) -> Result<(SegmentBatch, MemoryPermit)> {
    let (memory, urgency) = (&cache.memory, &tail.urgency);
    // The pieces, and the batch that is made of them.
    let cost = 2 * block.bytes();
    let _share = match urgency.is_demand() {
        true => None,
        false => tokio::select! {
            biased;
            () = urgency.raised() => None,
            share = memory.prefetch.acquire(cost, urgency) => Some(share),
        },
    };
    let filling = memory.fills.acquire(cost, urgency).await;
    let (whole, objects) = (block.range(), cache.source.objects());
    let first = whole.start + if from > HEAD_BYTES { from } else { 0 };
    for range in [first..whole.end, whole.start..first] {
        if range.is_empty() {
            continue;
        }
        let mut at = range.start - whole.start;
        let hand_on = |piece: Bytes| {
            let start = at;
            at += piece.len() as u64;
            tail.push(start, piece);
        };
        objects.read(&block.object, range, urgency, hand_on).await?;
    }
    let (pieces, bytes) = (tail.pieces(), block.bytes());
    let batch = blocking(move || batch_of(&pieces)).await??;
    match batch.num_rows() as u64 == bytes {
        true => Ok((batch, filling)),
        false => Err(Error::corrupt(format!("{}: a block has other bytes than it should", block.object.uri))),
    }
}
