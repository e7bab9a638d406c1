//! The gate that batch streams pass: open, or closed while the node drains or stops.
//!
//! A closed gate lets nobody in, and streams that are inside end with `Retry` after a whole message, so that
//! their readers go on elsewhere at that very row.

use forebay_proto::{Error, Result};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Counts the streams inside, and ends them when it closes.
#[derive(Debug)]
pub struct Gate {
    /// Ends all streams inside for good: the node stops.
    stop: CancellationToken,
    /// Ends the streams that came in since the gate was last opened; `None` while it is closed.
    inside: Mutex<Option<CancellationToken>>,
    /// How many are inside.
    streams: Arc<watch::Sender<u64>>,
}

/// A stream's stay inside.
#[derive(Debug)]
pub struct Pass {
    /// Called when the stream shall end.
    pub end: CancellationToken,
    streams: Arc<watch::Sender<u64>>,
}

impl Gate {
    /// An open gate. `stop` ends everything.
    pub fn new(stop: CancellationToken) -> Self {
        let inside = Mutex::new(Some(stop.child_token()));
        Self { stop, inside, streams: Arc::new(watch::channel(0).0) }
    }

    /// `Retry` when the gate is closed.
    pub fn check(&self) -> Result<()> {
        if self.is_closed() { Err(draining()) } else { Ok(()) }
    }

    /// Lets a stream in; `Retry` when the gate is closed.
    pub fn enter(&self) -> Result<Pass> {
        let inside = self.lock();
        let end = inside.clone().ok_or_else(draining)?;
        self.streams.send_modify(|n| *n += 1);
        Ok(Pass { end, streams: self.streams.clone() })
    }

    /// Closes it and tells those inside to end.
    pub fn close(&self) {
        if let Some(inside) = self.lock().take() {
            inside.cancel();
        }
    }

    /// Opens it again.
    pub fn open(&self) {
        self.lock().get_or_insert_with(|| self.stop.child_token());
    }

    /// Whether it is closed.
    pub fn is_closed(&self) -> bool {
        self.lock().is_none()
    }

    /// How many streams are inside.
    pub fn streams(&self) -> u64 {
        *self.streams.borrow()
    }

    /// Waits until none is inside.
    pub async fn empty(&self) {
        // The sender lives as long as the gate, so this does not fail.
        self.streams.subscribe().wait_for(|n| *n == 0).await.ok();
    }

    fn lock(&self) -> MutexGuard<'_, Option<CancellationToken>> {
        self.inside.lock()
    }
}

fn draining() -> Error {
    Error::retry("this node is draining: go on with another, or when it is back")
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.streams.send_modify(|n| *n -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn closing_ends_those_inside_and_opening_lets_others_in() {
        let stop = CancellationToken::new();
        let gate = Gate::new(stop.clone());
        let (a, b) = (gate.enter().unwrap(), gate.enter().unwrap());
        assert_eq!(gate.streams(), 2);
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
