//! What a stream needs from its surroundings: segments, somebody who hears how far it has come and grants
//! memory, and bounds.

use super::reading::Reading;
use crate::ready::{MemoryGuard, ReadySegment};
use forebay_proto::Result;
use futures::FutureExt;
use futures::future::BoxFuture;

/// Where a stream gets its segments: from a cache, or decoded in this process.
pub trait SegmentSource: Send + Sync + 'static {
    /// A segment with the columns of `reading`.
    fn get<'a>(&'a self, reading: &'a Reading, segment: u32) -> BoxFuture<'a, Result<ReadySegment>>;
}

/// Hears of a stream's progress, and grants its memory.
pub trait StreamHooks: Send + Sync + 'static {
    /// A plan's stream needs no row before this position any more; after its last message it says `u64::MAX`.
    fn reached(&self, position: u64);

    /// Bytes of segments outside of files that the stream may hold now. It always holds one segment.
    fn held_bytes(&self) -> usize;

    /// Waits until there is memory for a message of about this size; the message holds the permit.
    fn permit(&self, message_bytes: usize) -> BoxFuture<'_, MemoryGuard>;

    /// Resolves when segments that are being read now are not to be waited for any more, as a disk hangs:
    /// they are got again.
    fn stuck(&self) -> BoxFuture<'static, ()> {
        std::future::pending().boxed()
    }
}

/// A stream that nobody watches, with the bytes of segments outside of files that it may hold, and without
/// a bound of messages.
#[derive(Debug, Clone, Copy)]
pub struct Unwatched(pub usize);

impl StreamHooks for Unwatched {
    fn reached(&self, _: u64) {}

    fn held_bytes(&self) -> usize {
        self.0
    }

    fn permit(&self, _: usize) -> BoxFuture<'_, MemoryGuard> {
        std::future::ready(None).boxed()
    }
}

/// Bounds on what one stream holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamBudget {
    /// Body bytes that a message aims at. 1 to 4 MiB ride the plateau of HTTP/2 throughput.
    pub message_bytes: usize,
    /// Messages waiting for the reader.
    pub messages: usize,
    /// Segments made ready beyond the window that is being read; `None`: the source of segments sees to that.
    pub segments_ahead: Option<usize>,
}

impl Default for StreamBudget {
    fn default() -> Self {
        Self { message_bytes: 1536 << 10, messages: 2, segments_ahead: Some(4) }
    }
}
