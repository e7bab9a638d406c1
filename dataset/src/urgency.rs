//! How soon a read is needed: demands, for which somebody waits, come before prefetches.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use tokio::sync::Notify;

/// The urgency of a read. Clones share it, so that a read ahead of time can be hurried once somebody waits
/// for it.
#[derive(Debug, Clone)]
pub struct Urgency(Arc<Wanted>);

#[derive(Debug)]
struct Wanted {
    now: AtomicBool,
    raised: Notify,
    fetched_bytes: AtomicU64,
}

impl Urgency {
    /// Somebody waits for it.
    pub fn demand() -> Self {
        Self::new(true)
    }

    /// Nobody waits for it yet: demands go first.
    pub fn prefetch() -> Self {
        Self::new(false)
    }

    /// From now on somebody waits for it: its requests that have not begun go with the demands.
    pub fn raise(&self) {
        // Told once: telling wakes all who listen.
        if !self.is_demand() {
            self.0.now.store(true, Release);
            self.0.raised.notify_waiters();
        }
    }

    /// Returns once somebody waits for it. May be cancelled.
    pub async fn raised(&self) {
        // It hears all that is told from here on, also before it is waited for.
        let told = self.0.raised.notified();
        if !self.is_demand() {
            told.await;
        }
    }

    /// Whether somebody waits for it.
    pub fn is_demand(&self) -> bool {
        self.0.now.load(Acquire)
    }

    /// Bytes of column data that the reads of this urgency fetched from the object store.
    pub fn fetched_bytes(&self) -> u64 {
        self.0.fetched_bytes.load(Relaxed)
    }

    pub(crate) fn add_fetched(&self, bytes: u64) {
        self.0.fetched_bytes.fetch_add(bytes, Relaxed);
    }

    fn new(now: bool) -> Self {
        let (now, raised) = (AtomicBool::new(now), Notify::new());
        Self(Arc::new(Wanted { now, raised, fetched_bytes: AtomicU64::new(0) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raising_one_raises_its_clones() {
        let urgency = Urgency::prefetch();
        let clone = urgency.clone();
        assert!(!clone.is_demand());
        urgency.raise();
        assert!(clone.is_demand() && Urgency::demand().is_demand());
    }

    #[tokio::test]
    async fn raising_ends_the_wait_for_it() {
        Urgency::demand().raised().await;
        let urgency = Urgency::prefetch();
        let wait = urgency.raised();
        tokio::join!(wait, async {
            tokio::task::yield_now().await;
            urgency.raise();
        });
    }
}
