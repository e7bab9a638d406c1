//! Why connections and requests were turned away, counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Why somebody was turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnedAway {
    /// All connections that the listener takes are in use.
    Full,
    /// All connections that it takes from one address are.
    Address,
    /// The process has no file descriptor left.
    Descriptors,
    /// The connection asked for nothing in time, or gave way to one that may.
    Silent,
    /// It was without a request for too long.
    Idle,
    /// A request was too large, did not come in time, or was no message.
    Request,
    /// A reader took nothing while others waited for the memory that it held.
    Stalled,
}

const ALL: [(TurnedAway, &str); 7] = [
    (TurnedAway::Full, "full"),
    (TurnedAway::Address, "address"),
    (TurnedAway::Descriptors, "descriptors"),
    (TurnedAway::Silent, "silent"),
    (TurnedAway::Idle, "idle"),
    (TurnedAway::Request, "request"),
    (TurnedAway::Stalled, "stalled"),
];

/// How often somebody was turned away for each of them.
#[derive(Debug, Default)]
pub struct Refusals([AtomicU64; ALL.len()]);

impl Refusals {
    /// Notes that somebody was turned away for this reason.
    pub fn count(&self, why: TurnedAway) {
        self.0[why as usize].fetch_add(1, Relaxed);
    }

    /// The reasons by the names that metrics have for them, each with its count.
    pub fn all(&self) -> Vec<(String, u64)> {
        ALL.iter().map(|(why, name)| ((*name).to_owned(), self.0[*why as usize].load(Relaxed))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_under_its_name() {
        let refusals = Refusals::default();
        for (n, (why, _)) in ALL.iter().enumerate() {
            (0..=n).for_each(|_| refusals.count(*why));
        }
        assert!(refusals.all().iter().enumerate().all(|(n, (_, count))| *count == n as u64 + 1));
    }
}
