//! How a fill is wanted, and what comes of it.

use super::memory::{Memory, MemoryPermit};
use super::tail::Tail;
use forebay_dataset::{ReadySegment, SegmentRun, Urgency};
use forebay_proto::Error;
use std::sync::Arc;

/// What a fill brings to all who wait for it, whichever columns they want.
#[derive(Clone)]
pub enum FillOutcome {
    /// These columns.
    Filled(ReadySegment),
    /// None: some of the columns were found just before it began, or a copy of them did not come. Look again.
    Retry,
    /// These columns could not be filled. That says nothing of others.
    Failed(Error, Vec<String>),
}

/// A fill under way, for those who join it.
#[derive(Clone)]
pub struct Underway {
    /// A reader who joins one that was begun ahead of it makes it urgent.
    pub urgency: Urgency,
    /// The bytes as they come, of a raw block.
    pub tail: Option<Arc<Tail>>,
}

impl From<Urgency> for Underway {
    fn from(urgency: Urgency) -> Self {
        Self { urgency, tail: None }
    }
}

/// What a read ahead of any demand holds.
pub struct Ahead {
    pub urgency: Urgency,
    /// Its part of the memory that prefetches may use for fills; none where somebody waits for it.
    pub share: Option<MemoryPermit>,
    /// Memory to keep the segment in if it is not worth storing.
    pub tier: Option<MemoryPermit>,
    /// Reads the segment in one request with its neighbours.
    pub run: Option<Arc<SegmentRun>>,
}

impl Ahead {
    /// A read that somebody waits for.
    pub fn demand() -> Self {
        Self { urgency: Urgency::demand(), share: None, tier: None, run: None }
    }

    /// Makes its share what the fill really costs. For more than it has it waits, and holds nothing
    /// meanwhile. As soon as somebody waits for the segment it needs no share, also while it waits: the
    /// memory that others hold may be for segments that wait for this one, at another node.
    pub async fn take_share(&mut self, bytes: u64, memory: &Memory) {
        let Some(mut share) = self.share.take().filter(|_| !self.urgency.is_demand()) else { return };
        if bytes > share.weight() {
            drop(share);
            share = tokio::select! {
                biased;
                () = self.urgency.raised() => return,
                share = memory.prefetch.acquire(bytes, &self.urgency) => share,
            };
        } else {
            share.resize(bytes);
        }
        self.share = Some(share);
    }
}
