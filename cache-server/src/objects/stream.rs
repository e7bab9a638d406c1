//! Ranges of one version of an object as a stream of bytes.
//!
//! Blocks are begun ahead of the one that is being read, as far as the window says; they go on by themselves,
//! and those that nobody else reads are given up when the stream is dropped.

use super::read_ahead::ReadAhead;
use crate::read::block_reader::BlockReader;
use crate::read::cache::Cache;
use crate::read::memory::MemoryPermit;
use bytes::Bytes;
use forebay_proto::Result;
use forebay_proto::object::{BlockPart, ObjectVersion};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Some of the bytes that were asked for.
#[derive(Debug)]
pub struct ObjectPiece {
    /// Where in the object they begin.
    pub offset: u64,
    pub bytes: Bytes,
}

/// Ranges of an object as they come, in order.
pub struct ObjectStream {
    cache: Arc<Cache>,
    version: Arc<ObjectVersion>,
    parts: Box<dyn Iterator<Item = BlockPart> + Send>,
    /// Blocks that are begun; the first is being read.
    begun: VecDeque<BlockReader>,
    window: ReadAhead,
    /// Bytes that are to be ready behind the first.
    ahead_bytes: u64,
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
        let of = version.clone();
        let parts = Box::new(ranges.into_iter().flat_map(move |range| of.parts(range)));
        let window = ReadAhead::new(version.block_bytes, ahead_bytes);
        let begun = VecDeque::new();
        Self { cache, version, parts, begun, window, ahead_bytes: 0, _memory: memory }
    }

    /// The next bytes; `None` at the end. After an error there are no more.
    pub async fn next(&mut self) -> Result<Option<ObjectPiece>> {
        loop {
            let Some(first) = self.begun.front_mut() else {
                match self.parts.next() {
                    Some(part) => self.begin(part).await?,
                    None => return Ok(None),
                }
                self.arrive();
                // Before the first byte has come: else a cold stream waits for that twice.
                self.fill_window().await?;
                continue;
            };
            let offset = first.offset();
            if let Some(bytes) = first.next().await? {
                self.fill_window().await?;
                return Ok(Some(ObjectPiece { offset, bytes }));
            }
            self.begun.pop_front();
            self.arrive();
        }
    }

    /// The first of the blocks that are begun is another now.
    fn arrive(&mut self) {
        if let Some(first) = self.begun.front() {
            self.ahead_bytes = self.window.at(first.block.index);
        }
    }

    /// Begins blocks until as many bytes are under way as the window says.
    async fn fill_window(&mut self) -> Result<()> {
        while self.begun.iter().skip(1).map(BlockReader::left).sum::<u64>() < self.ahead_bytes {
            let Some(part) = self.parts.next() else { break };
            self.begin(part).await?;
        }
        Ok(())
    }

    async fn begin(&mut self, part: BlockPart) -> Result<()> {
        let is_next = self.begun.is_empty();
        self.begun.push_back(BlockReader::of(&self.cache, &self.version, part, is_next).await?);
        Ok(())
    }
}
