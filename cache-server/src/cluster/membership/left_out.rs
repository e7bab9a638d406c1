//! Keys in etcd that this node does not go by. The log says so, but not once for each of a flood.

use std::time::{Duration, Instant};

/// Between two lines of the log about the same.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Why a key counts for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    NoSense,
    NoTls,
    TooMany,
}

/// The keys that were left out, by why.
#[derive(Debug, Default)]
pub(super) struct LeftOut([Reason; 3]);

#[derive(Debug, Default)]
struct Reason {
    told_at: Option<Instant>,
    /// Since then.
    untold: u64,
}

impl LeftOut {
    /// Says that a key is left out, unless that was said of others a moment ago; true if it was said.
    pub fn note(&mut self, why: Why, key: &str, now: Instant) -> bool {
        let reason = &mut self.0[why as usize];
        if reason.told_at.is_some_and(|at| now.duration_since(at) < TELL_EVERY) {
            reason.untold += 1;
            return false;
        }
        let others = std::mem::take(&mut reason.untold);
        reason.told_at = Some(now);
        match why {
            Why::NoSense => {
                tracing::warn!(
                    key,
                    others,
                    "a key in etcd makes no sense: is another program using this prefix?"
                );
            }
            Why::NoTls => tracing::warn!(
                key,
                others,
                "a node that etcd names is left out: it is not at https://, as this one is"
            ),
            Why::TooMany => {
                tracing::warn!(key, others, "etcd has more keys than a node keeps: the newest are left out");
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_told_of_now_and_then() {
        let (mut left_out, start) = (LeftOut::default(), Instant::now());
        let mut lines = 0;
        for n in 0..1000 {
            let now = start + TELL_EVERY * n / 500;
            lines += usize::from(left_out.note(Why::NoSense, "k", now));
        }
        assert_eq!(lines, 2);
        assert!(left_out.note(Why::TooMany, "k", start), "another reason is told by itself");
    }
}
