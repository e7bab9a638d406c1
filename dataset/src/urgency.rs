//! How soon a read is needed: demands, for which somebody waits, come before prefetches.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::sync::watch;

/// The urgency of a read. Clones share it, so that a read ahead of time can be hurried once somebody waits
/// for it.
#[derive(Debug, Clone)]
pub struct Urgency(Arc<Wanted>);

#[derive(Debug)]
struct Wanted {
    now: watch::Sender<bool>,
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
            self.0.now.send_replace(true);
        }
    }

    /// Returns once somebody waits for it. May be cancelled.
    pub async fn raised(&self) {
        self.0.now.subscribe().wait_for(|now| *now).await.ok();
    }

    /// Whether somebody waits for it.
    pub fn is_demand(&self) -> bool {
        *self.0.now.borrow()
    }

    /// Bytes of column data that the reads of this urgency fetched from the object store.
    pub fn fetched_bytes(&self) -> u64 {
        self.0.fetched_bytes.load(Relaxed)
    }

    pub(crate) fn add_fetched(&self, bytes: u64) {
        self.0.fetched_bytes.fetch_add(bytes, Relaxed);
    }

    fn new(now: bool) -> Self {
        Self(Arc::new(Wanted { now: watch::Sender::new(now), fetched_bytes: AtomicU64::new(0) }))
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
