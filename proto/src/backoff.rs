//! Waits between attempts: exponential, bounded, with jitter.
//!
//! Clients that fail in the same instant must not come back in the same instant. So up to half of each wait
//! is random: "equal jitter" in M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.

use std::time::Duration;

/// The waits of one series of attempts. Each bound is twice the one before it, up to a maximum; a wait is
/// between half of its bound and all of it.
///
/// ```
/// use forebay_proto::Backoff;
/// use std::time::Duration;
///
/// let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// let first = backoff.next();
/// assert!(first >= Duration::from_millis(50) && first <= Duration::from_millis(100));
/// ```
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    bound: Duration,
}

impl Backoff {
    /// Waits of at most `first` at the beginning, and never more than `max`.
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, bound: first }
    }

    /// How long to wait now: half of a bound, to all of it. The bound doubles with each call.
    #[expect(
        clippy::should_implement_trait,
        reason = "the series never ends: an Option would always be Some"
    )]
    pub fn next(&mut self) -> Duration {
        let bound = self.bound.min(self.max);
        self.bound = bound.saturating_mul(2);
        bound.mul_f64(0.5 + 0.5 * fastrand::f64())
    }

    /// A single wait: at most `bound`, and at least half of it. For what many do at the same pace.
    pub fn once(bound: Duration) -> Duration {
        Self::new(bound, bound).next()
    }

    /// An attempt succeeded: the next series begins with short waits again.
    pub fn reset(&mut self) {
        self.bound = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(100);
    const MAX: Duration = Duration::from_secs(5);

    #[test]
    fn waits_grow_to_the_maximum_and_start_over() {
        let mut backoff = Backoff::new(FIRST, MAX);
        for _ in 0..2 {
            let waits: Vec<_> = (0..40).map(|_| backoff.next()).collect();
            assert!(waits[0] >= FIRST / 2 && waits[0] <= FIRST);
            assert!(waits.iter().all(|w| *w <= MAX));
            assert!(waits[10..].iter().all(|w| *w >= MAX / 2));
            backoff.reset();
        }
        assert!(Backoff::new(MAX, FIRST).next() <= FIRST);
    }

    #[test]
    fn series_that_begin_together_spread() {
        for wait in [|| Backoff::new(FIRST, MAX).next(), || Backoff::once(FIRST)] {
            let mut waits: Vec<_> = (0..100).map(|_| wait()).collect();
            waits.sort();
            assert!(waits[0] >= FIRST / 2 && waits[99] <= FIRST);
            waits.dedup();
            assert!(waits.len() > 90);
        }
    }
}
