//! Whether the object store answers: for how long nothing has come from it while requests wait for it.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Requests that wait for the object store, from their first attempt to their end.
#[derive(Debug, Default)]
pub(super) struct Silence(Mutex<Requested>);

#[derive(Debug, Default)]
struct Requested {
    waiting: usize,
    /// When anything came last, or the first of those that wait began.
    heard: Option<Instant>,
    /// What went wrong since.
    error: Option<String>,
}

/// For how long an object store has said nothing of use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectStoreSilence {
    /// Since the last byte, or since a request began.
    pub lasting: Duration,
    /// What went wrong meanwhile; empty if there simply was no answer.
    pub error: String,
}

/// One request; it waits no more when this is dropped.
pub(super) struct ObjectStoreWait<'a>(&'a Silence);

impl Silence {
    pub(super) fn begin(&self) -> ObjectStoreWait<'_> {
        let mut requested = self.0.lock();
        requested.waiting += 1;
        if requested.waiting == 1 {
            requested.heard = Some(Instant::now());
            requested.error = None;
        }
        ObjectStoreWait(self)
    }

    /// Something came.
    pub(super) fn heard(&self) {
        let mut requested = self.0.lock();
        requested.heard = Some(Instant::now());
        requested.error = None;
    }

    pub(super) fn failed(&self, error: &str) {
        self.0.lock().error = Some(error.to_owned());
    }

    /// None if nobody waits for the object store.
    pub(super) fn get(&self) -> Option<ObjectStoreSilence> {
        let requested = self.0.lock();
        let heard = requested.heard.filter(|_| requested.waiting > 0)?;
        let error = requested.error.clone().unwrap_or_default();
        Some(ObjectStoreSilence { lasting: heard.elapsed(), error })
    }
}

impl Drop for ObjectStoreWait<'_> {
    fn drop(&mut self) {
        self.0.0.lock().waiting -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_waits_is_kept_waiting() {
        let silence = Silence::default();
        assert_eq!(silence.get(), None);
        let first = silence.begin();
        let second = silence.begin();
        silence.failed("503");
        assert_eq!(silence.get().map(|silence| silence.error), Some("503".to_owned()));
        silence.heard();
        assert_eq!(silence.get().map(|silence| silence.error), Some(String::new()));
        drop(first);
        assert!(silence.get().is_some());
        drop(second);
        assert_eq!(silence.get(), None);
    }
}
