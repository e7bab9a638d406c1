//! The stall probe: how late the async threads wake a due task, which is how late they are for every stream.
//!
//! It sleeps for a millisecond again and again and remembers the worst delay of the last seconds.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two looks at the clock.
const TICK: Duration = Duration::from_millis(1);

/// The window is made of slots: the oldest one is dropped as a whole.
const SLOT: Duration = Duration::from_secs(5);
const SLOTS: usize = 4;

/// Measures the worst delay of a window of 15 to 20 s.
#[derive(Debug)]
pub struct StallProbe {
    started: Instant,
    worst_us: Mutex<WindowedMax>,
}

impl Default for StallProbe {
    fn default() -> Self {
        Self { started: Instant::now(), worst_us: Mutex::default() }
    }
}

impl StallProbe {
    /// Measures until it is dropped. Must run as a task of its own.
    pub async fn run(self: Arc<Self>) {
        loop {
            let started = Instant::now();
            tokio::time::sleep(TICK).await;
            let late = started.elapsed().saturating_sub(TICK);
            self.worst_us.lock().note(self.slot(), late.as_micros() as u64);
        }
    }

    /// The worst delay of the window, in milliseconds. Looking does not change it: there may be several
    /// scrapers.
    pub fn worst_ms(&self) -> f64 {
        self.worst_us.lock().max(self.slot()) as f64 / 1000.0
    }

    fn slot(&self) -> u64 {
        (self.started.elapsed().as_nanos() / SLOT.as_nanos()) as u64
    }
}

/// The maximum of the values of the last [`SLOTS`] slots.
#[derive(Debug, Default)]
struct WindowedMax([(u64, u64); SLOTS]);

impl WindowedMax {
    fn note(&mut self, slot: u64, value: u64) {
        let (at, max) = &mut self.0[slot as usize % SLOTS];
        *max = if *at == slot { value.max(*max) } else { value };
        *at = slot;
    }

    fn max(&self, slot: u64) -> u64 {
        let recent = self.0.iter().filter(|(at, _)| at + (SLOTS as u64) > slot);
        recent.map(|(_, max)| *max).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_scraper_sees_that_a_thread_was_blocked() {
        let probe = Arc::new(StallProbe::default());
        let running = tokio::spawn(probe.clone().run());
        tokio::time::sleep(Duration::from_millis(5)).await;
        std::thread::sleep(Duration::from_millis(100));
        tokio::time::sleep(Duration::from_millis(5)).await;
        running.abort();
        running.await.ok();
        assert!(probe.worst_ms() >= 40.0);
        assert!(probe.worst_ms() >= 40.0);
    }

    #[test]
    fn what_is_older_than_the_window_is_forgotten() {
        let mut worst = WindowedMax::default();
        worst.note(0, 9);
        worst.note(0, 7);
        worst.note(2, 5);
        assert_eq!([0, 3, 4, 5, 6].map(|slot| worst.max(slot)), [9, 9, 5, 5, 0]);
        worst.note(4, 1);
        assert_eq!(worst.max(4), 5);
    }
}
