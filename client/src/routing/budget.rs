//! How often streams may be opened again: a fault must not become a storm of attempts.
//!
//! Each attempt after a failure costs a token. Tokens come slowly with time, and faster with work done: a
//! loader that makes progress may also fail over, and one that makes none asks ever more rarely.

use forebay_proto::TokenBucket;
use parking_lot::Mutex;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Attempts that may be made at once. A dead node costs one per stream that it had and one per node that
/// takes over.
const BURST: f64 = 32.0;

/// Attempts per second that are always possible.
const PER_SECOND: f64 = 4.0;

/// Attempts that a message which arrived whole is worth.
const PER_MESSAGE: f64 = 0.1;

/// Bounds how often the streams of a loader are tried again: a few times a second, and more if messages
/// arrive.
#[derive(Debug)]
pub(super) struct AttemptBudget(Mutex<TokenBucket>);

impl Default for AttemptBudget {
    fn default() -> Self {
        Self(Mutex::new(TokenBucket::new(PER_SECOND, BURST, Instant::now())))
    }
}

impl AttemptBudget {
    /// Takes a token, when there is one.
    pub async fn take(&self) {
        while let Err(wait) = self.try_take(Instant::now()) {
            sleep(wait).await;
        }
    }

    /// Takes a token, or says when there may be one.
    pub fn try_take(&self, now: Instant) -> Result<(), Duration> {
        self.0.lock().take(1.0, now)
    }

    /// A message arrived whole.
    pub fn earn(&self) {
        self.0.lock().add(PER_MESSAGE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_a_trickle_and_work_pays() {
        let budget = AttemptBudget::default();
        let t = Instant::now();
        let at_once = |t| std::iter::from_fn(|| budget.try_take(t).ok()).take(1000).count();
        assert_eq!(at_once(t), BURST as usize);
        let wait = budget.try_take(t).unwrap_err();
        assert!(wait <= Duration::from_secs_f64(1.0 / PER_SECOND));
        assert_eq!(at_once(t + Duration::from_secs(2)), 2 * PER_SECOND as usize);
        (0..55).for_each(|_| budget.earn());
        assert_eq!(at_once(t + Duration::from_secs(2)), 5);
        assert_eq!(at_once(t + Duration::from_secs(3600)), BURST as usize);
    }
}
