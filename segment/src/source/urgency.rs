//! How soon somebody needs what is read: requests that are waited for come before those made ahead of time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The urgency of a read. Clones share it, so that a read ahead of time can be hurried once somebody waits for it.
#[derive(Debug, Clone)]
pub struct Urgency(Arc<AtomicBool>);

impl Default for Urgency {
    fn default() -> Self {
        Self::demand()
    }
}

impl Urgency {
    /// Somebody waits for it.
    pub fn demand() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    /// Nobody waits for it yet: it goes when no demand is waiting.
    pub fn prefetch() -> Self {
        Self(Arc::new(AtomicBool::new(false)))
    }

    /// From now on somebody waits for it: what has not begun yet goes with the demands.
    pub fn raise(&self) {
        self.0.store(true, Relaxed);
    }

    /// Whether somebody waits for it.
    pub fn is_demand(&self) -> bool {
        self.0.load(Relaxed)
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
        assert!(clone.is_demand() && Urgency::default().is_demand());
    }
}
