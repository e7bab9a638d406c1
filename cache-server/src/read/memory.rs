//! The node's memory: one number of bytes, and what it is divided into. Each part is enforced.
//!
//! | part | share | what it holds |
//! |---|---|---|
//! | fills | 5/16 | segments being fetched and decoded; prefetches use at most 3/5 of it |
//! | tier | 2/8 | segments served without being stored, until no stream needs them; and see below |
//! | streams | 5/64 | messages made but not sent; a stream may hold one whatever the others do |
//! | pool | 1/64 | buffers of messages and of copies that were sent, to be used again |
//! | tickets | 3/128 | tickets, and the places of the rows of the steps that streams are at; and see below |
//! | requests | 1/128 | other requests while they come and are begun |
//! | maps | 2/8 | mapped segment files whose pages are in the process's memory: a window of 16 segments |
//! | shared | 1/16 | memory shared with readers on the node's host |
//!
//! Segments for which there is no other place go beyond the tier's limit: by a quarter of it, and one segment
//! for each stream. Tickets of addresses with few streams go beyond theirs, to twice as much at most.
//!
//! What this does not count: footers, manifests and the index of the disk cache, which have bounds of their
//! own.

use forebay_dataset::pool::Pool;
use forebay_dataset::{PrioritySemaphore, SemaphorePermit};
use std::sync::Arc;

/// Bytes of memory that one purpose may use at once.
pub type MemoryBudget = PrioritySemaphore;

/// Bytes of memory in use.
pub type MemoryPermit = SemaphorePermit;

/// The parts of a node's memory.
#[derive(Debug, Clone)]
pub struct Memory {
    /// The node's `--memory-bytes`, which the budgets divide.
    pub limit_bytes: u64,
    /// Fetching and decoding.
    pub fills: Arc<MemoryBudget>,
    /// The part of `fills` that prefetches may use.
    pub prefetch: Arc<MemoryBudget>,
    /// Segments served without being stored.
    pub tier: Arc<MemoryBudget>,
    /// Messages on their way.
    pub streams: Arc<MemoryBudget>,
    /// Tickets, and the places of the rows of a step.
    pub tickets: Arc<MemoryBudget>,
    /// Other requests.
    pub requests: Arc<MemoryBudget>,
    /// Memory shared with readers on the node's host.
    pub shared: Arc<MemoryBudget>,
    /// Buffers of messages that were sent, to be used again.
    pub pool: Pool,
    /// The same of copies that are sent.
    pub copies: Pool,
    /// Mapped files with pages in memory: the disk cache sees to that.
    pub maps_bytes: u64,
}

impl Memory {
    /// Divides `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Self {
        let eighths = |n: u64| limit_bytes / 8 * n;
        Self {
            limit_bytes,
            fills: MemoryBudget::new(eighths(1) / 2 * 5),
            prefetch: MemoryBudget::new(eighths(1) / 2 * 3),
            tier: MemoryBudget::new(eighths(2)),
            streams: MemoryBudget::new(eighths(1) / 8 * 5),
            pool: Pool::new((eighths(1) / 64 * 7) as usize),
            copies: Pool::new((eighths(1) / 64) as usize),
            tickets: MemoryBudget::new(eighths(1) / 16 * 3),
            requests: MemoryBudget::new(eighths(1) / 16),
            maps_bytes: eighths(2),
            shared: MemoryBudget::new(eighths(1) / 2),
        }
    }

    /// Bytes of segments in the memory tier that one stream may keep there for a message: less by what all of
    /// it is over its limit, down to none, which is one segment at a time.
    pub fn held_bytes(&self) -> u64 {
        let limit = self.tier.limit();
        (limit / 4).saturating_sub(self.tier.used().saturating_sub(limit))
    }

    /// Bytes in messages that are not sent yet, and in requests.
    pub fn messages_bytes(&self) -> u64 {
        self.streams.used() + self.tickets.used() + self.requests.used()
    }

    /// Bytes of the plan that are made ready ahead of the fastest stream, for all jobs together.
    pub fn ahead_bytes(&self) -> u64 {
        self.tier.limit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_hold_less_the_more_the_tier_is_over_its_limit() {
        let memory = Memory::new(1600);
        assert_eq!((memory.tier.limit(), memory.held_bytes()), (400, 100));
        let mut held = memory.tier.acquire_now(400);
        assert_eq!(memory.held_bytes(), 100);
        held.resize(460);
        assert_eq!(memory.held_bytes(), 40);
        held.resize(900);
        assert_eq!(memory.held_bytes(), 0);
    }
}
