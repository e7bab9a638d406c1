//! The gate that batch streams pass: open, or closed while the node drains or stops.
//!
//! A closed gate lets nobody in, and streams that are inside end with `Retry` after a whole message, so that
//! their readers go on elsewhere at that very row.

use crate::auth::limiter::{Limiter, StreamTurn};
use forebay_proto::{Error, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// Counts the streams inside, and ends them when it closes.
#[derive(Debug)]
pub struct Gate {
    /// Ends all streams inside for good: the node stops.
    stop: CancellationToken,
    /// Ends the streams that came in since the gate was last opened; `None` while it is closed.
    inside: Mutex<Option<CancellationToken>>,
    streams: TaskTracker,
    streams_max: usize,
}

/// A stream's right to be inside: it counts there until this is dropped.
#[derive(Debug)]
pub struct GatePermit {
    /// Called when the stream shall end.
    pub end: CancellationToken,
    /// Its turn among those of its principal.
    _turn: Option<StreamTurn>,
    _inside: TaskTrackerToken,
}

impl Gate {
    /// An open gate that lets in this number at once. `stop` ends everything.
    pub fn new(stop: CancellationToken, streams_max: usize) -> Self {
        let (inside, streams) = (Mutex::new(Some(stop.child_token())), TaskTracker::new());
        // A tracker is waited for only once it is closed; it counts all the same.
        streams.close();
        Self { stop, inside, streams, streams_max }
    }

    /// `Retry` when the gate is closed.
    pub fn check(&self) -> Result<()> {
        if self.is_closed() { Err(draining()) } else { Ok(()) }
    }

    /// Lets a stream in; `Retry` when the gate is closed, or very many are inside.
    pub fn enter(&self) -> Result<GatePermit> {
        let inside = self.inside.lock();
        let end = inside.clone().ok_or_else(draining)?;
        if self.streams.len() >= self.streams_max {
            let most = self.streams_max;
            return Err(Error::retry(format!(
                "this node has {most} streams, and takes no more: see [limits] streams"
            )));
        }
        Ok(GatePermit { end, _turn: None, _inside: self.streams.token() })
    }

    /// Closes it and tells those inside to end.
    pub fn close(&self) {
        if let Some(inside) = self.inside.lock().take() {
            inside.cancel();
        }
    }

    /// Opens it again.
    pub fn open(&self) {
        self.inside.lock().get_or_insert_with(|| self.stop.child_token());
    }

    /// Whether it is closed.
    pub fn is_closed(&self) -> bool {
        self.inside.lock().is_none()
    }

    /// How many streams are inside.
    pub fn streams(&self) -> u64 {
        self.streams.len() as u64
    }

    /// Waits until none is inside.
    pub async fn empty(&self) {
        self.streams.wait().await;
    }
}

impl GatePermit {
    /// Counted among the streams of a principal too. `Retry` if it has as many as it may have.
    pub fn limited(self, limiter: Option<&Arc<Limiter>>) -> Result<Self> {
        let turn = limiter.map(Limiter::begin).transpose()?;
        Ok(Self { _turn: turn, ..self })
    }
}

/// Why nobody comes in, and those inside are to go.
pub fn draining() -> Error {
    Error::retry("this node is draining: go on with another, or when it is back")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn closing_ends_those_inside_and_opening_lets_others_in() {
        let stop = CancellationToken::new();
        let gate = Gate::new(stop.clone(), 2);
        let (a, b) = (gate.enter().unwrap(), gate.enter().unwrap());
        assert_eq!(gate.streams(), 2);
        assert!(gate.enter().unwrap_err().message.contains("2 streams"));
        gate.close();
        assert!(a.end.is_cancelled() && gate.is_closed());
        assert_eq!(gate.enter().unwrap_err().kind, forebay_proto::Kind::Retry);
        drop((a, b));
        gate.empty().await;
        gate.open();
        let c = gate.enter().unwrap();
        assert!(!c.end.is_cancelled());
        stop.cancel();
        assert!(c.end.is_cancelled());
    }
}
