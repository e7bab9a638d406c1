//! Who goes first: what the disk cache asks of the announced plans, and what a write may push out.

use forebay_proto::manifest::SegmentId;

/// When a segment will be read next, as far as announced plans tell. The later of two is the greater, and
/// a segment in no plan comes after all that are in one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NextUse {
    /// So far from now, in samples of the nearest job at the common pace; 0 = being read. All values of one
    /// call are comparable.
    Planned(u64),
    /// In no announced plan.
    Unplanned,
}

/// Tells the disk cache what will be read when.
pub trait Forecast: Send + Sync + std::fmt::Debug {
    /// One answer per id, in the ids' order. It may look things up in the disk cache meanwhile, but not write
    /// to it.
    fn next_uses(&self, ids: &[SegmentId]) -> Vec<NextUse>;
}

/// What a write may push out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admit {
    /// Only what will be read later than the new segment; a segment in no plan pushes out only others in
    /// none.
    IfWorthIt,
    /// Whatever is neither pinned nor being read: the segment is being read, and memory is short.
    Always,
    /// Nothing: it is a precaution.
    IfFree,
}

/// Why a segment is not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Everything that would have to go will be read sooner.
    NotWorthIt,
    /// Everything is being read or pinned, or no directory works.
    NoRoom,
    /// Another is writing the same file, or an old one of its name is being removed.
    Busy,
}

/// What a copy is to the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The owner's.
    Primary,
    /// Another node's: it leaves before any primary.
    Replica,
}
