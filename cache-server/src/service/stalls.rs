//! Streams whose readers take nothing, and the memory that they hold meanwhile.
//!
//! A stream may hold a message whatever the others do, so that none waits for others that do not move. But
//! there may be very many that do not move. So what they hold beyond the budget is bounded: the least for
//! those whose reader has taken nothing yet, the most for those of whose address few hold any; and where a
//! stream waits for memory, the connection of the reader that has stood still the longest is cut. A healthy
//! one (a job that validates) connects again and goes on at that very row.
//!
//! The same where streams hold too many segments in memory, for want of another place. A stream of an object
//! holds as much memory from its beginning to its end.
//!
//! Their tickets, and the places of the rows of a step, have memory of their own. Very many streams of one
//! address may hold all of it: then a stream of an address that has few has some more at once.

use super::refusals::{Refusals, TurnedAway};
use crate::read::memory::{Memory, MemoryBudget, MemoryPermit};
use forebay_dataset::Urgency;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::future::ready;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// What streams may hold together beyond the budget when one more wants a message: one whose reader has taken
/// nothing yet, one whose reader has, and one of whose address few hold any.
const BEYOND_BYTES: (u64, u64, u64) = (48 << 20, 72 << 20, 96 << 20);

/// Streams of one address that may hold messages before it counts as one with many.
const FEW: usize = 8;

/// Streams of one address that may be open before it counts as one with many.
const FEW_STREAMS: usize = 16;

/// How many times the memory for tickets may be used, by those that have few streams.
const TICKETS_TIMES: u64 = 2;

/// After so long without a message taken a reader stands still.
const STILL: Duration = Duration::from_secs(10);

/// How often a stream that waits looks for such readers.
const LOOK: Duration = Duration::from_secs(1);

/// The streams of a node.
#[derive(Debug)]
pub struct Stalls {
    memory: Arc<MemoryBudget>,
    tickets: Arc<MemoryBudget>,
    /// Segments that have no other place, which streams hold as long as they stand.
    tier: Arc<MemoryBudget>,
    refusals: Arc<Refusals>,
    /// [`STILL`], but in tests.
    still: Duration,
    streams: Mutex<WatchedStreams>,
}

/// There may be thousands, all of which look each second: no look goes through them all.
#[derive(Debug, Default)]
struct WatchedStreams {
    next: u64,
    all: HashMap<u64, WatchedStream>,
    /// Those that hold messages and are not cut, by when they moved last.
    holding: BTreeSet<(Instant, u64)>,
    /// Of how many streams of an address there are messages, and how many there are.
    of_address: HashMap<Option<IpAddr>, usize>,
    open: HashMap<Option<IpAddr>, usize>,
}

#[derive(Debug)]
struct WatchedStream {
    moved: Instant,
    /// Its messages that are not sent yet.
    messages: usize,
    origin: StreamOrigin,
}

/// Where a stream comes from.
#[derive(Debug, Clone, Default)]
pub struct StreamOrigin {
    /// Ends its connection.
    pub cut: CancellationToken,
    pub address: Option<IpAddr>,
}

/// A stream, while it is open.
#[derive(Debug)]
pub struct StreamWatch {
    stalls: Arc<Stalls>,
    number: u64,
    address: Option<IpAddr>,
    /// Its messages, to wait until there are none.
    messages: TaskTracker,
    has_sent: AtomicBool,
}

/// A message that is not sent yet.
#[derive(Debug)]
pub struct MessageWatch {
    stalls: Arc<Stalls>,
    number: u64,
    _message: TaskTrackerToken,
}

impl Stalls {
    /// None is open. Their messages and tickets are of this memory.
    pub fn new(memory: &Memory, refusals: Arc<Refusals>) -> Arc<Self> {
        let (memory, tickets, tier) = (memory.streams.clone(), memory.tickets.clone(), memory.tier.clone());
        Arc::new(Self { memory, tickets, tier, refusals, still: STILL, streams: Mutex::default() })
    }

    /// A stream begins: until the watch is dropped it may be cut, if it stands still with messages.
    pub fn watch(self: &Arc<Self>, origin: StreamOrigin) -> StreamWatch {
        let messages = TaskTracker::new();
        // A tracker is waited for only once it is closed; it counts all the same.
        messages.close();
        let address = origin.address;
        let mut streams = self.streams.lock();
        let number = streams.next;
        streams.next += 1;
        let stream = WatchedStream { moved: Instant::now(), messages: 0, origin };
        streams.all.insert(number, stream);
        *streams.open.entry(address).or_default() += 1;
        StreamWatch { stalls: self.clone(), number, address, messages, has_sent: AtomicBool::new(false) }
    }

    /// Waits for memory that streams may hold, and looks for one that stands still meanwhile.
    pub async fn looking<T>(&self, waits: impl Future<Output = T>) -> T {
        let mut waits = pin!(waits);
        loop {
            tokio::select! {
                biased;
                done = waits.as_mut() => return done,
                () = sleep(LOOK) => self.cut_one(self.still),
            }
        }
    }

    /// Whether streams hold more segments in memory than the tier may go beyond its limit.
    fn holds_too_much(&self) -> bool {
        self.tier.used() > self.tier.limit() + self.tier.limit() / 4
    }

    /// Cuts the connection whose reader has stood still the longest, if one does.
    fn cut_one(&self, still: Duration) {
        let mut streams = self.streams.lock();
        while let Some((moved, number)) = streams.holding.first().copied()
            && moved.elapsed() >= still
        {
            streams.holding.pop_first();
            let Some(stream) = streams.all.get(&number) else { continue };
            // Others of its connection end with it.
            if stream.origin.cut.is_cancelled() {
                continue;
            }
            tracing::debug!(
                "a reader that takes nothing is cut off: others wait for the memory that it holds"
            );
            self.refusals.count(TurnedAway::Stalled);
            return stream.origin.cut.cancel();
        }
    }
}

impl WatchedStreams {
    /// A stream has one message more, and moved now.
    fn add_message(&mut self, number: u64) {
        let Some(stream) = self.all.get_mut(&number) else { return };
        if stream.messages == 0 {
            *self.of_address.entry(stream.origin.address).or_default() += 1;
        }
        stream.messages += 1;
        self.moved(number);
    }

    /// A stream that has messages moved now.
    fn moved(&mut self, number: u64) {
        let Some(stream) = self.all.get_mut(&number) else { return };
        self.holding.remove(&(stream.moved, number));
        stream.moved = Instant::now();
        if !stream.origin.cut.is_cancelled() {
            self.holding.insert((stream.moved, number));
        }
    }

    /// One of its messages is sent, or dropped.
    fn end_message(&mut self, number: u64) {
        let Some(stream) = self.all.get_mut(&number) else { return };
        stream.messages -= 1;
        if stream.messages == 0 {
            let (moved, address) = (stream.moved, stream.origin.address);
            self.holds_none(number, moved, address);
        }
    }

    fn end_stream(&mut self, number: u64) {
        let Some(stream) = self.all.remove(&number) else { return };
        one_less(&mut self.open, stream.origin.address);
        if stream.messages > 0 {
            self.holds_none(number, stream.moved, stream.origin.address);
        }
    }

    fn holds_none(&mut self, number: u64, moved: Instant, address: Option<IpAddr>) {
        self.holding.remove(&(moved, number));
        one_less(&mut self.of_address, address);
    }
}

/// Counts one less of an address.
fn one_less(counts: &mut HashMap<Option<IpAddr>, usize>, address: Option<IpAddr>) {
    if let Some(count) = counts.get_mut(&address) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&address);
        }
    }
}

impl StreamWatch {
    /// Memory for a message, with what says that the stream holds one.
    pub async fn permit(&self, bytes: u64) -> (MemoryPermit, MessageWatch) {
        if self.stalls.holds_too_much() {
            self.stalls.cut_one(self.stalls.still);
        }
        let (memory, demand) = (&self.stalls.memory, Urgency::demand());
        let mut fair = pin!(memory.acquire(bytes, &demand));
        let held = loop {
            tokio::select! {
                biased;
                held = fair.as_mut() => break held,
                () = self.messages.wait(), if self.may_exceed() => break memory.acquire_now(bytes),
                () = sleep(LOOK) => self.stalls.cut_one(self.stalls.still),
            }
        };
        self.has_sent.store(true, Relaxed);
        (held, self.hold())
    }

    /// The stream holds memory from now on, until the watch is dropped.
    pub fn hold(&self) -> MessageWatch {
        let (stalls, number) = (self.stalls.clone(), self.number);
        stalls.streams.lock().add_message(number);
        MessageWatch { stalls, number, _message: self.messages.token() }
    }

    /// Memory for a ticket, and for what the stream keeps beside its messages.
    pub async fn ticket_permit(&self, bytes: u64) -> MemoryPermit {
        let (tickets, demand) = (&self.stalls.tickets, Urgency::demand());
        let mut fair = pin!(tickets.acquire(bytes, &demand));
        loop {
            let is_few = self.stalls.streams.lock().open.get(&self.address).is_none_or(|n| *n <= FEW_STREAMS);
            let fits = tickets.used().saturating_add(bytes) <= TICKETS_TIMES * tickets.limit();
            tokio::select! {
                biased;
                held = fair.as_mut() => return held,
                () = ready(()), if is_few && fits => return tickets.acquire_now(bytes),
                () = sleep(LOOK) => {}
            }
        }
    }

    /// Bytes that a ticket, and what its stream keeps, may take at most.
    pub fn ticket_bytes_max(&self) -> u64 {
        self.stalls.tickets.limit()
    }

    fn may_exceed(&self) -> bool {
        let memory = &self.stalls.memory;
        let beyond = memory.used().saturating_sub(memory.limit());
        match (self.is_one_of_few(), self.has_sent.load(Relaxed)) {
            (true, _) => beyond < BEYOND_BYTES.2,
            (false, true) => beyond < BEYOND_BYTES.1,
            (false, false) => beyond < BEYOND_BYTES.0,
        }
    }

    /// Whether few streams of its address hold messages.
    fn is_one_of_few(&self) -> bool {
        self.stalls.streams.lock().of_address.get(&self.address).is_none_or(|count| *count < FEW)
    }
}

impl MessageWatch {
    /// The reader took something, though not all of it.
    pub fn moved(&self) {
        self.stalls.streams.lock().moved(self.number);
    }
}

impl Drop for StreamWatch {
    fn drop(&mut self) {
        self.stalls.streams.lock().end_stream(self.number);
    }
}

impl Drop for MessageWatch {
    fn drop(&mut self) {
        self.stalls.streams.lock().end_message(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    const MESSAGE: u64 = 4 << 20;

    fn stalls(limit: u64) -> Arc<Stalls> {
        let streams = MemoryBudget::new(limit);
        Stalls::new(&Memory { streams, ..Memory::new(1 << 20) }, Arc::default())
    }

    #[tokio::test]
    async fn who_has_few_streams_gets_a_ticket_whatever_others_hold() {
        let stalls = stalls(MESSAGE);
        let limit = stalls.tickets.limit();
        let many: Vec<_> = (0..FEW_STREAMS + 4).map(|_| stalls.watch(StreamOrigin::default())).collect();
        let held = many[0].ticket_permit(limit).await;
        assert!(many[1].ticket_permit(1).now_or_never().is_none(), "it waits");
        let origin = StreamOrigin { address: Some([10, 0, 0, 1].into()), ..StreamOrigin::default() };
        let few = stalls.watch(origin);
        let own = few.ticket_permit(limit / 2).now_or_never().expect("some more");
        assert!(few.ticket_permit(limit).now_or_never().is_none(), "but not without an end");
        drop(held);
        let held = many[1].ticket_permit(limit / 2).now_or_never().expect("there is room again");
        drop((held, own, many, few));
        assert!(stalls.streams.lock().open.is_empty() && stalls.tickets.used() == 0);
    }

    #[tokio::test]
    async fn a_stream_may_hold_one_message_until_there_are_very_many() {
        let stalls = stalls(MESSAGE);
        let new = || stalls.watch(StreamOrigin::default());
        let mover = new();
        drop(mover.permit(MESSAGE).await);
        let streams: Vec<_> = (0..100).map(|_| new()).collect();
        let held: Vec<_> =
            streams.iter().filter_map(|stream| stream.permit(MESSAGE).now_or_never()).collect();
        let most = (MESSAGE + BEYOND_BYTES.0) / MESSAGE;
        assert_eq!(held.len() as u64, most, "of {} streams", streams.len());
        assert!(mover.permit(MESSAGE).now_or_never().is_some(), "it moves: there is more for it");
        let stranger = StreamOrigin { address: Some([10, 0, 0, 1].into()), ..StreamOrigin::default() };
        let others: Vec<_> = (0..20).map(|_| stalls.watch(stranger.clone())).collect();
        let of_others: Vec<_> =
            others.iter().filter_map(|other| other.permit(MESSAGE).now_or_never()).collect();
        assert_eq!(of_others.len(), FEW, "another address has some of its own");
        drop(of_others);
        let one = mover.permit(MESSAGE).await;
        let two = mover.permit(MESSAGE).now_or_never();
        assert!(two.is_none(), "but only one at a time");
        drop((one, held));
        assert_eq!(stalls.memory.used(), 0);
    }

    #[tokio::test]
    async fn the_reader_that_stands_still_the_longest_is_cut() {
        let stalls = stalls(MESSAGE);
        let cuts = [0; 3].map(|_| CancellationToken::new());
        let [first, second, idle] = &cuts;
        let watches =
            [first, second, idle].map(|cut| stalls.watch(StreamOrigin { cut: cut.clone(), address: None }));
        let _held = (watches[1].permit(MESSAGE).await, watches[0].permit(MESSAGE).await);
        stalls.cut_one(STILL);
        assert!(cuts.iter().all(|cut| !cut.is_cancelled()), "none has stood still for long");
        stalls.cut_one(Duration::ZERO);
        assert!(second.is_cancelled() && !first.is_cancelled());
        stalls.cut_one(Duration::ZERO);
        assert!(first.is_cancelled());
        stalls.cut_one(Duration::ZERO);
        assert!(!idle.is_cancelled(), "it holds nothing");
        drop(watches);
        let streams = stalls.streams.lock();
        assert!(streams.all.is_empty() && streams.holding.is_empty() && streams.of_address.is_empty());
    }

    #[tokio::test]
    async fn a_stream_of_an_object_stands_still_if_nothing_of_it_is_taken() {
        let stalls = stalls(MESSAGE);
        let cuts = [0; 2].map(|_| CancellationToken::new());
        let watches =
            cuts.each_ref().map(|cut| stalls.watch(StreamOrigin { cut: cut.clone(), address: None }));
        let held = watches.each_ref().map(StreamWatch::hold);
        held[0].moved();
        stalls.cut_one(Duration::ZERO);
        assert!(cuts[1].is_cancelled() && !cuts[0].is_cancelled());
        drop((held, watches));
        assert!(stalls.streams.lock().holding.is_empty());
    }

    #[tokio::test]
    async fn who_waits_has_one_cut_and_so_have_too_many_segments_in_memory() {
        for waits in [true, false] {
            let mut stalls = stalls(MESSAGE);
            Arc::get_mut(&mut stalls).unwrap().still = Duration::ZERO;
            let cut = CancellationToken::new();
            let watch = stalls.watch(StreamOrigin { cut: cut.clone(), address: None });
            let held = watch.permit(MESSAGE).await;
            let limit = stalls.tier.limit();
            let mut segments = stalls.tier.acquire_now(limit + limit / 4);
            if waits {
                let memory = stalls.memory.clone();
                let ended = async {
                    cut.cancelled().await;
                    drop(held);
                };
                let demand = Urgency::demand();
                drop(tokio::join!(stalls.looking(memory.acquire(MESSAGE, &demand)), ended));
            } else {
                let other = stalls.watch(StreamOrigin::default());
                other.permit(1).now_or_never();
                assert!(!cut.is_cancelled(), "as much as may be");
                segments.resize(limit + limit / 4 + 1);
                other.permit(1).now_or_never();
            }
            assert!(cut.is_cancelled());
        }
    }

    #[tokio::test]
    async fn streams_that_end_before_their_messages_are_forgotten() {
        let stalls = stalls(MESSAGE);
        let (one, other) = (stalls.watch(StreamOrigin::default()), stalls.watch(StreamOrigin::default()));
        let (first, second) = (one.permit(MESSAGE).await, other.permit(MESSAGE).await);
        assert_eq!(stalls.streams.lock().of_address[&None], 2);
        drop(second);
        assert_eq!(stalls.streams.lock().of_address[&None], 1);
        drop(one);
        drop(first);
        let _third = other.permit(MESSAGE).await;
        {
            let streams = stalls.streams.lock();
            assert_eq!((streams.holding.len(), streams.of_address[&None]), (1, 1));
        }
        stalls.cut_one(Duration::ZERO);
        assert!(stalls.streams.lock().holding.is_empty(), "one is cut once");
    }
}
