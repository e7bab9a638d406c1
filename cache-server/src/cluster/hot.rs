//! Hot segments: those read so much that this node cannot serve them all alone.
//!
//! Once a second the node measures its load: against `--serve-bytes-per-s` where that is set, and against its
//! processors. After some seconds of saturation the hottest segments that it owns are copied to the least
//! loaded nodes with room, one more copy each time. The topology tells readers, who spread over all copies.
//! When the node could serve all readers alone again for a while, it withdraws the list, and the other nodes
//! drop their copies.
//!
//! * `load`: how busy the node is. `detection`: which segments are hot, and where their copies are.
//! * `publisher`: makes copies, and drops them.

mod detection;
mod load;
pub(crate) mod publisher;
mod tuning;

use detection::Detection;
use forebay_proto::TokenBucket;
use load::LoadMeter;
use parking_lot::{Mutex, MutexGuard};
use std::time::Instant;

/// How busy the node is, and with which segments.
#[derive(Debug)]
pub struct HotSegments {
    /// Of bytes served, where there is a limit.
    limiter: Option<Mutex<TokenBucket>>,
    load: LoadMeter,
    detection: Mutex<Detection>,
}

impl HotSegments {
    /// Of a node that serves `bytes_per_s` at most.
    pub fn new(bytes_per_s: Option<u64>) -> Self {
        let bucket = |rate: u64| {
            let (rate, burst) = (rate as f64, tuning::BURST.as_secs_f64());
            Mutex::new(TokenBucket::new(rate, rate * burst, Instant::now()))
        };
        let limiter = bytes_per_s.map(bucket);
        Self { limiter, load: LoadMeter::new(bytes_per_s), detection: Mutex::default() }
    }

    /// Waits until the bytes before these are paid for, where bytes served a second are limited.
    pub async fn throttle(&self, bytes: u64) {
        self.load.served(bytes);
        let wait = self.limiter.as_ref().map(|bucket| bucket.lock().charge(bytes as f64, Instant::now()));
        if let Some(wait) = wait {
            tokio::time::sleep(wait).await;
        }
    }

    /// Whether the node has so much to do that streams are to count what they send of each segment.
    pub fn is_counting(&self) -> bool {
        self.load() >= tuning::COUNTING_LOAD
    }

    /// How busy the node is, 0 to 1.
    pub fn load(&self) -> f64 {
        self.load.get()
    }

    /// The hot segments that were found, locked as long as they are looked at.
    pub fn detection(&self) -> MutexGuard<'_, Detection> {
        self.detection.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn serving_keeps_to_its_limit() {
        let limited = HotSegments::new(Some(10_000_000));
        let began = Instant::now();
        for _ in 0..10 {
            limited.throttle(100_000).await;
        }
        assert!(
            began.elapsed() >= Duration::from_millis(65),
            "the last is granted when those before it are paid"
        );
        HotSegments::new(None).throttle(u64::MAX).await;
    }
}
