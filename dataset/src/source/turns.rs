//! Turns at something scarce: so many at once, those that somebody waits for first, then by arrival.
//!
//! A turn may cost time: until that has passed no other begins, which is how a rate is kept. Giving up while waiting
//! costs nothing.

use crate::Urgency;
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// What an idle queue saves up: as much as a moment's cost, so that the limit is one on average and not on each turn.
const SAVED: Duration = Duration::from_millis(100);

/// The queue for turns.
#[derive(Debug)]
pub(crate) struct Turns(Mutex<State>);

#[derive(Debug)]
struct State {
    limit: usize,
    taken: usize,
    /// No turn begins before: a pause, and the cost of the turns so far.
    paused_until: Option<Instant>,
    paid_until: Option<Instant>,
    waiting: VecDeque<Waiter>,
    /// When the queue will be looked at again without anything happening.
    alarm: Option<Instant>,
}

#[derive(Debug)]
struct Waiter {
    urgency: Urgency,
    cost: Duration,
    grant: oneshot::Sender<Turn>,
}

/// A turn; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Turn(Option<Arc<Turns>>);

impl Turns {
    /// So many turns at once, at least one.
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            limit: limit.max(1),
            taken: 0,
            paused_until: None,
            paid_until: None,
            waiting: VecDeque::new(),
            alarm: None,
        })))
    }

    /// Waits for a turn, which keeps the next one waiting for `cost`.
    pub(crate) async fn take(self: &Arc<Self>, urgency: &Urgency, cost: Duration) -> Turn {
        let (grant, granted) = oneshot::channel();
        self.lock().waiting.push_back(Waiter { urgency: urgency.clone(), cost, grant });
        self.serve();
        // A waiter leaves the queue with a turn, or because this very future was dropped.
        granted.await.unwrap_or(Turn(None))
    }

    /// From now on so many at once; turns that have begun go on.
    pub(crate) fn set_limit(self: &Arc<Self>, limit: usize) {
        self.lock().limit = limit.max(1);
        self.serve();
    }

    /// No turn begins before `until`; none: at once.
    pub(crate) fn pause(self: &Arc<Self>, until: Option<Instant>) {
        self.lock().paused_until = until;
        self.serve();
    }

    /// Whether somebody waits, or all turns are taken.
    pub(crate) fn is_full(&self) -> bool {
        let state = self.lock();
        state.taken >= state.limit || !state.waiting.is_empty()
    }

    /// How many wait for each turn that there is, where there are at least `full` of them; 0 where there are less.
    pub(crate) fn queue(&self, full: usize) -> usize {
        let state = self.lock();
        let waiting = || state.waiting.iter().filter(|w| !w.grant.is_closed()).count();
        if state.limit < full { 0 } else { waiting() / state.limit }
    }

    /// The next turn waits for `cost` more.
    pub(crate) fn pay(&self, cost: Duration) {
        self.lock().pay(cost, Instant::now());
    }

    /// Gives out the turns that there are.
    fn serve(self: &Arc<Self>) {
        let mut state = self.lock();
        let now = Instant::now();
        while state.taken < state.limit {
            state.waiting.retain(|w| !w.grant.is_closed());
            let Some(next) = state.next() else { return };
            let opens = state.paused_until.max(state.paid_until).filter(|at| *at > now);
            if let Some(at) = opens {
                return self.wake(&mut state, at);
            }
            let Some(waiter) = state.waiting.remove(next) else { return };
            match waiter.grant.send(Turn(Some(self.clone()))) {
                Ok(()) => {
                    state.taken += 1;
                    state.pay(waiter.cost, now);
                }
                // It gave up just now. Its turn must not end while the queue is locked: it never began.
                Err(mut turn) => turn.0 = None,
            }
        }
    }

    /// Looks at the queue again at `at`.
    fn wake(self: &Arc<Self>, state: &mut State, at: Instant) {
        if state.alarm.is_some_and(|alarm| alarm <= at) {
            return;
        }
        state.alarm = Some(at);
        let turns = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep_until(at.into()).await;
            if let Some(turns) = turns.upgrade() {
                {
                    let mut state = turns.lock();
                    if state.alarm == Some(at) {
                        state.alarm = None;
                    }
                }
                turns.serve();
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl State {
    /// Who is next: urgency may have risen since it came.
    fn next(&self) -> Option<usize> {
        let demand = self.waiting.iter().position(|w| w.urgency.is_demand());
        demand.or_else(|| (!self.waiting.is_empty()).then_some(0))
    }

    fn pay(&mut self, cost: Duration, now: Instant) {
        if !cost.is_zero() {
            let saved = now.checked_sub(SAVED).unwrap_or(now);
            self.paid_until = Some(self.paid_until.map_or(saved, |at| at.max(saved)) + cost);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(turns) = self.0.take() {
            turns.lock().taken -= 1;
            turns.serve();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    const FREE: Duration = Duration::ZERO;

    async fn settle() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    /// Takes a turn in a task of its own, and notes its name when it has it.
    fn take(
        turns: &Arc<Turns>,
        urgency: Urgency,
        name: char,
        order: &Arc<Mutex<String>>,
    ) -> tokio::task::JoinHandle<()> {
        let (turns, order) = (turns.clone(), order.clone());
        tokio::spawn(async move {
            let _turn = turns.take(&urgency, FREE).await;
            order.lock().push(name);
        })
    }

    #[tokio::test]
    async fn demand_first_then_by_arrival() {
        let (turns, order) = (Turns::new(1), Arc::default());
        let held = turns.take(&Urgency::demand(), FREE).await;
        let late = Urgency::prefetch();
        let mut all = Vec::new();
        for (urgency, name) in [
            (Urgency::prefetch(), 'p'),
            (late.clone(), 'r'),
            (Urgency::demand(), 'd'),
            (Urgency::demand(), 'e'),
        ] {
            all.push(take(&turns, urgency, name, &order));
            settle().await;
        }
        assert!(turns.is_full());
        late.raise();
        drop(held);
        futures::future::join_all(all).await;
        assert_eq!(*order.lock(), "rdep");
        assert!(!turns.is_full());
    }

    #[tokio::test]
    async fn whoever_gives_up_holds_up_nobody() {
        let turns = Turns::new(1);
        let held = turns.take(&Urgency::demand(), FREE).await;
        let demand = Urgency::demand();
        for _ in 0..100 {
            let wait = turns.take(&demand, FREE);
            assert!(tokio::time::timeout(Duration::from_micros(10), wait).await.is_err());
        }
        drop(held);
        drop(turns.take(&Urgency::prefetch(), FREE).await);
        assert!(!turns.is_full());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn never_more_than_the_limit_at_once() {
        let (turns, now, most) =
            (Turns::new(4), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let work = (0..200).map(|i| {
            let (turns, now, most) = (turns.clone(), now.clone(), most.clone());
            tokio::spawn(async move {
                let _turn = turns.take(&Urgency::demand(), FREE).await;
                most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                tokio::task::yield_now().await;
                now.fetch_sub(1, SeqCst);
                if i == 100 {
                    turns.set_limit(2);
                }
            })
        });
        futures::future::join_all(work).await;
        assert!((1..=4).contains(&most.load(SeqCst)));
    }

    #[tokio::test]
    async fn a_cost_and_a_pause_keep_the_next_waiting() {
        let turns = Turns::new(10);
        let start = Instant::now();
        // The first is free: an idle queue has saved up its cost.
        for _ in 0..4 {
            drop(turns.take(&Urgency::demand(), SAVED).await);
        }
        assert!(start.elapsed() >= SAVED * 2, "{:?}", start.elapsed());
        let until = Instant::now() + Duration::from_millis(50);
        turns.pause(Some(until));
        drop(turns.take(&Urgency::demand(), FREE).await);
        assert!(Instant::now() >= until);
    }
}
