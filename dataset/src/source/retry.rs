//! When a failed request may be tried again: backoff of its own, and a budget shared by all.
//!
//! `object_store` retries each request by itself and holds its place meanwhile; many at once make a storm of a fault. So
//! its retries are switched off, and these stand in their place.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

/// Retries that fail again, for each request that is sent for the first time.
const SHARE: f64 = 0.5;

/// Retries a second that are always allowed: the end of an outage must be noticed.
const PER_S: f64 = 1.0;

/// What is saved up in good times: a short fault is met without waiting.
const SAVED: f64 = 64.0;

const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_LAST: Duration = Duration::from_secs(5);

/// The waits of one request: doubling, and up to half of each at random, so that those that failed together do not come
/// back together ("equal jitter", M. Brooker, "Exponential Backoff And Jitter", 2015).
#[derive(Debug)]
pub(super) struct Backoff(Duration);

impl Backoff {
    pub(super) fn new() -> Self {
        Self(BACKOFF_FIRST)
    }

    /// How long to wait this time.
    pub(super) fn wait(&mut self) -> Duration {
        let wait = self.0.mul_f64(0.5 + 0.5 * jitter());
        self.0 = (self.0 * 2).min(BACKOFF_LAST);
        wait
    }
}

/// A number between 0 and 1, another each time.
pub fn jitter() -> f64 {
    (RandomState::new().hash_one(0) >> 11) as f64 / (1u64 << 53) as f64
}

/// What all requests may spend on retries. A retry that succeeds costs nothing in the end.
#[derive(Debug)]
pub(super) struct Budget {
    balance: f64,
    at: Instant,
}

impl Budget {
    pub(super) fn new(now: Instant) -> Self {
        Self { balance: SAVED, at: now }
    }

    /// A request is sent for the first time.
    pub(super) fn earn(&mut self) {
        self.add(SHARE);
    }

    /// Pays for a retry, or says how long the balance takes to allow one.
    pub(super) fn pay(&mut self, now: Instant) -> Result<(), Duration> {
        let passed = now.saturating_duration_since(self.at);
        self.at = now;
        self.add(passed.as_secs_f64() * PER_S);
        if self.balance >= 1.0 {
            self.balance -= 1.0;
            return Ok(());
        }
        Err(Duration::from_secs_f64((1.0 - self.balance) / PER_S))
    }

    /// A retry succeeded.
    pub(super) fn refund(&mut self) {
        self.add(1.0);
    }

    fn add(&mut self, amount: f64) {
        self.balance = (self.balance + amount).min(SAVED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_differ() {
        let mut waits = Vec::new();
        for _ in 0..100 {
            let mut backoff = Backoff::new();
            let all: Vec<_> = (0..40).map(|_| backoff.wait()).collect();
            assert!(all.iter().all(|w| (BACKOFF_FIRST / 2..=BACKOFF_LAST).contains(w)));
            assert!(all[0] <= BACKOFF_FIRST);
            assert!(all[10..].iter().all(|w| *w >= BACKOFF_LAST / 2));
            waits.push(all[0]);
        }
        waits.dedup();
        assert!(waits.len() > 90);
    }

    #[test]
    fn over_a_long_fault_retries_are_a_share_of_requests() {
        let start = Instant::now();
        let mut budget = Budget::new(start);
        let (mut requests, mut retries) = (0, 0);
        // Ten new requests a second for ten minutes, and whoever may tries again.
        for tick in 0..6000 {
            let now = start + Duration::from_millis(100) * tick;
            budget.earn();
            requests += 1;
            while budget.pay(now).is_ok() {
                retries += 1;
            }
        }
        let most = SHARE * f64::from(requests) + PER_S * 600.0 + SAVED;
        assert!(f64::from(retries) <= most && f64::from(retries) > 0.95 * most, "{retries} of {most}");
        let wait = budget.pay(start + Duration::from_secs(600)).unwrap_err();
        assert!(wait <= Duration::from_secs(1));
        budget.refund();
        assert!(budget.pay(start + Duration::from_secs(600)).is_ok());
    }
}
