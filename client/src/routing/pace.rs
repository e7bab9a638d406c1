//! How long messages usually take to come, and so when one is late: mean and deviation, both moving, as TCP keeps them
//! for its retransmissions (Jacobson and Karels, "Congestion Avoidance and Control", 1988).

use parking_lot::Mutex;
use std::time::Duration;

/// A message is never late before, and always after that time.
const LATE: (Duration, Duration) = (Duration::from_millis(150), Duration::from_secs(2));

/// What was seen of the waits.
#[derive(Debug, Default)]
pub struct Pace(Mutex<Option<Seen>>);

#[derive(Debug, Clone, Copy)]
struct Seen {
    mean_s: f64,
    deviation_s: f64,
}

impl Pace {
    /// A message was waited for so long.
    pub fn note(&self, wait: Duration) {
        let wait = wait.as_secs_f64();
        let mut seen = self.0.lock();
        *seen = Some(match *seen {
            None => Seen { mean_s: wait, deviation_s: wait / 2.0 },
            Some(Seen { mean_s, deviation_s }) => Seen {
                mean_s: mean_s + (wait - mean_s) / 8.0,
                deviation_s: deviation_s + ((wait - mean_s).abs() - deviation_s) / 4.0,
            },
        });
    }

    /// After how long the next one is late.
    pub fn late(&self) -> Duration {
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
        let pace = Pace::default();
        assert_eq!(pace.late(), LATE.1, "nothing is known");
        (0..100).for_each(|_| pace.note(Duration::from_millis(1)));
        assert_eq!(pace.late(), LATE.0);
        (0..100).for_each(|i| pace.note(Duration::from_millis(if i % 2 == 0 { 100 } else { 300 })));
        assert!((400..1000).contains(&pace.late().as_millis()), "{:?}", pace.late());
        (0..100).for_each(|_| pace.note(Duration::from_secs(60)));
        assert_eq!(pace.late(), LATE.1);
    }
}
