//! When a failed request may be tried again: after a wait of its own, from a budget shared by all, for a
//! bounded time.
//!
//! `object_store` retries each request by itself and holds its place meanwhile; many at once make a storm of
//! a fault. So its retries are switched off, and these stand in their place.

use super::limits::{Closed, Limits, Pass};
use super::settings::SourceSettings;
use crate::urgency::Urgency;
use forebay_proto::{Backoff, TokenBucket};
use parking_lot::Mutex;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Retries that fail again, for each request that is sent for the first time.
const SHARE: f64 = 0.5;

/// Retries a second that are always allowed: the end of an outage must be noticed.
const PER_S: f64 = 1.0;

/// Saved up in good times: a short fault is met without waiting.
const SAVED: f64 = 64.0;

const WAIT_FIRST: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(5);

/// The retries of one process.
#[derive(Debug)]
pub(super) struct Retries {
    limits: Limits,
    patience: Duration,
    /// A retry that succeeds is given back: it costs nothing in the end.
    budget: Mutex<TokenBucket>,
    /// Rung when a retry was given back: others may follow.
    refunded: Notify,
}

/// The attempts of one request. Its patience runs from its first failure.
#[derive(Debug)]
pub(super) struct Attempts<'a> {
    retries: &'a Retries,
    urgency: &'a Urgency,
    waits: Backoff,
    first_failure: Option<Instant>,
}

impl Retries {
    pub(super) fn new(settings: &SourceSettings) -> Self {
        Self {
            limits: Limits::new(settings),
            patience: Duration::from_secs_f64(settings.patience_s),
            budget: Mutex::new(TokenBucket::new(PER_S, SAVED, Instant::now())),
            refunded: Notify::new(),
        }
    }

    /// A request that is sent until it is answered well.
    pub(super) fn attempts<'a>(&'a self, urgency: &'a Urgency) -> Attempts<'a> {
        Attempts { retries: self, urgency, waits: Backoff::new(WAIT_FIRST, WAIT_MAX), first_failure: None }
    }

    /// Waits until the budget allows a retry.
    async fn pay(&self) {
        loop {
            let refunded = self.refunded.notified();
            let paid = self.budget.lock().take(1.0, Instant::now());
            let Err(wait) = paid else { return };
            tokio::time::timeout(wait, refunded).await.ok();
        }
    }

    fn refund(&self) {
        self.budget.lock().add(1.0);
        self.refunded.notify_one();
    }
}

impl Attempts<'_> {
    /// Waits until an attempt for `bytes` may begin.
    pub(super) async fn begin(&mut self, bytes: u64) -> Result<Pass, Closed> {
        let since = match self.first_failure {
            Some(since) => {
                tokio::time::sleep(self.waits.next()).await;
                self.retries.pay().await;
                since
            }
            None => {
                self.retries.budget.lock().add(SHARE);
                Instant::now()
            }
        };
        self.retries.limits.enter(self.urgency, bytes, since).await
    }

    /// The attempt was answered, if only with a refusal that a retry would not change.
    pub(super) fn on_success(&mut self, pass: Pass) {
        self.retries.limits.on_success(pass);
        if self.first_failure.is_some() {
            self.retries.refund();
        }
    }

    /// The attempt was refused for now, or its answer broke off. Says whether to try again.
    pub(super) fn on_throttle(&mut self, pass: Pass) -> bool {
        self.retries.limits.on_throttle(pass);
        let now = Instant::now();
        now.saturating_duration_since(*self.first_failure.get_or_insert(now)) < self.retries.patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn retries_cost_and_those_that_succeed_are_given_back() {
        let settings = SourceSettings { patience_s: 0.3, ..Default::default() };
        let (retries, demand, start) = (Retries::new(&settings), Urgency::demand(), Instant::now());
        let left = || retries.budget.lock().clone();
        let mut attempts = retries.attempts(&demand);
        let pass = attempts.begin(1).await.unwrap();
        assert!(attempts.on_throttle(pass));
        let pass = attempts.begin(1).await.unwrap();
        assert!(start.elapsed() >= WAIT_FIRST / 2, "it waits before it tries again");
        assert!(left().take(SAVED, start).is_err(), "a retry is paid for");
        attempts.on_success(pass);
        assert!(left().take(SAVED, start).is_ok());
        tokio::time::sleep(Duration::from_millis(300)).await;
        let pass = attempts.begin(1).await.unwrap();
        assert!(!attempts.on_throttle(pass), "its patience has ended");
    }
}
