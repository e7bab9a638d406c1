//! A batch stream's side of the cache: where its segments come from, how far it has come, what its messages
//! may use.

use crate::read::cache::Cache;
use crate::read::memory::{Memory, MemoryPermit};
use crate::read::plans::Announced;
use forebay_dataset::stream::{Reading, SegmentSource, StreamHooks};
use forebay_dataset::{MemoryGuard, ReadySegment, Urgency};
use forebay_proto::{Error, Result};
use futures::FutureExt;
use futures::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use tokio::sync::Notify;

/// The cache as one stream sees it.
pub struct StreamSegments {
    cache: Arc<Cache>,
    memory: Memory,
    plan: Option<Announced>,
    own: Arc<OwnMessages>,
    held_only: bool,
}

/// The stream's messages that are not sent yet.
#[derive(Debug, Default)]
struct OwnMessages {
    count: AtomicUsize,
    none_left: Notify,
}

/// A message's memory.
struct MessagePermit {
    own: Arc<OwnMessages>,
    _held: MemoryPermit,
}

impl StreamSegments {
    /// For a stream that follows no announced plan.
    pub fn new(cache: Arc<Cache>, memory: Memory) -> Self {
        Self { cache, memory, plan: None, own: Arc::default(), held_only: false }
    }

    /// For a stream that follows an announced plan.
    pub fn following(self, plan: Announced) -> Self {
        Self { plan: Some(plan), ..self }
    }

    /// For a stream that must not make the node fetch anything.
    pub fn held_only(self) -> Self {
        Self { held_only: true, ..self }
    }

    /// Memory for a message. A stream may always hold one, so that none waits for others that do not move.
    #[tracing::instrument(level = "trace", skip_all)]
    async fn message_permit(&self, bytes: u64) -> MessagePermit {
        let (room, demand) = (&self.memory.streams, Urgency::demand());
        let none_left = async {
            loop {
                let told = self.own.none_left.notified();
                if self.own.count.load(SeqCst) == 0 {
                    return;
                }
                told.await;
            }
        };
        let held = tokio::select! {
            biased;
            held = room.acquire(bytes, &demand) => held,
            () = none_left => room.acquire_now(bytes),
        };
        self.own.count.fetch_add(1, SeqCst);
        MessagePermit { own: self.own.clone(), _held: held }
    }
}

impl Drop for MessagePermit {
    fn drop(&mut self) {
        if self.own.count.fetch_sub(1, SeqCst) == 1 {
            self.own.none_left.notify_waiters();
        }
    }
}

impl SegmentSource for StreamSegments {
    fn get<'a>(&'a self, reading: &'a Reading, segment: u32) -> BoxFuture<'a, Result<ReadySegment>> {
        if self.held_only && !reading.manifest.segment_id(segment).is_ok_and(|id| self.cache.has(reading, id))
        {
            let lacks = Error::retry(format!("segment {segment} is not held here"));
            return std::future::ready(Err(lacks)).boxed();
        }
        self.cache.get(reading, segment).boxed()
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
        async move {
            let guard: MemoryGuard = Some(Arc::new(self.message_permit(message_bytes as u64).await));
            guard
        }
        .boxed()
    }
}
