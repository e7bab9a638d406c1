//! The node's memory: one number of bytes, and what it is divided into. Each part is enforced.
//!
//! | part | share | what it holds |
//! |---|---|---|
//! | fills | 3/8 | segments being fetched and decoded; prefetches use at most half of it |
//! | transit | 2/8 | segments served without being stored, until no stream needs them; where these have no other place a quarter of that more, and one for each stream |
//! | streams | 1/8 | messages made but not sent; a stream may hold one whatever the others do |
//! | maps | 2/8 | mapped segment files whose pages are in the process's memory |
//!
//! What this does not count: footers, manifests and the index of the disk cache, which have bounds of their
//! own.

use crate::read::budget::Room;
use std::sync::Arc;

/// The parts of a node's memory.
#[derive(Debug, Clone)]
pub struct Memory {
    limit_bytes: u64,
    /// Fetching and decoding.
    pub fills: Arc<Room>,
    /// The part of `fills` that prefetches may use.
    pub prefetch: Arc<Room>,
    /// Segments served without being stored.
    pub transit: Arc<Room>,
    /// Messages on their way.
    pub streams: Arc<Room>,
    /// Mapped files with pages in memory: the disk cache sees to that.
    pub maps_bytes: u64,
}

impl Memory {
    /// Divides `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Self {
        let eighths = |n: u64| limit_bytes / 8 * n;
        Self {
            limit_bytes,
            fills: Room::new(eighths(3)),
            prefetch: Room::new(eighths(3) / 2),
            transit: Room::new(eighths(2)),
            streams: Room::new(eighths(1)),
            maps_bytes: eighths(2),
        }
    }

    /// All of it.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Bytes of segments in transit that one stream may keep there for a message: less by what all of it is
    /// over its limit, down to none, which is one segment at a time.
    pub fn held_bytes(&self) -> u64 {
        let limit = self.transit.limit_bytes();
        (limit / 4).saturating_sub(self.transit.used_bytes().saturating_sub(limit))
    }

    /// Bytes of the plan that are made ready ahead of the fastest stream, for all jobs together.
    pub fn ahead_bytes(&self) -> u64 {
        self.transit.limit_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_hold_less_the_more_transit_is_over_its_limit() {
        let memory = Memory::new(1600);
        assert_eq!((memory.transit.limit_bytes(), memory.held_bytes()), (400, 100));
        let mut held = memory.transit.hold_anyway(400);
        assert_eq!(memory.held_bytes(), 100);
        held.resize(460);
        assert_eq!(memory.held_bytes(), 40);
        held.resize(900);
        assert_eq!(memory.held_bytes(), 0);
    }
}
