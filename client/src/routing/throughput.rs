//! How long messages usually take to come, and so when one is late: mean and deviation, both moving, as TCP
//! keeps them for its retransmissions (Jacobson and Karels, "Congestion Avoidance and Control", 1988).

use parking_lot::Mutex;
use std::time::Duration;

/// A message is never late before, and always after that time.
const LATE: (Duration, Duration) = (Duration::from_millis(150), Duration::from_secs(2));

/// What was seen of the waits.
#[derive(Debug, Default)]
pub(crate) struct Throughput(Mutex<Option<WaitStats>>);

#[derive(Debug, Clone, Copy)]
struct WaitStats {
    mean_s: f64,
    deviation_s: f64,
}

impl Throughput {
    /// A message was waited for so long.
    pub fn note(&self, wait: Duration) {
        let wait = wait.as_secs_f64();
        let mut seen = self.0.lock();
        *seen = Some(match *seen {
            None => WaitStats { mean_s: wait, deviation_s: wait / 2.0 },
            Some(WaitStats { mean_s, deviation_s }) => WaitStats {
                mean_s: mean_s + (wait - mean_s) / 8.0,
                deviation_s: deviation_s + ((wait - mean_s).abs() - deviation_s) / 4.0,
            },
        });
    }

    /// After how long the next one is late.
    pub fn late_after(&self) -> Duration {
        let seen = *self.0.lock();
        let late = seen.map_or(LATE.1, |s| Duration::from_secs_f64(s.mean_s + 4.0 * s.deviation_s));
        late.clamp(LATE.0, LATE.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_is_what_is_unusual() {
        let throughput = Throughput::default();
        assert_eq!(throughput.late_after(), LATE.1, "nothing is known");
        (0..100).for_each(|_| throughput.note(Duration::from_millis(1)));
        assert_eq!(throughput.late_after(), LATE.0);
        (0..100).for_each(|i| throughput.note(Duration::from_millis(if i % 2 == 0 { 100 } else { 300 })));
        assert!((400..1000).contains(&throughput.late_after().as_millis()), "{:?}", throughput.late_after());
        (0..100).for_each(|_| throughput.note(Duration::from_secs(60)));
        assert_eq!(throughput.late_after(), LATE.1);
    }
}
