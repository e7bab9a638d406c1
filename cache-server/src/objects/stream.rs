//! Ranges of one version of an object as a stream of bytes.
//!
//! Blocks are begun ahead of the one that is being read, as far as the window says; they go on by themselves,
//! and those that nobody else reads are given up when the stream is dropped.

use super::read_ahead::ReadAhead;
use crate::read::block::Block;
use crate::read::block_reader::{BlockReader, PIECE_BYTES};
use crate::read::cache::Cache;
use crate::read::loans::Loans;
use crate::read::memory::MemoryPermit;
use bytes::Bytes;
use forebay_proto::object::{BlockPart, ObjectVersion};
use forebay_proto::{Error, Result};
use futures::future::BoxFuture;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Bytes at the end of a stream that are never lent: they come when all that was lent is settled.
const TAIL_BYTES: u64 = 64 << 10;

/// Some of the bytes that were asked for.
#[derive(Debug)]
pub struct ObjectPiece {
    /// Where in the object they begin.
    pub offset: u64,
    /// The block that they are of.
    pub block: u64,
    pub bytes: Bytes,
}

/// Waits until that many bytes of objects may be fetched.
pub type Toll = Arc<dyn Fn(u64) -> BoxFuture<'static, ()> + Send + Sync>;

/// Ranges of an object as they come, in order.
pub struct ObjectStream {
    cache: Arc<Cache>,
    pub version: Arc<ObjectVersion>,
    parts: Box<dyn Iterator<Item = BlockPart> + Send>,
    /// Bytes that are still to be read.
    left: u64,
    /// Blocks that are begun; the first is being read.
    begun: VecDeque<BlockReader>,
    /// Bytes of those behind the first.
    begun_bytes: u64,
    window: ReadAhead,
    /// Bytes that are to be ready behind the first.
    ahead_bytes: u64,
    loans: Option<Loans>,
    /// Asked before a block is fetched, and nothing is read ahead then.
    toll: Option<Toll>,
    _memory: MemoryPermit,
}

impl ObjectStream {
    pub(super) fn new(
        cache: Arc<Cache>,
        version: Arc<ObjectVersion>,
        ranges: Vec<Range<u64>>,
        ahead_bytes: u64,
        memory: MemoryPermit,
    ) -> Self {
        let left = ranges.iter().map(|range| range.end - range.start).sum();
        let of = version.clone();
        let parts = Box::new(ranges.into_iter().flat_map(move |range| of.parts(range)));
        let window = ReadAhead::new(version.block_bytes, left, ahead_bytes);
        Self {
            cache,
            version,
            parts,
            left,
            begun: VecDeque::new(),
            begun_bytes: 0,
            window,
            ahead_bytes: 0,
            loans: None,
            toll: None,
            _memory: memory,
        }
    }

    /// The same for a reader for whom only so much is fetched.
    pub fn paying(self, toll: Option<Toll>) -> Self {
        Self { toll, ..self }
    }

    /// From now on pieces may be lent: no copies, but bytes as they lie in mapped files. For those who hand
    /// them to the kernel, and whose reader throws away what has no end: whether all was sound shows only
    /// then. A short stream is copied nevertheless.
    pub fn lending(self) -> Self {
        let loans = (self.left > PIECE_BYTES).then(Loans::default);
        Self { loans, ..self }
    }

    /// The next bytes; `None` at the end. After an error there are no more.
    pub async fn next(&mut self) -> Result<Option<ObjectPiece>> {
        loop {
            if self.begun.is_empty() {
                let Some(part) = self.parts.next() else { return Ok(None) };
                self.pay(part.index).await;
                self.begin(part)?;
                self.begun_bytes = 0;
                self.arrive();
            }
            // Before the first byte has come: else a cold stream waits for that twice.
            self.fill_window()?;
            let may_lend = self.left.saturating_sub(TAIL_BYTES);
            if self.loans.as_ref().is_some_and(|loans| may_lend == 0 || loans.are_many()) {
                self.settle().await?;
            }
            let Some(first) = self.begun.front_mut() else { continue };
            let (offset, block) = (first.offset(), first.block.index);
            let piece = match &mut self.loans {
                Some(loans) if may_lend > 0 => first.next(may_lend, Some(loans)).await?,
                _ => first.next(u64::MAX, None).await?,
            };
            if let Some(bytes) = piece {
                self.left -= bytes.len() as u64;
                return Ok(Some(ObjectPiece { offset, block, bytes }));
            }
            self.begun.pop_front();
            if let Some(first) = self.begun.front() {
                self.begun_bytes -= first.left();
                self.arrive();
            }
        }
    }

    /// Waits until a block may be fetched, if it is not held.
    async fn pay(&mut self, index: u64) {
        let Some(toll) = &self.toll else { return };
        let block = Block { object: self.version.clone(), index };
        if !self.cache.holds_block(&block) {
            toll(block.bytes()).await;
        }
    }

    /// The first of the blocks that are begun is another now.
    fn arrive(&mut self) {
        if self.toll.is_some() {
            return;
        }
        if let Some(first) = self.begun.front() {
            self.ahead_bytes = self.window.at(first.block.index);
        }
    }

    /// Begins blocks until as many bytes are under way as the window says.
    fn fill_window(&mut self) -> Result<()> {
        while self.begun_bytes < self.ahead_bytes {
            let Some(part) = self.parts.next() else { break };
            self.begin(part)?;
        }
        Ok(())
    }

    fn begin(&mut self, part: BlockPart) -> Result<()> {
        let reader = BlockReader::of(&self.cache, &self.version, part)?;
        self.begun_bytes += reader.left();
        self.begun.push_back(reader);
        Ok(())
    }

    /// Waits until what was lent is on its way. `Retry` if a file was changed meanwhile.
    async fn settle(&mut self) -> Result<()> {
        let Some(loans) = &mut self.loans else { return Ok(()) };
        match loans.settle().await {
            true => Ok(()),
            false => Err(Error::retry(format!(
                "{}: a file of the cache was changed while it was sent: read the object again",
                self.version.uri
            ))),
        }
    }
}
