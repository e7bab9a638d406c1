//! How far a long part is, said every ten seconds; and a bound after which it must have ended.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two lines.
const PAUSE: Duration = Duration::from_secs(10);

/// A part that is under way. Its lines end when it is dropped.
pub struct TimedPart {
    of: Arc<TimedPartOf>,
    stop: Option<(SyncSender<()>, JoinHandle<()>)>,
}

/// What the thread that says it shares with those who work.
struct TimedPartOf {
    part: &'static str,
    unit: &'static str,
    began: Instant,
    limit: Duration,
    done: AtomicU64,
    /// What else there is to say, such as the number of kills.
    note: Mutex<String>,
}

impl TimedPart {
    /// A part that may take `limit`.
    pub fn start(part: &'static str, unit: &'static str, limit: Duration) -> Self {
        let (done, note) = (AtomicU64::new(0), Mutex::default());
        let of = Arc::new(TimedPartOf { part, unit, began: Instant::now(), limit, done, note });
        let (stop, stopped) = sync_channel(1);
        let says = of.clone();
        let thread = std::thread::spawn(move || {
            while stopped.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                println!("  {}", says.line());
            }
        });
        Self { of, stop: Some((stop, thread)) }
    }

    /// So much more is done.
    pub fn add(&self, more: u64) {
        self.of.done.fetch_add(more, Relaxed);
    }

    /// What else the lines say from now on.
    pub fn note(&self, note: String) {
        *self.of.note.lock() = note;
    }

    /// An error once the part takes too long.
    pub fn check(&self) -> anyhow::Result<()> {
        let limit = self.of.limit;
        anyhow::ensure!(self.of.began.elapsed() < limit, "not done after {limit:?}: {}", self.of.line());
        Ok(())
    }

    /// When the part must have ended.
    pub fn deadline(&self) -> Instant {
        self.of.began + self.of.limit
    }
}

impl TimedPartOf {
    fn line(&self) -> String {
        let (done, seconds) = (self.done.load(Relaxed), self.began.elapsed().as_secs());
        let done = match self.unit {
            "GB" => format!("{:.2}", done as f64 / 1e9),
            _ => done.to_string(),
        };
        let Self { part, unit, note, .. } = self;
        let note = note.lock();
        let comma = if note.is_empty() { "" } else { ", " };
        format!("{part}: {done} {unit}{comma}{note}, {seconds} s")
    }
}

impl Drop for TimedPart {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.stop.take() {
            // Fails only if the thread has ended.
            let _ = stop.send(());
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_takes_too_long_is_an_error_that_says_how_far_it_came() {
        let slow = TimedPart::start("killed", "GB", Duration::ZERO);
        slow.add(1_250_000_000);
        slow.note("3 of 200 kills".into());
        let why = slow.check().expect_err("its time is up").to_string();
        assert_eq!(why, "not done after 0ns: killed: 1.25 GB, 3 of 200 kills, 0 s");
        TimedPart::start("s3", "objects", PAUSE).check().expect("there is time");
    }
}
