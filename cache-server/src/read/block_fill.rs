//! Fills a raw block: from other nodes, else from the object store, for its readers piece by piece.

use super::block::{Block, batch_of, columns};
use super::cache::Cache;
use super::memory::FillPermit;
use super::tail::Tail;
use crate::cluster::peers::{Content, WantedColumns};
use crate::disk::Found;
use crate::disk::policy::Role;
use crate::runtime::{blocking, given_up};
use bytes::Bytes;
use forebay_dataset::off_thread::on_disk;
use forebay_dataset::{ReadySegment, SegmentBatch};
use forebay_proto::{Error, Result};
use std::sync::Arc;

/// What lies before the first byte that is wanted is fetched first where it is no more than this: a request
/// more would cost more.
const HEAD_BYTES: u64 = 512 << 10;

/// Fills a block; `None` if it is there now, or nobody wants it any more.
pub async fn fill(
    cache: Arc<Cache>,
    block: Block,
    role: Role,
    tail: Arc<Tail>,
    from: u64,
) -> Result<Option<ReadySegment>> {
    let origin = block.origin();
    let id = origin.id;
    // Another fill may have ended between the look of this one's caller and its lead.
    if !cache.lacks(id) {
        let look = cache.clone();
        let looked = blocking(move || look.look(id, columns())).await;
        if !given_up(looked, Found::default())?.parts.is_empty() {
            return Ok(None);
        }
    }
    let wanted = WantedColumns {
        content: Content::Block(&block.object, block.index),
        origin: &origin,
        columns: &columns(),
        ask_owner: role == Role::Replica,
    };
    let fetched = async {
        let (urgency, fills) = (&tail.urgency, &cache.memory.fills);
        match cache.peers.fetch(&wanted, |bytes| fills.acquire_for_copy(bytes, urgency)).await? {
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
        Ok((batch, filling)) => cache.end_fill(origin, batch, None, filling).await.map(Some),
        Err(e) => Err(e),
    };
    tail.clear();
    placed
}

/// Fetches a block from the object store, for its readers piece by piece.
async fn fetch(cache: &Cache, block: &Block, tail: &Tail, from: u64) -> Result<(SegmentBatch, FillPermit)> {
    let (memory, urgency) = (&cache.memory, &tail.urgency);
    // The pieces, and the batch that is made of them.
    let cost = 2 * block.bytes();
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
    // No disk of the cache has a part in this: it is not given up with one that hangs.
    let batch = on_disk(move || batch_of(&pieces)).await??;
    match batch.num_rows() as u64 == bytes {
        true => Ok((batch, filling)),
        false => Err(Error::corrupt(format!("{}: a block has other bytes than it should", block.object.uri))),
    }
}
