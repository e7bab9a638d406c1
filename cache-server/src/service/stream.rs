//! A batch stream's side of the cache: where its segments come from, how far it has come, what its messages may use.

use crate::cluster::hot::HotSegments;
use crate::read::budget::Held;
use crate::read::cache::Cache;
use crate::read::plans::Announced;
use forebay_dataset::stream::{Reading, Segments};
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
    plan: Option<Announced>,
    own: Arc<Own>,
    hot: Arc<HotSegments>,
    held_only: bool,
}

/// The stream's messages that are not sent yet.
#[derive(Debug, Default)]
struct Own {
    messages: AtomicUsize,
    none_left: Notify,
}

/// A message's memory.
struct MessageRoom {
    own: Arc<Own>,
    _held: Held,
}

impl StreamSegments {
    /// For a stream that reads a plan, or anything else.
    pub fn new(cache: Arc<Cache>, hot: Arc<HotSegments>, plan: Option<Announced>) -> Self {
        Self { cache, plan, own: Arc::default(), hot, held_only: false }
    }

    /// For a stream that must not make the node fetch anything.
    pub fn held_only(cache: Arc<Cache>, hot: Arc<HotSegments>) -> Self {
        Self { held_only: true, ..Self::new(cache, hot, None) }
    }

    /// Memory for a message. A stream may always hold one, so that none waits for others that do not move.
    async fn message_room(&self, bytes: u64) -> MessageRoom {
        let (room, demand) = (&self.cache.memory().streams, Urgency::demand());
        let none_left = async {
            loop {
                let told = self.own.none_left.notified();
                if self.own.messages.load(SeqCst) == 0 {
                    return;
                }
                told.await;
            }
        };
        let held = tokio::select! {
            biased;
            held = room.hold(bytes, &demand) => held,
            () = none_left => room.hold_anyway(bytes),
        };
        self.own.messages.fetch_add(1, SeqCst);
        MessageRoom { own: self.own.clone(), _held: held }
    }
}

impl Drop for MessageRoom {
    fn drop(&mut self) {
        if self.own.messages.fetch_sub(1, SeqCst) == 1 {
            self.own.none_left.notify_waiters();
        }
    }
}

impl Segments for StreamSegments {
    fn get<'a>(&'a self, reading: &'a Reading, segment: u32) -> BoxFuture<'a, Result<ReadySegment>> {
        if self.held_only && !reading.manifest.segment_id(segment).is_ok_and(|id| self.cache.has(reading, id))
        {
            let lacks = Error::retry(format!("segment {segment} is not held here"));
            return std::future::ready(Err(lacks)).boxed();
        }
        self.cache.get(reading, segment)
    }

    fn reached(&self, position: u64) {
        if let Some(plan) = &self.plan {
            plan.reached(position);
        }
    }

    fn held_bytes(&self) -> usize {
        self.cache.memory().held_bytes() as usize
    }

    fn room(&self, bytes: usize) -> BoxFuture<'_, MemoryGuard> {
        async move {
            self.hot.throttle(bytes as u64).await;
            let guard: MemoryGuard = Some(Arc::new(self.message_room(bytes as u64).await));
            guard
        }
        .boxed()
    }
}
