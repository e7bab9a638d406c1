//! The gate that every request to a store passes: how many at once, how many bytes a second, who first, and when a
//! failed one may come again.
//!
//! One gate stands before all requests of a process. It is told how each was answered, and opens or closes by that
//! ([`Window`]). [`Tries`] are the attempts of one request.

use super::SourceSettings;
use super::retry::{Backoff, Budget, jitter};
use super::turns::{Turn, Turns};
use super::window::Window;
use crate::Urgency;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The gate of one process.
#[derive(Debug)]
pub(super) struct Gate {
    turns: Arc<Turns>,
    /// Requests at once at most.
    most: usize,
    bytes_per_s: Option<f64>,
    patience: Duration,
    state: Mutex<State>,
    /// Rung when a retry has succeeded: others may follow.
    refunded: Notify,
}

#[derive(Debug)]
struct State {
    window: Window,
    budget: Budget,
    /// When the store began to answer nothing well.
    dark_since: Option<Instant>,
}

/// The attempts of one request. Its patience runs from its first failure, or while it waits before a closed gate, and
/// begins anew with every request that the store answers well.
#[derive(Debug)]
pub(super) struct Tries<'a> {
    gate: &'a Gate,
    urgency: &'a Urgency,
    backoff: Backoff,
    first_failure: Option<Instant>,
    /// The attempt that is to begin, or is under way, was paid for.
    paid: bool,
}

/// An attempt under way.
#[derive(Debug)]
pub(super) struct Pass {
    turn: Turn,
    era: u64,
}

/// Nobody was let through for as long as the patience lasts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Closed;

impl Gate {
    pub(super) fn new(settings: &SourceSettings) -> Self {
        let window = Window::new(settings.s3_max_requests);
        let now = Instant::now();
        Self {
            turns: Turns::new(window.size()),
            most: settings.s3_max_requests,
            bytes_per_s: settings.s3_max_bytes_per_s.map(|b| b as f64),
            patience: Duration::from_secs_f64(settings.patience_s),
            state: Mutex::new(State { window, budget: Budget::new(now), dark_since: None }),
            refunded: Notify::new(),
        }
    }

    /// A request that will be sent until it is answered well.
    pub(super) fn tries<'a>(&'a self, urgency: &'a Urgency) -> Tries<'a> {
        Tries { gate: self, urgency, backoff: Backoff::new(), first_failure: None, paid: false }
    }

    /// How many requests wait for each that may be under way; 0 while those may still become more.
    pub(super) fn queue(&self) -> usize {
        self.turns.queue(self.most)
    }

    /// A request under way reads so many bytes more.
    pub(super) fn pay(&self, bytes: u64) {
        self.turns.pay(self.cost(bytes));
    }

    fn cost(&self, bytes: u64) -> Duration {
        let seconds = self.bytes_per_s.map_or(0.0, |rate| bytes as f64 / rate);
        Duration::from_secs_f64(seconds.min(86_400.0))
    }

    /// Waits for a turn at `bytes`; gives up when the store has answered nothing well for the patience since `since`.
    async fn enter(&self, urgency: &Urgency, bytes: u64, since: Instant) -> Result<Pass, Closed> {
        let turn = self.turns.take(urgency, self.cost(bytes));
        tokio::pin!(turn);
        loop {
            let (now, dark_since) = (Instant::now(), self.lock().dark_since);
            // A long queue before a store that works is no reason to give up.
            let until = dark_since.map_or(now, |dark| dark.max(since)) + self.patience;
            if dark_since.is_some() && until <= now {
                return Err(Closed);
            }
            if let Ok(turn) = tokio::time::timeout_at(until.into(), &mut turn).await {
                return Ok(Pass { turn, era: self.lock().window.era() });
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Tries<'_> {
    /// Waits until an attempt for `bytes` may begin.
    pub(super) async fn begin(&mut self, bytes: u64) -> Result<Pass, Closed> {
        let Some(since) = self.first_failure else {
            self.gate.lock().budget.earn();
            return self.gate.enter(self.urgency, bytes, Instant::now()).await;
        };
        tokio::time::sleep(self.backoff.wait()).await;
        loop {
            let paid = self.gate.lock().budget.pay(Instant::now());
            let Err(wait) = paid else { break };
            tokio::time::timeout(wait, self.gate.refunded.notified()).await.ok();
        }
        self.paid = true;
        self.gate.enter(self.urgency, bytes, since).await
    }

    /// The attempt is not needed any more, and was not sent: what was paid for it is given back.
    pub(super) fn spare(&mut self) {
        if std::mem::take(&mut self.paid) {
            self.gate.lock().budget.refund();
            self.gate.refunded.notify_one();
        }
    }

    /// The attempt was answered, if only with a refusal that a retry would not change.
    pub(super) fn well(&mut self, pass: Pass) {
        let full = self.gate.turns.is_full();
        let mut state = self.gate.lock();
        state.dark_since = None;
        state.window.well(pass.era, full);
        if self.first_failure.is_some() {
            state.budget.refund();
            self.gate.refunded.notify_one();
        }
        self.paid = false;
        self.gate.turns.set_limit(state.window.size());
        self.gate.turns.pause(None);
    }

    /// The attempt was refused for now, or broke off. Says whether to try again.
    pub(super) fn badly(&mut self, pass: Pass) -> bool {
        let now = Instant::now();
        {
            let mut state = self.gate.lock();
            state.dark_since.get_or_insert(now);
            let pause = state.window.badly(pass.era, now, jitter());
            self.gate.turns.set_limit(state.window.size());
            if pause.is_some() {
                self.gate.turns.pause(pause);
            }
        }
        drop(pass.turn);
        self.paid = false;
        now.saturating_duration_since(*self.first_failure.get_or_insert(now)) < self.gate.patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_retry_that_is_not_sent_costs_nothing() {
        let (gate, demand) = (Gate::new(&SourceSettings::default()), Urgency::demand());
        let long_ago = Instant::now();
        let mut tries = gate.tries(&demand);
        let pass = tries.begin(1).await.unwrap();
        assert!(tries.badly(pass));
        drop(tries.begin(1).await.unwrap());
        tries.spare();
        tries.spare();
        // At a moment that has passed nothing is earned.
        let left = (0..100).take_while(|_| gate.lock().budget.pay(long_ago).is_ok()).count();
        assert_eq!(left, 64);
    }
}
