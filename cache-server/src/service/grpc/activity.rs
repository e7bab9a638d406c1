//! Whether a connection does anything: the requests that it has.

use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::time::Instant;

/// The requests of a connection.
#[derive(Debug)]
pub struct Activity(Mutex<ActivityState>);

#[derive(Debug)]
struct ActivityState {
    /// Requests so far.
    all: u64,
    /// Of them, those that are not answered yet.
    open: u64,
    /// Since when there are none, if there are none.
    since: Instant,
}

/// A request that is not answered yet; dropped when it is.
#[derive(Debug)]
pub struct Visit(Arc<Activity>);

/// The body of an answer, which ends a visit.
#[derive(Debug)]
pub struct Counted<B> {
    body: B,
    _visit: Visit,
}

impl Default for Activity {
    fn default() -> Self {
        Self(Mutex::new(ActivityState { all: 0, open: 0, since: Instant::now() }))
    }
}

impl Activity {
    /// Whether there was no request yet.
    pub fn is_new(&self) -> bool {
        self.0.lock().all == 0
    }

    /// A request begins.
    pub fn begin(self: &Arc<Self>) -> Visit {
        let mut state = self.0.lock();
        state.all += 1;
        state.open += 1;
        Visit(self.clone())
    }

    /// Since when the connection has no request; `None` while it has one.
    pub fn idle_since(&self) -> Option<Instant> {
        let state = self.0.lock();
        (state.open == 0).then_some(state.since)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.open -= 1;
        state.since = Instant::now();
    }
}

impl<B> Counted<B> {
    /// The same body; the visit ends with it.
    pub fn new(body: B, visit: Visit) -> Self {
        Self { body, _visit: visit }
    }
}

impl<B: Body + Unpin> Body for Counted<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_idle_between_requests() {
        let activity = Arc::new(Activity::default());
        assert!(activity.is_new() && activity.idle_since().is_some());
        let (one, two) = (activity.begin(), activity.begin());
        drop(one);
        assert!(!activity.is_new() && activity.idle_since().is_none());
        let before = Instant::now();
        drop(two);
        assert!(activity.idle_since().is_some_and(|since| since >= before));
    }
}
