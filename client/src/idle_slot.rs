//! What one loader leaves for the next, and one stream for the next: for a while, and one of each.
//!
//! People make a loader for each epoch. With fresh memory each time, page faults took a quarter of a loader's
//! processor time where batches have 3 MB and an epoch 1 GB.

use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

/// How long it is kept without use.
const KEPT: Duration = match cfg!(test) {
    false => Duration::from_secs(10),
    true => Duration::from_secs(2),
};

/// Holds one thing that is not in use; clones share it. What lies there when the last of them is dropped is
/// dropped too.
#[derive(Debug)]
pub(crate) struct IdleSlot<T>(Arc<Mutex<Option<Idle<T>>>>);

/// By which the thing itself comes back to its slot, without keeping the slot alive.
#[derive(Debug)]
pub(crate) struct WeakIdleSlot<T>(Weak<Mutex<Option<Idle<T>>>>);

#[derive(Debug)]
struct Idle<T> {
    value: T,
    since: Instant,
}

impl<T: Send + 'static> IdleSlot<T> {
    /// What lies there, if it `fits`.
    pub fn take(&self, fits: impl FnOnce(&T) -> bool) -> Option<T> {
        self.0.lock().take_if(|idle| fits(&idle.value)).map(|idle| idle.value)
    }

    /// Puts something there instead of what lies there. A task of the runtime drops it when its time is over.
    pub fn keep(&self, value: T, runtime: &Handle) {
        let before = self.0.lock().replace(Idle { value, since: Instant::now() });
        drop(before);
        let slot = Arc::downgrade(&self.0);
        runtime.spawn(async move {
            sleep(KEPT).await;
            let Some(slot) = slot.upgrade() else { return };
            let over = slot.lock().take_if(|idle| idle.since.elapsed() >= KEPT);
            drop(over);
        });
    }
}

impl<T> IdleSlot<T> {
    /// For the thing that may lie here.
    pub fn downgrade(&self) -> WeakIdleSlot<T> {
        WeakIdleSlot(Arc::downgrade(&self.0))
    }
}

impl<T: Send + 'static> WeakIdleSlot<T> {
    /// Puts something there, or drops it if the slot is gone.
    pub fn keep(&self, value: T, runtime: &Handle) {
        if let Some(slot) = self.0.upgrade() {
            IdleSlot(slot).keep(value, runtime);
        }
    }
}

impl<T> Clone for WeakIdleSlot<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Clone for IdleSlot<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for IdleSlot<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_nobody_takes_is_dropped_after_a_while() {
        let (slot, runtime) = (IdleSlot::default(), Handle::current());
        let values: Vec<Arc<u32>> = (0..3).map(Arc::new).collect();
        let is_there = |value: &Arc<u32>| Arc::strong_count(value) > 1;
        slot.keep(values[0].clone(), &runtime);
        assert!(slot.take(|value| **value == 1).is_none() && is_there(&values[0]), "it does not fit");
        assert_eq!(slot.take(|value| **value == 0), Some(values[0].clone()));
        assert!(slot.take(|_| true).is_none(), "it was taken");
        // Used again meanwhile, it stays as long again.
        slot.keep(values[0].clone(), &runtime);
        sleep(KEPT / 2).await;
        let used = slot.take(|_| true).unwrap();
        let again = Instant::now();
        slot.keep(used, &runtime);
        while is_there(&values[0]) {
            assert!(again.elapsed() < 20 * KEPT, "nobody comes");
            sleep(KEPT / 20).await;
        }
        assert!(again.elapsed() >= KEPT, "after {:?}", again.elapsed());
        // The later one takes the place of the one before; both go with the slot.
        slot.keep(values[1].clone(), &runtime);
        slot.keep(values[2].clone(), &runtime);
        assert_eq!((is_there(&values[1]), is_there(&values[2])), (false, true));
        let weak = slot.downgrade();
        drop(slot);
        assert!(!is_there(&values[2]));
        weak.keep(values[2].clone(), &runtime);
        assert!(!is_there(&values[2]), "the slot is gone");
    }
}
