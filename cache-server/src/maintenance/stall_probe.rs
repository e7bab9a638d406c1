//! The ticker: how late the async threads wake what is due, which is how late they are for every stream.
//!
//! It sleeps for a millisecond again and again and remembers by how much the worst sleep was too long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How often it ticks.
const TICK: Duration = Duration::from_millis(1);

/// The worst lateness.
#[derive(Debug, Default)]
pub struct Ticker {
    worst_us: AtomicU64,
}

impl Ticker {
    /// Ticks until it is dropped. Must run as a task of its own.
    pub async fn run(self: Arc<Self>) {
        loop {
            let started = Instant::now();
            tokio::time::sleep(TICK).await;
            let late = started.elapsed().saturating_sub(TICK);
            self.worst_us.fetch_max(late.as_micros() as u64, Relaxed);
        }
    }

    /// The worst lateness since this was last asked, in milliseconds.
    pub fn take_ms(&self) -> f64 {
        self.worst_us.swap(0, Relaxed) as f64 / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_blocked_thread_is_noticed_once() {
        let ticker = Arc::new(Ticker::default());
        let running = tokio::spawn(ticker.clone().run());
        tokio::time::sleep(Duration::from_millis(5)).await;
        std::thread::sleep(Duration::from_millis(100));
        tokio::time::sleep(Duration::from_millis(5)).await;
        running.abort();
        running.await.ok();
        assert!(ticker.take_ms() >= 40.0);
        assert_eq!(ticker.take_ms(), 0.0);
    }
}
