//! What a node is taken for that does not answer.

use forebay_proto::Backoff;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// A timer that fires so much later than due: this process stood still, not the node that it waits for.
const LATE: Duration = Duration::from_millis(100);

/// How often a wait begins again because of that.
const WAITS: usize = 4;

/// How long a node that does not answer is left alone, about: at first, and at most.
pub const SUSPENDED: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(8));

/// For how long a node is left alone.
#[derive(Debug)]
pub struct Suspension {
    until: Option<Instant>,
    backoff: Backoff,
}

impl Suspension {
    pub fn new() -> Self {
        Self { until: None, backoff: Backoff::new(SUSPENDED.0, SUSPENDED.1) }
    }

    pub fn is_on(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// The node did not answer. Calls that fail together count once; false for all but the first.
    pub fn extend(&mut self, now: Instant) -> bool {
        let is_first = !self.is_on(now);
        if is_first {
            self.until = Some(now + self.backoff.next());
        }
        is_first
    }

    /// The node answered.
    pub fn end(&mut self) {
        self.until = None;
        self.backoff.reset();
    }
}

/// What comes within a time; `None` if it does not. Time in which this process stood still is not counted:
/// what it waits for may have come meanwhile, and nobody looked.
pub async fn in_time<T>(limit: Duration, what: impl Future<Output = T>) -> Option<T> {
    tokio::pin!(what);
    for _ in 0..WAITS {
        let began = Instant::now();
        if let Ok(done) = timeout(limit, &mut what).await {
            return Some(done);
        }
        let late = began.elapsed().saturating_sub(limit);
        if late < LATE {
            return None;
        }
        tracing::debug!(late_ms = late.as_millis() as u64, "this node stood still: it waits again");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_fail_together_are_not_asked_again_together() {
        let now = Instant::now();
        let mut untils: Vec<_> = (0..20)
            .map(|_| {
                let mut suspension = Suspension::new();
                suspension.extend(now);
                let until = suspension.until;
                suspension.extend(now);
                assert_eq!(suspension.until, until, "failures at once count once");
                assert!(suspension.is_on(now) && !suspension.is_on(now + SUSPENDED.0));
                until
            })
            .collect();
        untils.dedup();
        assert!(untils.len() > 1);
    }

    #[tokio::test]
    async fn time_in_which_the_process_stands_still_is_not_the_other_node_s() {
        let limit = Duration::from_millis(50);
        let answer = async |ms: u64| {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            ms
        };
        assert_eq!(in_time(limit, answer(10)).await, Some(10));
        assert_eq!(in_time(limit, answer(5_000)).await, None);
        // The only thread is taken for longer than the limit, and the answer is there 20 ms later.
        let stall = async {
            tokio::task::yield_now().await;
            std::thread::sleep(limit + 2 * LATE);
        };
        let began = Instant::now();
        let late = async {
            while began.elapsed() < limit + 2 * LATE + Duration::from_millis(20) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let (answered, ()) = tokio::join!(in_time(limit, late), stall);
        assert_eq!(answered, Some(()));
    }
}
