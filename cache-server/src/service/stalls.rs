//! Batch streams whose readers take nothing, and the memory that they hold meanwhile.
//!
//! A stream may hold a message whatever the others do, so that none waits for others that do not move. But
//! there may be very many that do not move. So what they hold beyond the budget is bounded, less for those
//! whose reader has taken nothing yet, unless few of its address hold any; and where a stream waits for
//! memory, the connection of the reader that has stood still the longest is cut. A healthy one (a job that
//! validates) connects again and goes on at that very row.

use super::refusals::{Refusals, TurnedAway};
use crate::read::memory::{MemoryBudget, MemoryPermit};
use forebay_dataset::Urgency;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What streams may hold beyond the budget: those whose reader has taken nothing yet, and the others.
const BEYOND_BYTES: (u64, u64) = (48 << 20, 96 << 20);

/// Streams of one address that may hold messages before it counts as one with many.
const FEW: usize = 8;

/// After so long without a message taken a reader stands still.
const STILL: Duration = Duration::from_secs(10);

/// How often a stream that waits looks for such readers.
const LOOK: Duration = Duration::from_secs(1);

/// The batch streams of a node.
#[derive(Debug)]
pub struct Stalls {
    memory: Arc<MemoryBudget>,
    refusals: Arc<Refusals>,
    streams: Mutex<WatchedStreams>,
}

#[derive(Debug, Default)]
struct WatchedStreams {
    next: u64,
    all: HashMap<u64, WatchedStream>,
}

#[derive(Debug)]
struct WatchedStream {
    moved: Instant,
    /// Its messages that are not sent yet.
    messages: TaskTracker,
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
    messages: TaskTracker,
    has_sent: AtomicBool,
}

impl Stalls {
    /// None is open; their messages are of this memory.
    pub fn new(memory: Arc<MemoryBudget>, refusals: Arc<Refusals>) -> Arc<Self> {
        Arc::new(Self { memory, refusals, streams: Mutex::default() })
    }

    /// A stream begins.
    pub fn watch(self: &Arc<Self>, origin: StreamOrigin) -> StreamWatch {
        let messages = TaskTracker::new();
        // A tracker is waited for only once it is closed; it counts all the same.
        messages.close();
        let address = origin.address;
        let mut streams = self.streams.lock();
        let number = streams.next;
        streams.next += 1;
        let stream = WatchedStream { moved: Instant::now(), messages: messages.clone(), origin };
        streams.all.insert(number, stream);
        StreamWatch { stalls: self.clone(), number, address, messages, has_sent: AtomicBool::new(false) }
    }

    /// Cuts the connection whose reader has stood still the longest, if one does.
    fn cut_one(&self, still: Duration) {
        let streams = self.streams.lock();
        let held = streams
            .all
            .values()
            .filter(|stream| !stream.messages.is_empty() && !stream.origin.cut.is_cancelled());
        if let Some(stream) = held.min_by_key(|stream| stream.moved)
            && stream.moved.elapsed() >= still
        {
            tracing::debug!(
                "a reader that takes nothing is cut off: others wait for the memory that it holds"
            );
            self.refusals.count(TurnedAway::Stalled);
            stream.origin.cut.cancel();
        }
    }
}

impl StreamWatch {
    /// Memory for a message, with what says that the stream holds one.
    pub async fn permit(&self, bytes: u64) -> (MemoryPermit, impl Send + Sync + 'static) {
        let (memory, demand) = (&self.stalls.memory, Urgency::demand());
        let mut fair = pin!(memory.acquire(bytes, &demand));
        let held = loop {
            tokio::select! {
                biased;
                held = fair.as_mut() => break held,
                () = self.messages.wait(), if self.may_exceed() => break memory.acquire_now(bytes),
                () = sleep(LOOK) => self.stalls.cut_one(STILL),
            }
        };
        self.has_sent.store(true, Relaxed);
        if let Some(stream) = self.stalls.streams.lock().all.get_mut(&self.number) {
            stream.moved = Instant::now();
        }
        (held, self.messages.token())
    }

    fn may_exceed(&self) -> bool {
        let memory = &self.stalls.memory;
        let beyond = memory.used().saturating_sub(memory.limit());
        if beyond >= BEYOND_BYTES.0 && !self.has_sent.load(Relaxed) && !self.is_one_of_few() {
            return false;
        }
        beyond < BEYOND_BYTES.1
    }

    /// Whether few streams of its address hold messages.
    fn is_one_of_few(&self) -> bool {
        let streams = self.stalls.streams.lock();
        let of_address = streams.all.values().filter(|stream| stream.origin.address == self.address);
        of_address.filter(|stream| !stream.messages.is_empty()).take(FEW).count() < FEW
    }
}

impl Drop for StreamWatch {
    fn drop(&mut self) {
        self.stalls.streams.lock().all.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    const MESSAGE: u64 = 4 << 20;

    fn stalls(limit: u64) -> Arc<Stalls> {
        Stalls::new(MemoryBudget::new(limit), Arc::default())
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
        assert!(stalls.streams.lock().all.is_empty());
    }
}
