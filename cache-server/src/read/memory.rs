//! The node's memory: one number of bytes, and what it is divided into. Each part is enforced.
//!
//! | part | share | what it holds |
//! |---|---|---|
//! | fetches | 1/16 | compressed bytes of segments that are fetched ahead of any demand |
//! | fills | 2/8 | segments being filled otherwise; prefetches use at most 5/8 of it |
//! | tier | 2/8 | segments served without being stored, until no stream needs them; and see below |
//! | streams | 5/64 | messages made but not sent; a stream may hold one whatever the others do |
//! | pool | 1/64 | buffers of messages and of copies that were sent, to be used again |
//! | tickets | 3/128 | tickets, and the places of the rows of the steps that streams are at; and see below |
//! | requests | 1/128 | other requests while they come and are begun |
//! | maps | 2/8 | mapped segment files whose pages are in the process's memory: a window of 16 segments |
//! | shared | 1/16 | memory shared with readers on the node's host |
//!
//! A read that somebody waits for takes all that a segment costs from the fills, before it fetches
//! anything. A prefetch takes memory for the compressed bytes first, and for all of it once they are here:
//! more segments are then fetched at once over slow connections. What has memory of the fills waits for no
//! other memory, so none wait for each other in a circle.
//!
//! Segments for which there is no other place go beyond the tier's limit: by a quarter of it, and one segment
//! for each stream. Tickets of addresses with few streams go beyond theirs, to twice as much at most.
//!
//! What this does not count: footers, manifests and the index of the disk cache, which have bounds of their
//! own; and of each request that brings several segments the bytes of those that have no memory yet, about as
//! much as the fetches may have.

use forebay_dataset::pool::Pool;
use forebay_dataset::{Cost, PrioritySemaphore, SemaphorePermit, Urgency};
use parking_lot::Mutex;
use std::sync::Arc;

/// Bytes of memory that one purpose may use at once.
pub type MemoryBudget = PrioritySemaphore;

/// Bytes of memory in use.
pub type MemoryPermit = SemaphorePermit;

/// Memory for fills, of which prefetches may use a part.
#[derive(Debug, Clone)]
pub struct FillBudget {
    pub all: Arc<MemoryBudget>,
    pub prefetch: Arc<MemoryBudget>,
}

/// Memory of a fill.
#[derive(Debug)]
pub struct FillPermit {
    memory: MemoryPermit,
    /// Its part of what prefetches may use.
    share: Option<MemoryPermit>,
}

/// Memory of a segment that comes from the object store.
pub struct FetchMemory<'a> {
    fills: &'a FillBudget,
    urgency: &'a Urgency,
    /// Bytes for all that the segment costs.
    cost: u64,
    /// For the bytes that are fetched ahead of any demand.
    fetching: Mutex<Option<MemoryPermit>>,
    /// For all of it, where somebody waited from the start.
    filling: Mutex<Option<FillPermit>>,
}

impl FillBudget {
    /// Waits for memory. A prefetch waits for its share first; as soon as somebody waits for the segment it
    /// needs none.
    pub async fn acquire(&self, bytes: u64, urgency: &Urgency) -> FillPermit {
        let share = unless_raised(&self.prefetch, bytes, urgency).await;
        FillPermit { memory: self.all.acquire(bytes, urgency).await, share }
    }

    /// Waits for memory for a copy that another node has begun to send, which is there soon.
    pub async fn acquire_for_copy(&self, bytes: u64, urgency: &Urgency) -> FillPermit {
        FillPermit { memory: self.all.acquire(bytes, urgency).await, share: None }
    }
}

impl FillPermit {
    /// How much it is.
    pub fn bytes(&self) -> u64 {
        self.memory.weight()
    }

    /// Counts what the fill really uses, beyond the limit if need be.
    pub fn resize(&mut self, bytes: u64) {
        self.memory.resize(bytes);
        if let Some(share) = &mut self.share {
            share.resize(bytes);
        }
    }
}

impl FetchMemory<'_> {
    /// Waits for memory for all that the segment costs, now that its bytes are here.
    pub async fn decoding(&self) -> FillPermit {
        let taken = self.filling.lock().take();
        let filling = match taken {
            Some(filling) => filling,
            None => self.fills.acquire(self.cost, self.urgency).await,
        };
        *self.fetching.lock() = None;
        filling
    }
}

/// A permit, if nobody waits for the segment before it is granted.
async fn unless_raised(budget: &Arc<MemoryBudget>, bytes: u64, urgency: &Urgency) -> Option<MemoryPermit> {
    if urgency.is_demand() {
        return None;
    }
    tokio::select! {
        biased;
        () = urgency.raised() => None,
        permit = budget.acquire(bytes, urgency) => Some(permit),
    }
}

/// The parts of a node's memory.
#[derive(Debug, Clone)]
pub struct Memory {
    /// The node's `--memory-bytes`, which the budgets divide.
    pub limit_bytes: u64,
    /// Compressed bytes that are fetched ahead of any demand.
    pub fetches: Arc<MemoryBudget>,
    /// Decoding, and fetching for those who wait.
    pub fills: FillBudget,
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
            fetches: MemoryBudget::new(eighths(1) / 2),
            fills: FillBudget {
                all: MemoryBudget::new(eighths(2)),
                prefetch: MemoryBudget::new(eighths(2) / 8 * 5),
            },
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

    /// Bytes of the tier that may be set aside for segments while they are fetched: segments that are there
    /// already need the rest.
    pub fn unread_bytes(&self) -> u64 {
        self.tier.limit() / 8 * 3
    }

    /// Waits for the memory that a segment takes while it is fetched.
    pub async fn fetching<'a>(&'a self, cost: &Cost, urgency: &'a Urgency) -> FetchMemory<'a> {
        let (fills, total) = (&self.fills, cost.total());
        let fetching = unless_raised(&self.fetches, cost.fetching(), urgency).await;
        let filling = match &fetching {
            Some(_) => None,
            None => Some(fills.acquire(total, urgency).await),
        };
        let (fetching, filling) = (Mutex::new(fetching), Mutex::new(filling));
        FetchMemory { fills, urgency, cost: total, fetching, filling }
    }

    /// Bytes that all fills use.
    pub fn fills_used(&self) -> u64 {
        self.fetches.used() + self.fills.all.used()
    }

    /// The part of them that prefetches use.
    pub fn prefetch_used(&self) -> u64 {
        self.fetches.used() + self.fills.prefetch.used()
    }

    /// Whether a read waits for memory, or a prefetch whose bytes are here: more of them need not be fetched
    /// yet.
    pub fn is_short(&self) -> bool {
        self.fills.all.is_short() || self.fills.prefetch.is_short()
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

    /// Bytes of the plan that are made ready ahead of the fastest stream, for all jobs together: as much as
    /// the tier holds, or up to all of the memory where the disk cache has as much as `free` for them.
    pub fn ahead_bytes(&self, free: u64) -> u64 {
        free.min(self.limit_bytes).max(self.tier.limit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn prefetches_use_a_part_of_the_memory_for_fills() {
        let memory = Memory::new(1600);
        let (fills, demand, prefetch) = (&memory.fills, Urgency::demand(), Urgency::prefetch());
        assert_eq!((memory.fetches.limit(), fills.all.limit(), fills.prefetch.limit()), (100, 400, 250));
        let ahead = fills.acquire(200, &prefetch).now_or_never().unwrap();
        assert!(fills.acquire(51, &prefetch).now_or_never().is_none(), "50 more at most");
        let needed = fills.acquire(200, &demand).now_or_never().unwrap();
        assert_eq!((memory.fills_used(), memory.prefetch_used()), (400, 200));
        // One for which somebody waits needs no share, but memory.
        let hurried = Urgency::prefetch();
        assert!(!memory.is_short());
        let mut waits = Box::pin(fills.acquire(300, &hurried));
        assert!((&mut waits).now_or_never().is_none() && fills.prefetch.is_short() && memory.is_short());
        hurried.raise();
        assert!((&mut waits).now_or_never().is_none() && !fills.prefetch.is_short() && memory.is_short());
        drop((ahead, needed));
        let mut held = waits.now_or_never().unwrap();
        held.resize(350);
        assert_eq!((held.bytes(), memory.fills_used(), memory.prefetch_used()), (350, 350, 0));
    }

    #[test]
    fn what_is_fetched_ahead_takes_the_rest_when_it_is_here() {
        let memory = Memory::new(1600);
        let mut cost = Cost::default();
        (cost.fetched, cost.decoded) = (40, 100);
        let used = || (memory.fetches.used(), memory.fills.all.used(), memory.fills.prefetch.used());
        let (demand, prefetch, hurried) = (Urgency::demand(), Urgency::prefetch(), Urgency::prefetch());
        let ahead = [(); 2].map(|()| memory.fetching(&cost, &prefetch).now_or_never().unwrap());
        assert_eq!(used(), (80, 0, 0));
        let mut third = Box::pin(memory.fetching(&cost, &hurried));
        assert!((&mut third).now_or_never().is_none(), "20 bytes are left");
        // Nobody whom a reader waits for waits for those that are fetched ahead.
        hurried.raise();
        let third = third.now_or_never().unwrap();
        let needed = memory.fetching(&cost, &demand).now_or_never().unwrap();
        assert_eq!(used(), (80, 280, 0));
        let held = [&third, &needed].map(|memory| memory.decoding().now_or_never().unwrap());
        assert_eq!(used(), (80, 280, 0), "they have all of it");
        assert!(ahead[0].decoding().now_or_never().is_none(), "120 bytes are left");
        assert_eq!(used().0, 80);
        drop(held);
        let held = ahead[0].decoding().now_or_never().unwrap();
        assert_eq!((held.bytes(), used()), (140, (40, 140, 140)));
    }

    #[test]
    fn streams_hold_less_the_more_the_tier_is_over_its_limit() {
        let memory = Memory::new(1600);
        assert_eq!((memory.tier.limit(), memory.held_bytes()), (400, 100));
        assert_eq!(
            (memory.unread_bytes(), [0, 1000, 9999].map(|free| memory.ahead_bytes(free))),
            (150, [400, 1000, 1600])
        );
        let mut held = memory.tier.acquire_now(400);
        assert_eq!(memory.held_bytes(), 100);
        held.resize(460);
        assert_eq!(memory.held_bytes(), 40);
        held.resize(900);
        assert_eq!(memory.held_bytes(), 0);
    }
}
