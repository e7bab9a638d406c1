//! How often streams may be opened anew: a fault must not become a storm of attempts.
//!
//! A bucket of tokens, one for each attempt after a failure. It fills slowly with time, and faster with work done, so
//! that a loader that gets on may also fail over, and one that gets nowhere asks ever more rarely.

use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Attempts that may be made at once. A dead node costs one per stream that it had and one per node that takes over.
const BURST: f64 = 32.0;

/// Attempts per second that are always possible.
const PER_SECOND: f64 = 4.0;

/// Attempts that a message which arrived whole is worth.
const PER_MESSAGE: f64 = 0.1;

/// The bucket.
#[derive(Debug)]
pub struct Budget(Mutex<Bucket>);

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Default for Budget {
    fn default() -> Self {
        Self(Mutex::new(Bucket { tokens: BURST, at: Instant::now() }))
    }
}

impl Budget {
    /// Takes a token, when there is one.
    pub async fn take(&self) {
        while let Err(wait) = self.try_take(Instant::now()) {
            sleep(wait).await;
        }
    }

    /// Takes a token, or says when there may be one.
    pub fn try_take(&self, now: Instant) -> Result<(), Duration> {
        let mut bucket = self.0.lock();
        let gained = now.saturating_duration_since(bucket.at).as_secs_f64() * PER_SECOND;
        (bucket.tokens, bucket.at) = ((bucket.tokens + gained).min(BURST), now);
        if bucket.tokens < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - bucket.tokens) / PER_SECOND));
        }
        bucket.tokens -= 1.0;
        Ok(())
    }

    /// A message arrived whole.
    pub fn earn(&self) {
        let mut bucket = self.0.lock();
        bucket.tokens = (bucket.tokens + PER_MESSAGE).min(BURST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_a_trickle_and_work_pays() {
        let budget = Budget::default();
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
