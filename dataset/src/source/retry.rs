//! What all retries of a process may cost together.

use forebay_proto::TokenBucket;
use parking_lot::Mutex;
use std::time::Instant;
use tokio::sync::Notify;

/// Retries that fail again, for each request that is sent for the first time.
const SHARE: f64 = 0.5;

/// Retries a second that are always allowed: the end of an outage must be noticed.
const PER_S: f64 = 1.0;

/// Saved up in good times: a short fault is met without waiting.
pub(super) const SAVED: f64 = 64.0;

/// The retries of one process.
#[derive(Debug)]
pub(super) struct RetryBudget {
    bucket: Mutex<TokenBucket>,
    /// Rung when a retry was given back: others may follow.
    refunded: Notify,
}

impl RetryBudget {
    pub(super) fn new() -> Self {
        let bucket = Mutex::new(TokenBucket::new(PER_S, SAVED, Instant::now()));
        Self { bucket, refunded: Notify::new() }
    }

    /// A request is sent for the first time.
    pub(super) fn earn(&self) {
        self.bucket.lock().add(SHARE);
    }

    /// Waits until the budget allows a retry.
    pub(super) async fn pay(&self) {
        loop {
            let refunded = self.refunded.notified();
            let paid = self.bucket.lock().take(1.0, Instant::now());
            let Err(wait) = paid else { return };
            tokio::time::timeout(wait, refunded).await.ok();
        }
    }

    /// A retry that succeeds is given back: it costs nothing in the end.
    pub(super) fn refund(&self) {
        self.bucket.lock().add(1.0);
        self.refunded.notify_one();
    }

    #[cfg(test)]
    pub(super) fn left(&self) -> TokenBucket {
        self.bucket.lock().clone()
    }
}
