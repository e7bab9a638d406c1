//! How a fill is wanted, and what comes of it.

use super::memory::MemoryPermit;
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
    /// Memory to keep the segment in if it is not worth storing.
    pub tier: Option<MemoryPermit>,
    /// Reads the segment in one request with its neighbours.
    pub run: Option<Arc<SegmentRun>>,
}

impl Ahead {
    /// A read that somebody waits for.
    pub fn demand() -> Self {
        Self { urgency: Urgency::demand(), tier: None, run: None }
    }
}
