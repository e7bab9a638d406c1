//! Who is still there.
//!
//! When a collective fails, c10d says that a connection broke or that time ran out, seldom who is to blame.
//! So every rank leaves a sign of life in the store four times a second, together with how many collectives
//! it has begun. A rank whose operation failed watches the others' signs for a while: those that stand still
//! belong to the dead, and a lower count to one that lives but has not come. The first to find out writes it
//! down for the rest, for by the time the last rank notices, the first may have ended because of it.
//!
//! It names, and decides nothing: a rank that is only silent loses nothing by it. Where no operation would
//! ever fail, because the host waits for a GPU that waits for a peer, a rank can have the others watched
//! ([`Heartbeat::watch`]): each rank looks at the next one's signs, so that the store has as little to do on
//! many ranks as on few. A request to a store that froze, or vanished with its machine, never returns: a
//! second thread sees that the signs have stopped.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use crate::error::Failure;
use crate::ffi::FfiResult;
use crate::store::Store;

/// How often a rank gives a sign of life.
const BEAT: Duration = Duration::from_millis(250);
/// How often the others' signs are read while they are watched.
const LOOK: Duration = Duration::from_millis(100);
/// Looks at least, however late it is then: a rank that stood still with the whole machine gets two beats.
const LOOKS: u32 = 6;
/// How long the thread has to end with its group; it ends at once unless the store has stopped answering.
const END: Duration = Duration::from_secs(3);
/// How long ranks that seem lost have to show life after all, and the others to be looked at as well.
const EXAMINE: Duration = Duration::from_secs(2);
/// What the first rank to find out leaves for the others: [`DEAD`] or [`BEHIND`], and the ranks.
const LOST_KEY: &str = "forebay/lost";
const DEAD: &str = "dead";
const BEHIND: &str = "behind";

/// What watching the others for a while has shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Absent {
    /// The ranks to blame.
    pub ranks: Vec<usize>,
    /// They give no sign of life; else they live, but have not come to as many collectives as this rank.
    pub dead: bool,
    /// Another rank has found this one missing.
    pub given_up: bool,
}

impl Absent {
    fn dead(ranks: Vec<usize>) -> Self {
        Self { dead: !ranks.is_empty(), ranks, given_up: false }
    }

    /// As the first to find out leaves it for the others.
    fn note(&self) -> String {
        let kind = if self.dead { DEAD } else { BEHIND };
        self.ranks.iter().fold(kind.to_owned(), |note, rank| format!("{note} {rank}"))
    }

    /// A note as `rank` of `world` reads it.
    fn noted(note: &[u8], rank: usize, world: usize) -> Self {
        let mut ranks = numbers(note);
        let given_up = ranks.contains(&rank);
        ranks.retain(|other| *other != rank && *other < world);
        Self { ranks, dead: note.starts_with(DEAD.as_bytes()), given_up }
    }
}

/// What the caller and the threads know in common.
#[derive(Default)]
struct Shared {
    /// Collectives that this rank has begun.
    begun: AtomicU64,
    /// Signs of life that the store has taken.
    signs: AtomicU64,
    /// Whom to tell of ranks that were silent for so long, once, unless it is off by then.
    alarm: Mutex<Option<(Duration, Alarm)>>,
}

type Alarm = Box<dyn FnOnce(Absent) + Send>;

impl Shared {
    fn silence(&self) -> Option<Duration> {
        self.alarm.lock().as_ref().map(|(silence, _)| *silence)
    }

    fn sound(&self, absent: Absent) {
        // Not under the lock: it may end the process, or take its time.
        let alarm = self.alarm.lock().take();
        if let Some((_, alarm)) = alarm {
            alarm(absent);
        }
    }

    /// Sounds the alarm if this rank's own signs stop for as long, in time that passes for this process too:
    /// the store is gone, and with it the rank that served it.
    fn keep(&self, served_by: Option<usize>) {
        let (mut last, mut still) = (0, Duration::ZERO);
        while let Some(silence) = self.silence() {
            let now = self.signs.load(Ordering::Relaxed);
            still = if now == last { still + BEAT } else { Duration::ZERO };
            last = now;
            if still >= silence {
                self.sound(Absent::dead(served_by.into_iter().collect()));
            }
            std::thread::sleep(BEAT);
        }
    }
}

/// A question to the thread that holds the store.
struct Ask {
    /// About all ranks, or one, which nobody else is told then.
    of: Option<usize>,
    timeout: Duration,
    answer: SyncSender<FfiResult<Absent>>,
}

/// This rank's signs of life, given by a thread of its own as long as this lives.
pub(crate) struct Heartbeat {
    shared: Arc<Shared>,
    /// The rank that serves the store, if another one does.
    served_by: Option<usize>,
    ask: Option<SyncSender<Ask>>,
    ended: Receiver<()>,
}

impl std::fmt::Debug for Heartbeat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Heartbeat").field("served_by", &self.served_by).finish_non_exhaustive()
    }
}

impl Heartbeat {
    /// Gives the first sign at once. `store` is a connection that nobody else waits on.
    pub fn start(store: Store, rank: usize, world: usize) -> FfiResult<Self> {
        let shared = Arc::new(Shared::default());
        let served_by = store.served_by.filter(|server| *server != rank);
        let mut pulse = Pulse {
            store,
            rank,
            world,
            shared: shared.clone(),
            beats: 0,
            lost: None,
            broken: None,
            last: None,
        };
        pulse.beat()?;
        let (ask, asked) = sync_channel(4);
        let (end, ended) = sync_channel(1);
        let spawned = std::thread::Builder::new().name("forebay-heartbeat".into()).spawn(move || {
            pulse.run(&asked);
            // Before the thread ends, not after: the waiting caller wants the store's connection closed.
            drop(pulse);
            let _ = end.send(());
        });
        spawned.map_err(|error| Failure::own(format!("start a thread: {error}")))?;
        Ok(Self { shared, served_by, ask: Some(ask), ended })
    }

    /// This rank begins a collective.
    pub fn begin(&self) {
        self.shared.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// Watches the others, or `of` alone, until all have shown life, at most for `timeout`. An error: the
    /// store does not answer. A caller that asks about all has failed, and is not to be alarmed as well.
    pub fn absent(&self, of: Option<usize>, timeout: Duration) -> FfiResult<Absent> {
        let gone = || Failure::peers("the store does not answer");
        if of.is_none() {
            self.rest();
        }
        let (answer, answered) = sync_channel(1);
        let asked = self.ask.as_ref().and_then(|ask| ask.try_send(Ask { of, timeout, answer }).ok());
        asked.ok_or_else(gone)?;
        // Who stood still with the whole machine finds the answer the second time.
        let again = |_| answered.recv_timeout(END);
        answered.recv_timeout(timeout + END).or_else(again).map_err(|_| gone())?
    }

    /// Calls `alarm`, once and on a thread of its own, when a rank has given no sign of life for `silence`,
    /// or another rank says so; and when the store has not answered for as long, with the rank that served
    /// it, if one did.
    pub fn watch(&self, silence: Duration, alarm: Alarm) {
        *self.shared.alarm.lock() = Some((silence, alarm));
        let (shared, served_by) = (self.shared.clone(), self.served_by);
        // Without it the store alone is not watched.
        let _ =
            std::thread::Builder::new().name("forebay-watch".into()).spawn(move || shared.keep(served_by));
    }

    /// Ends [`Heartbeat::watch`].
    pub fn rest(&self) {
        drop(self.shared.alarm.lock().take());
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.rest();
        self.ask = None;
        // A thread that outlives `main` could meet libtorch's globals as they are torn down. One that hangs
        // in a request is left alone all the same.
        let _ = self.ended.recv_timeout(END);
    }
}

/// The thread's side.
struct Pulse {
    store: Store,
    rank: usize,
    world: usize,
    shared: Arc<Shared>,
    beats: u64,
    /// What some rank has found out, once it has.
    lost: Option<Absent>,
    /// Why the store did not answer: a broken connection stays broken.
    broken: Option<Failure>,
    /// The watched rank's last sign, and the number of this rank's own beat when it came. This rank's beats
    /// are the clock: while it is frozen itself, or the store is, nobody is silent.
    last: Option<(usize, u64)>,
}

impl Pulse {
    fn run(&mut self, asked: &Receiver<Ask>) {
        loop {
            match asked.recv_timeout(BEAT) {
                Err(RecvTimeoutError::Timeout) => {
                    // A failure shows when somebody asks, or watches.
                    let _ = self.beat();
                    self.look();
                }
                Err(RecvTimeoutError::Disconnected) => return,
                // The caller may have given up waiting.
                Ok(Ask { of, timeout, answer }) => drop(answer.send(self.examine(of, timeout))),
            }
        }
    }

    /// Gives a sign of life, and remembers what others have found out, while the store is there to tell.
    fn beat(&mut self) -> FfiResult<()> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        self.try_beat().inspect_err(|failure| self.broken = Some(failure.clone()))
    }

    fn try_beat(&mut self) -> FfiResult<()> {
        self.beats += 1;
        let sign = format!("{} {}", self.beats, self.shared.begun.load(Ordering::Relaxed));
        self.store.handle.set(&beat_key(self.rank), sign.as_bytes())?;
        if self.lost.is_none() && self.store.handle.contains(LOST_KEY)? {
            let note = self.store.handle.get(LOST_KEY)?;
            self.lost = Some(Absent::noted(&note, self.rank, self.world));
        }
        self.shared.signs.store(self.beats, Ordering::Relaxed);
        Ok(())
    }

    /// Looks after the next rank, if that is wanted, and sounds the alarm if it must be.
    fn look(&mut self) {
        match self.shared.silence() {
            Some(silence) => self.loss(silence).into_iter().for_each(|lost| self.shared.sound(lost)),
            None => self.last = None,
        }
    }

    fn loss(&mut self, silence: Duration) -> Option<Absent> {
        if self.broken.is_some() {
            // The other thread's affair.
            return None;
        }
        if let Some(lost) = self.lost.as_ref().filter(|lost| lost.dead) {
            return Some(lost.clone());
        }
        let next = (self.rank + 1) % self.world;
        let sign = self.sign(next).ok()?.map_or(0, |sign| sign.beats);
        let since = match self.last {
            Some((last, since)) if last == sign => since,
            _ => self.beats,
        };
        self.last = Some((sign, since));
        if BEAT * u32::try_from(self.beats - since).unwrap_or(u32::MAX) < silence {
            return None;
        }
        self.last = None;
        // Somebody has only called others late: then nobody else is looked at.
        if self.lost.is_some() {
            return Some(Absent::dead(vec![next]));
        }
        let absent = self.examine(None, EXAMINE).ok()?;
        (absent.dead || absent.given_up).then_some(absent)
    }

    fn examine(&mut self, of: Option<usize>, timeout: Duration) -> FfiResult<Absent> {
        let deadline = Instant::now() + timeout;
        let asked = |rank: &usize| *rank != self.rank && of.is_none_or(|of| of == *rank);
        let mut unseen: Vec<(usize, Option<Sign>)> =
            (0..self.world).filter(asked).map(|rank| (rank, None)).collect();
        let (mut behind, mut looks) = (Vec::new(), 0);
        loop {
            let beaten = self.beat();
            if let Some(lost) = self.lost.as_ref().filter(|lost| lost.dead || of.is_none()) {
                return Ok(lost.clone());
            }
            beaten?;
            let mut still = Vec::new();
            for (rank, first) in unseen {
                match (first, self.sign(rank)?) {
                    (Some(first), Some(now)) if first.beats != now.beats => {
                        if now.begun < self.shared.begun.load(Ordering::Relaxed) {
                            behind.push(rank);
                        }
                    }
                    (first, now) => still.push((rank, first.or(now))),
                }
            }
            unseen = still;
            looks += 1;
            if unseen.is_empty() || (Instant::now() >= deadline && looks >= LOOKS) {
                break;
            }
            std::thread::sleep(LOOK);
        }
        let absent = match unseen.is_empty() {
            true => Absent { ranks: behind, ..Absent::default() },
            false => Absent::dead(unseen.into_iter().map(|(rank, _)| rank).collect()),
        };
        if of.is_none() && !absent.ranks.is_empty() {
            self.tell(&absent);
        }
        Ok(absent)
    }

    /// Writes down who is missing. The store may be in this very process, which will end over it: the others
    /// get two beats to read it.
    fn tell(&self, absent: &Absent) {
        if self.store.handle.set(LOST_KEY, absent.note().as_bytes()).is_ok() {
            std::thread::sleep(2 * BEAT);
        }
    }

    fn sign(&self, rank: usize) -> FfiResult<Option<Sign>> {
        let key = beat_key(rank);
        if !self.store.handle.contains(&key)? {
            return Ok(None);
        }
        let numbers = numbers(&self.store.handle.get(&key)?);
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

/// The numbers in a value of the store; words that are no numbers are left out.
fn numbers(value: &[u8]) -> Vec<usize> {
    String::from_utf8_lossy(value).split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(40);

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
        assert_eq!(all[1].absent(None, TIMEOUT).unwrap(), Absent::default());
    }

    #[test]
    fn the_one_that_stopped_is_named_and_the_others_learn_it() {
        let ranks = Ranks::new();
        let (first, second, third) = (ranks.start(0), ranks.start(1), ranks.start(2));
        drop(second);
        let absent = first.absent(None, Duration::from_secs(8)).unwrap();
        assert_eq!((&absent.ranks[..], absent.given_up), (&[1][..], false));
        drop(first);
        // It would take the whole timeout by itself, and find two.
        assert_eq!(third.absent(None, TIMEOUT).unwrap(), Absent::dead(vec![1]));
        assert!(ranks.start(1).absent(None, TIMEOUT).unwrap().given_up);
    }

    #[test]
    fn the_one_that_has_not_come_is_named() {
        let ranks = Ranks::new();
        let all: Vec<_> = (0..3).map(|rank| ranks.start(rank)).collect();
        all[0].begin();
        all[2].begin();
        let expected =
            |given_up| Absent { ranks: if given_up { vec![] } else { vec![1] }, dead: false, given_up };
        assert_eq!(all[0].absent(None, TIMEOUT).unwrap(), expected(false));
        // It is late, not dead, to those who read it as well.
        assert_eq!(all[2].absent(None, TIMEOUT).unwrap(), expected(false));
        assert_eq!(all[1].absent(None, TIMEOUT).unwrap(), expected(true));
    }

    #[test]
    fn one_rank_is_asked_about_without_a_word_to_the_others() {
        let ranks = Ranks::new();
        let (first, second, third) = (ranks.start(0), ranks.start(1), ranks.start(2));
        first.begin();
        drop(second);
        assert_eq!(first.absent(Some(1), Duration::from_secs(1)).unwrap(), Absent::dead(vec![1]));
        assert_eq!(third.absent(Some(0), TIMEOUT).unwrap(), Absent::default());
    }

    #[test]
    fn the_watched_hear_of_a_loss_unasked_and_of_nothing_else() {
        let ranks = Ranks::new();
        let (first, second, third) = (ranks.start(0), ranks.start(1), ranks.start(2));
        let watch = |rank: &Heartbeat| {
            let (alarm, heard) = sync_channel(1);
            rank.watch(Duration::from_secs(3), Box::new(move |absent| alarm.send(absent).unwrap()));
            heard
        };
        let (heard, also, rests) = (watch(&first), watch(&third), watch(&second));
        // Slow is not dead.
        first.begin();
        assert!(heard.recv_timeout(Duration::from_secs(6)).is_err() && also.try_recv().is_err());
        second.rest();
        drop(second);
        assert_eq!(
            heard.recv_timeout(TIMEOUT).unwrap(),
            Absent::dead(vec![1]),
            "it looks after the second itself"
        );
        assert_eq!(also.recv_timeout(TIMEOUT).unwrap(), Absent::dead(vec![1]), "it is told by the first");
        assert!(rests.recv().is_err());
    }

    #[test]
    fn a_store_that_stops_answering_is_its_servers_end() {
        for served_by in [Some(0), None] {
            let ranks = Ranks::new();
            let port = ranks.server.port().unwrap();
            let store = Store::tcp("127.0.0.1", port, 1, false, TIMEOUT).unwrap();
            let second = Heartbeat::start(Store { served_by, ..store }, 1, 2).unwrap();
            let (alarm, heard) = sync_channel(1);
            second.watch(Duration::from_secs(1), Box::new(move |absent| alarm.send(absent).unwrap()));
            drop(ranks);
            let expected = Absent::dead(served_by.into_iter().collect());
            assert_eq!(heard.recv_timeout(TIMEOUT).unwrap(), expected);
        }
    }

    #[test]
    fn a_store_that_is_gone_is_an_error() {
        let ranks = Ranks::new();
        let first = ranks.start(0);
        drop(ranks);
        assert!(first.absent(None, Duration::from_secs(1)).is_err());
    }
}
