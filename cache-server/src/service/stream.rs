//! A batch stream's side of the cache: where its segments come from, how far it has come, what its messages
//! may use.

use super::fetch_limit::segment_turn;
use super::stalls::StreamWatch;
use crate::auth::limiter::Limiter;
use crate::read::cache::Cache;
use crate::read::memory::Memory;
use crate::read::plans::Announced;
use crate::runtime::disk_hangs;
use forebay_dataset::shared::{MessagePool, SharedRegion};
use forebay_dataset::stream::{Reading, SegmentSource, StreamBudget, StreamHooks};
use forebay_dataset::{MemoryGuard, ReadySegment};
use forebay_proto::{Error, Result};
use futures::FutureExt;
use futures::future::BoxFuture;
use std::sync::Arc;

/// Room that a message takes beyond its bytes: this part of them.
const ROOM_PART: u64 = 16;

/// Body bytes that a message aims at whose rows the reader copies out of files, where its region has room for
/// as many: a part of a message's cost to the node does not depend on its length.
const LENT_MESSAGE_BYTES: u64 = 2560 << 10;

/// One that is copied, one on its way, one that is made.
const LENT_MESSAGES: u64 = 3;

/// What a message of about `bytes` takes of a region: a little more, as each buffer takes whole pages.
fn room(bytes: u64) -> u64 {
    bytes + bytes / ROOM_PART
}

fn takes_long_messages(region: &SharedRegion) -> bool {
    region.lends_files() && region.bytes() as u64 >= LENT_MESSAGES * room(LENT_MESSAGE_BYTES)
}

/// The cache as one stream sees it.
pub struct StreamSegments {
    cache: Arc<Cache>,
    memory: Memory,
    /// The announced plan that the stream follows.
    pub plan: Option<Announced>,
    /// Whether the stream must not make the node fetch anything.
    pub held_only: bool,
    /// Of a principal for whom only so much is fetched.
    pub throttle: Option<Arc<Limiter>>,
    /// Where its messages are put, if its reader shares memory.
    pub region: Option<SharedRegion>,
    /// What its messages may take.
    watch: Arc<StreamWatch>,
}

impl StreamSegments {
    /// For a stream that follows no announced plan.
    pub fn new(cache: Arc<Cache>, memory: Memory, watch: Arc<StreamWatch>) -> Self {
        Self { cache, memory, plan: None, held_only: false, throttle: None, region: None, watch }
    }

    /// Memory for a message, and room for it where it is shared.
    #[tracing::instrument(level = "trace", skip_all)]
    async fn message_permit(&self, bytes: u64) -> MemoryGuard {
        if let Some(region) = &self.region {
            // Without any room it travels as bytes.
            region.room(room(bytes) as usize).await;
        }
        Some(Arc::new(self.watch.permit(bytes).await))
    }
}

impl StreamSegments {
    /// Body bytes that a message aims at.
    pub fn message_bytes(&self) -> usize {
        match self.region.as_ref().is_some_and(takes_long_messages) {
            true => LENT_MESSAGE_BYTES as usize,
            false => StreamBudget::default().message_bytes,
        }
    }

    /// Where the buffers of messages come from.
    pub fn pool(&self) -> MessagePool {
        MessagePool::new(self.memory.pool.clone(), self.region.clone())
    }
}

impl SegmentSource for StreamSegments {
    fn get<'a>(&'a self, reading: &'a Reading, segment: u32) -> BoxFuture<'a, Result<ReadySegment>> {
        if self.held_only && !reading.manifest.segment_id(segment).is_ok_and(|id| self.cache.has(reading, id))
        {
            let lacks = Error::retry(format!("segment {segment} is not held here"));
            return std::future::ready(Err(lacks)).boxed();
        }
        let Some(limiter) = &self.throttle else { return self.cache.get(reading, segment).boxed() };
        async move {
            let _turn = segment_turn(limiter, &self.cache, reading, segment).await?;
            self.cache.get(reading, segment).await
        }
        .boxed()
    }
}

impl StreamHooks for StreamSegments {
    fn reached(&self, position: u64) {
        if let Some(plan) = &self.plan {
            plan.reached(position);
        }
    }

    fn held_bytes(&self) -> usize {
        self.memory.held_bytes() as usize
    }

    fn permit(&self, message_bytes: usize) -> BoxFuture<'_, MemoryGuard> {
        self.message_permit(message_bytes as u64).boxed()
    }

    fn stuck(&self) -> BoxFuture<'static, ()> {
        disk_hangs().boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    /// What loaders ask for by default.
    const WINDOW_BYTES: u32 = 8 << 20;

    #[test]
    fn long_messages_are_for_regions_that_hold_some_of_them() {
        let takes = |bytes: u32, takes_files: bool| {
            let region = SharedRegion::new(bytes as usize).unwrap();
            if takes_files {
                region.lend_files(UnixStream::pair().unwrap().0.into());
            }
            takes_long_messages(&region)
        };
        assert!(takes(WINDOW_BYTES, true) && !takes(WINDOW_BYTES, false));
        assert!(!takes(WINDOW_BYTES / 2, true));
    }
}
