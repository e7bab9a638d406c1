//! How fast a job takes its samples, smoothed, so that what two jobs will need can be compared in time.

use std::time::{Duration, Instant};

/// What happened so long ago counts a third of what happens now.
const MEMORY: Duration = Duration::from_secs(10);

/// Observations that lie closer together say little.
const BETWEEN: Duration = Duration::from_millis(500);

/// Samples that a job takes in a second.
#[derive(Debug)]
pub(super) struct Throughput {
    at: Instant,
    samples: u128,
    per_s: Option<f64>,
}

impl Throughput {
    /// Unknown so far; `samples` are done.
    pub fn new(now: Instant, samples: u128) -> Self {
        Self { at: now, samples, per_s: None }
    }

    /// This many samples are done now.
    pub fn observe(&mut self, now: Instant, samples: u128) {
        let passed = now.saturating_duration_since(self.at);
        if samples < self.samples {
            // A run that starts again from an earlier place.
            (self.at, self.samples) = (now, samples);
        } else if passed >= BETWEEN {
            let rate = (samples - self.samples) as f64 / passed.as_secs_f64();
            let weight = 1.0 - (-passed.as_secs_f64() / MEMORY.as_secs_f64()).exp();
            self.per_s = Some(self.per_s.map_or(rate, |old| old + weight * (rate - old)));
            (self.at, self.samples) = (now, samples);
        }
    }

    /// Samples a second; `None` before anything was seen.
    pub fn per_s(&self) -> Option<f64> {
        self.per_s
    }
}

/// By how much a job's distances are longer than those of the fastest: no more than a millionfold, however
/// long it stands still. A job of unknown throughput counts as fast.
pub(super) fn stretch(per_s: Option<f64>, fastest: f64) -> f64 {
    per_s.map_or(1.0, |own| (fastest / own.max(1e-9)).clamp(1.0, 1e6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_follows_what_happens() {
        let start = Instant::now();
        let mut throughput = Throughput::new(start, 100);
        throughput.observe(start + Duration::from_millis(100), 200);
        assert_eq!(throughput.per_s(), None, "too soon");
        throughput.observe(start + Duration::from_secs(1), 1100);
        assert_eq!(throughput.per_s(), Some(1000.0));
        throughput.observe(start + Duration::from_secs(11), 3100);
        let now = throughput.per_s().unwrap();
        assert!(now > 200.0 && now < 600.0, "{now}");
        throughput.observe(start + Duration::from_secs(12), 0);
        assert_eq!(throughput.per_s(), Some(now), "starting again is no throughput");
        throughput.observe(start + Duration::from_secs(300), 0);
        assert!(throughput.per_s().unwrap() < 1.0);
        assert_eq!(stretch(Some(0.0), 10.0), 1e6);
        assert_eq!((stretch(Some(5.0), 10.0), stretch(None, 10.0), stretch(Some(0.0), 0.0)), (2.0, 1.0, 1.0));
    }
}
