//! Who is still there.
//!
//! When a collective fails, c10d says that a connection broke or that time ran out, seldom who is to blame. So every
//! rank leaves a sign of life in the store four times a second, together with how many collectives it has begun. A
//! rank whose operation failed watches the others' signs for a while: those that stand still belong to the dead, and
//! a lower count to one that lives but has not come. The first to find out writes it down for the rest, for by the
//! time the last rank notices, the first may have ended because of it.
//!
//! It names, and decides nothing: a rank that is only silent loses nothing by it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use crate::ffi::FfiResult;
use crate::store::Store;

/// How often a rank gives a sign of life.
const BEAT: Duration = Duration::from_millis(250);
/// How often the others' signs are read while they are watched.
const LOOK: Duration = Duration::from_millis(100);
/// How long the thread has to end with its group; it ends at once unless the store has stopped answering.
const END: Duration = Duration::from_secs(1);
/// What the first rank to find out leaves for the others.
const LOST_KEY: &str = "forebay/lost";

/// What watching the others for a while has shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Absent {
    /// No sign of life.
    pub dead: Vec<usize>,
    /// Alive, but not come to as many collectives as this rank.
    pub behind: Vec<usize>,
    /// Another rank has found this one missing.
    pub given_up: bool,
}

impl Absent {
    /// The ranks to blame.
    pub fn ranks(&self) -> &[usize] {
        if self.dead.is_empty() { &self.behind } else { &self.dead }
    }
}

/// A question to the thread, and where its answer goes.
struct Ask {
    timeout: Duration,
    answer: SyncSender<FfiResult<Absent>>,
}

/// This rank's signs of life, given by a thread of its own as long as this lives.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    begun: Arc<AtomicU64>,
    ask: Option<SyncSender<Ask>>,
    ended: Receiver<()>,
}

impl Heartbeat {
    /// Gives the first sign at once. `store` is a connection that nobody else waits on.
    pub fn start(store: Store, rank: usize, world: usize) -> FfiResult<Self> {
        let begun = Arc::new(AtomicU64::new(0));
        let mut watch =
            Watch { store, rank, world, begun: begun.clone(), beats: 0, lost: None, broken: None };
        watch.beat()?;
        let (ask, asked) = sync_channel(1);
        let (end, ended) = sync_channel(1);
        let spawned = std::thread::Builder::new().name("forebay-heartbeat".into()).spawn(move || {
            watch.run(&asked);
            // Before the thread ends, not after: whoever waits wants the store's connection closed.
            drop(watch);
            let _ = end.send(());
        });
        spawned.map_err(|error| format!("start a thread: {error}"))?;
        Ok(Self { begun, ask: Some(ask), ended })
    }

    /// This rank begins a collective.
    pub fn begin(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// Watches the others until all have shown life, at most for `timeout`. An error: the store does not answer.
    pub fn absent(&self, timeout: Duration) -> FfiResult<Absent> {
        let gone = || "the store does not answer".to_owned();
        let (answer, answered) = sync_channel(1);
        let ask = self.ask.as_ref().ok_or_else(gone)?;
        ask.try_send(Ask { timeout, answer }).map_err(|_| gone())?;
        answered.recv_timeout(timeout + END).map_err(|_| gone())?
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.ask = None;
        // A thread that outlives `main` could meet libtorch's globals as they are torn down. One that hangs in a
        // request is left alone all the same.
        let _ = self.ended.recv_timeout(END);
    }
}

/// The thread's side.
struct Watch {
    store: Store,
    rank: usize,
    world: usize,
    begun: Arc<AtomicU64>,
    beats: u64,
    /// What some rank has found out, once it has.
    lost: Option<Vec<usize>>,
    /// Why the store did not answer: a broken connection stays broken.
    broken: Option<String>,
}

impl Watch {
    fn run(&mut self, asked: &Receiver<Ask>) {
        loop {
            match asked.recv_timeout(BEAT) {
                // A failure shows when somebody asks.
                Err(RecvTimeoutError::Timeout) => drop(self.beat()),
                Err(RecvTimeoutError::Disconnected) => return,
                // Whoever asked may have given up waiting.
                Ok(ask) => drop(ask.answer.send(self.examine(ask.timeout))),
            }
        }
    }

    /// Gives a sign of life, and remembers what others have found out, while the store is there to tell.
    fn beat(&mut self) -> FfiResult<()> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        self.try_beat().inspect_err(|text| self.broken = Some(text.clone()))
    }

    fn try_beat(&mut self) -> FfiResult<()> {
        self.beats += 1;
        let sign = format!("{} {}", self.beats, self.begun.load(Ordering::Relaxed));
        self.store.handle.set(&beat_key(self.rank), sign.as_bytes())?;
        if self.lost.is_none() && self.store.handle.contains(LOST_KEY)? {
            self.lost = Some(ranks_of(&self.store.handle.get(LOST_KEY)?));
        }
        Ok(())
    }

    fn examine(&mut self, timeout: Duration) -> FfiResult<Absent> {
        let deadline = Instant::now() + timeout;
        let others = (0..self.world).filter(|rank| *rank != self.rank);
        let mut unseen: Vec<(usize, Option<Sign>)> = others.map(|rank| (rank, None)).collect();
        let mut absent = Absent::default();
        loop {
            let beaten = self.beat();
            if let Some(lost) = &self.lost {
                return Ok(self.told(lost));
            }
            beaten?;
            let mut still = Vec::new();
            for (rank, first) in unseen {
                match (first, self.sign(rank)?) {
                    (Some(first), Some(now)) if first.beats != now.beats => {
                        if now.begun < self.begun.load(Ordering::Relaxed) {
                            absent.behind.push(rank);
                        }
                    }
                    (first, now) => still.push((rank, first.or(now))),
                }
            }
            unseen = still;
            if unseen.is_empty() || Instant::now() >= deadline {
                break;
            }
            std::thread::sleep(LOOK);
        }
        absent.dead = unseen.into_iter().map(|(rank, _)| rank).collect();
        if !absent.ranks().is_empty() {
            self.tell(absent.ranks());
        }
        Ok(absent)
    }

    fn told(&self, lost: &[usize]) -> Absent {
        let given_up = lost.contains(&self.rank);
        let dead = lost.iter().copied().filter(|rank| *rank != self.rank && *rank < self.world).collect();
        Absent { dead, behind: Vec::new(), given_up }
    }

    /// Writes down who is missing. The store may be in this very process, which will end over it: the others get
    /// two beats to read it.
    fn tell(&self, ranks: &[usize]) {
        let text: Vec<_> = ranks.iter().map(usize::to_string).collect();
        if self.store.handle.set(LOST_KEY, text.join(" ").as_bytes()).is_ok() {
            std::thread::sleep(2 * BEAT);
        }
    }

    fn sign(&self, rank: usize) -> FfiResult<Option<Sign>> {
        let key = beat_key(rank);
        if !self.store.handle.contains(&key)? {
            return Ok(None);
        }
        let numbers = ranks_of(&self.store.handle.get(&key)?);
        let &[beats, begun] = numbers.as_slice() else { return Ok(None) };
        Ok(Some(Sign { beats, begun: begun as u64 }))
    }
}

/// What a rank leaves in the store.
struct Sign {
    beats: usize,
    begun: u64,
}

fn beat_key(rank: usize) -> String {
    format!("forebay/beat/{rank}")
}

/// The numbers in a value of the store; what is none is left out.
fn ranks_of(value: &[u8]) -> Vec<usize> {
    String::from_utf8_lossy(value).split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    struct Ranks {
        server: Store,
    }

    impl Ranks {
        fn new() -> Self {
            Self { server: Store::serve(1, TIMEOUT).unwrap() }
        }

        fn start(&self, rank: usize) -> Heartbeat {
            let port = self.server.port().unwrap();
            let store = Store::tcp("127.0.0.1", port, 1, false, TIMEOUT).unwrap();
            Heartbeat::start(store, rank, 3).unwrap()
        }
    }

    #[test]
    fn nobody_is_missing_while_all_beat() {
        let ranks = Ranks::new();
        let all: Vec<_> = (0..3).map(|rank| ranks.start(rank)).collect();
        all.iter().for_each(Heartbeat::begin);
        assert_eq!(all[1].absent(TIMEOUT).unwrap(), Absent::default());
    }

    #[test]
    fn the_one_that_stopped_is_named_and_the_others_learn_it() {
        let ranks = Ranks::new();
        let (first, second, third) = (ranks.start(0), ranks.start(1), ranks.start(2));
        drop(second);
        let absent = first.absent(Duration::from_secs(2)).unwrap();
        assert_eq!((absent.ranks(), absent.given_up), (&[1][..], false));
        drop(first);
        // It would take the whole timeout by itself, and find two.
        assert_eq!(third.absent(TIMEOUT).unwrap().dead, [1]);
        assert!(ranks.start(1).absent(TIMEOUT).unwrap().given_up);
    }

    #[test]
    fn the_one_that_has_not_come_is_named() {
        let ranks = Ranks::new();
        let all: Vec<_> = (0..3).map(|rank| ranks.start(rank)).collect();
        all[0].begin();
        all[2].begin();
        let absent = all[0].absent(TIMEOUT).unwrap();
        assert_eq!((absent.behind, absent.dead), (vec![1], vec![]));
    }

    #[test]
    fn a_store_that_is_gone_is_an_error() {
        let ranks = Ranks::new();
        let first = ranks.start(0);
        drop(ranks);
        assert!(first.absent(Duration::from_secs(1)).is_err());
    }
}
