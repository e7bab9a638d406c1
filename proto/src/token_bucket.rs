//! A token bucket: a rate on average, and a burst at once. It reads no clock; the caller passes the time.

use std::time::{Duration, Instant};

/// Fills at a steady rate up to a limit, and is emptied by what it allows.
///
/// ```
/// use forebay_proto::TokenBucket;
/// use std::time::{Duration, Instant};
///
/// let now = Instant::now();
/// let mut bucket = TokenBucket::new(10.0, 2.0, now);
/// assert_eq!(bucket.take(2.0, now), Ok(()));
/// assert_eq!(bucket.take(1.0, now), Err(Duration::from_millis(100)));
/// ```
#[derive(Debug, Clone)]
pub struct TokenBucket {
    per_s: f64,
    burst: f64,
    /// Below 0 after [`TokenBucket::charge`].
    tokens: f64,
    at: Instant,
}

impl TokenBucket {
    /// A full bucket of `burst` tokens that gains `per_s` (above 0) a second.
    pub fn new(per_s: f64, burst: f64, now: Instant) -> Self {
        Self { per_s, burst, tokens: burst, at: now }
    }

    /// Takes `cost` tokens, or says how long to wait before asking again. A cost above the burst is allowed
    /// when the bucket is full.
    pub fn take(&mut self, cost: f64, now: Instant) -> Result<(), Duration> {
        self.fill(now);
        let needed = cost.min(self.burst);
        if self.tokens < needed {
            return Err(self.time_for(needed - self.tokens));
        }
        self.tokens -= cost;
        Ok(())
    }

    /// Takes `cost` tokens in any case, and says how long to wait until all that was taken before is paid
    /// for.
    pub fn charge(&mut self, cost: f64, now: Instant) -> Duration {
        let wait = self.debt(now);
        self.tokens -= cost;
        wait
    }

    /// How long it takes until all that was taken is paid for.
    pub fn debt(&mut self, now: Instant) -> Duration {
        self.fill(now);
        self.time_for((-self.tokens).max(0.0))
    }

    /// Adds tokens that were earned or given back.
    pub fn add(&mut self, tokens: f64) {
        self.tokens = (self.tokens + tokens).min(self.burst);
    }

    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at);
        self.at = self.at.max(now);
        self.add(passed.as_secs_f64() * self.per_s);
    }

    fn time_for(&self, tokens: f64) -> Duration {
        Duration::try_from_secs_f64(tokens / self.per_s).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_the_rate_and_earnings() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(4.0, 32.0, start);
        let mut at_once = |now| (0..1000).take_while(|_| bucket.take(1.0, now).is_ok()).count();
        assert_eq!(at_once(start), 32);
        assert_eq!(at_once(start + Duration::from_secs(2)), 8);
        // A clock that is behind takes nothing away.
        assert_eq!(at_once(start), 0);
        assert_eq!(at_once(start + Duration::from_secs(3)), 4);
        bucket.add(5.0);
        let now = start + Duration::from_secs(3);
        assert!((0..5).all(|_| bucket.take(1.0, now).is_ok()));
        assert_eq!(bucket.take(1.0, now), Err(Duration::from_millis(250)));
        bucket.add(1000.0);
        assert_eq!(bucket.take(33.0, now), Ok(()));
        assert_eq!(bucket.debt(now), Duration::from_millis(250));
    }

    #[test]
    fn charges_are_paid_for_by_those_after_them() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(100.0, 50.0, start);
        assert_eq!(bucket.charge(250.0, start), Duration::ZERO);
        assert_eq!(bucket.charge(100.0, start), Duration::from_secs(2));
        assert_eq!(bucket.debt(start + Duration::from_secs(1)), Duration::from_secs(2));
        assert_eq!(bucket.charge(1.0, start + Duration::from_secs(60)), Duration::ZERO);
    }
}
