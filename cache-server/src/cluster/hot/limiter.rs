//! The limit of bytes served a second.

use super::tuning::BURST;
use forebay_proto::TokenBucket;
use parking_lot::Mutex;
use std::time::Instant;

/// Lets bytes pass at a rate, or at once where there is none.
#[derive(Debug)]
pub struct Limiter(Option<Mutex<TokenBucket>>);

impl Limiter {
    pub fn new(bytes_per_s: Option<u64>) -> Self {
        let bucket = |rate: u64| {
            let rate = rate as f64;
            Mutex::new(TokenBucket::new(rate, rate * BURST.as_secs_f64(), Instant::now()))
        };
        Self(bytes_per_s.map(bucket))
    }

    /// Waits until the bytes before these are paid for.
    pub async fn throttle(&self, bytes: u64) {
        let Some(bucket) = &self.0 else { return };
        let wait = bucket.lock().charge(bytes as f64, Instant::now());
        tokio::time::sleep(wait).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn serving_keeps_to_its_limit() {
        let limiter = Limiter::new(Some(10_000_000));
        let began = Instant::now();
        for _ in 0..10 {
            limiter.throttle(100_000).await;
        }
        assert!(
            began.elapsed() >= Duration::from_millis(65),
            "the last is granted when those before it are paid"
        );
        Limiter::new(None).throttle(u64::MAX).await;
    }
}
