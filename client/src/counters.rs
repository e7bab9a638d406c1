//! What a stretch of reading cost: the difference of two [`Readings`] of the counters. It is taken node by
//! node, because nodes die, restart and fall silent in between.

use forebay_proto::v1::Counters;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Uptimes are told in whole seconds, and answers take their time.
const UPTIME_SLACK: Duration = Duration::from_secs(2);

/// The counters of all who answered, each by itself.
#[derive(Debug, Clone, Default)]
pub struct Readings(BTreeMap<String, Reading>);

#[derive(Debug, Clone)]
struct Reading {
    counters: Counters,
    at: Instant,
    /// For how long the node had been up; `None` for this process, which cannot restart in between.
    uptime: Option<Duration>,
}

impl Readings {
    /// Adds what a node, up for so long, said `at` some moment.
    pub fn add(&mut self, who: String, counters: Counters, at: Instant, uptime: Duration) {
        self.0.insert(who, Reading { counters, at, uptime: Some(uptime) });
    }

    /// Adds the counters of this process.
    pub fn add_own(&mut self, counters: Counters) {
        self.0.insert(String::new(), Reading { counters, at: Instant::now(), uptime: None });
    }

    /// What all of them have done since `before`; `None` if nobody is known to have said anything now: nodes
    /// with a policy tell their figures only to those who have the role `metrics`. A node that was restarted
    /// counts from its start, and so does one that was not there before. A silent node is counted once it
    /// answers again ([`Readings::over`]), or not at all.
    pub fn since(&self, before: &Self) -> Option<Counters> {
        let began = before.0.values().map(|reading| reading.at).min();
        let added = self.0.iter().map(|(who, now)| match before.0.get(who) {
            Some(then) if now.was_restarted(then) => now.counters,
            Some(then) => since(&then.counters, &now.counters),
            // It was up all the while, only not heard: who knows what it did before.
            None if began.is_some_and(|began| now.uptime.is_some_and(|up| up > now.at - began)) => {
                Counters::default()
            }
            None => now.counters,
        });
        added.reduce(|all, one| sum(&all, &one))
    }

    /// From where the next difference is taken: nodes that did not answer stand where they did `before`.
    pub fn over(self, before: Self) -> Self {
        let mut all = before.0;
        all.extend(self.0);
        Self(all)
    }
}

impl Reading {
    /// Whether the node was restarted since `then`.
    fn was_restarted(&self, then: &Self) -> bool {
        match (self.uptime, then.uptime) {
            (Some(now), Some(before)) => now + UPTIME_SLACK < before + (self.at - then.at),
            _ => false,
        }
    }
}

/// What was added between two readings. A counter that went back (the node was restarted) counts from 0.
fn since(before: &Counters, after: &Counters) -> Counters {
    combine(before, after, |before, after| after.checked_sub(before).unwrap_or(after))
}

/// Each counter of both, added up.
pub fn sum(a: &Counters, b: &Counters) -> Counters {
    combine(a, b, |a, b| a + b)
}

fn combine(a: &Counters, b: &Counters, f: impl Fn(u64, u64) -> u64) -> Counters {
    Counters {
        s3_requests: f(a.s3_requests, b.s3_requests),
        s3_bytes: f(a.s3_bytes, b.s3_bytes),
        s3_footer_requests: f(a.s3_footer_requests, b.s3_footer_requests),
        s3_footer_bytes: f(a.s3_footer_bytes, b.s3_footer_bytes),
        s3_retries: f(a.s3_retries, b.s3_retries),
        parquet_bytes_decoded: f(a.parquet_bytes_decoded, b.parquet_bytes_decoded),
        arrow_bytes_decoded: f(a.arrow_bytes_decoded, b.arrow_bytes_decoded),
        hits: f(a.hits, b.hits),
        joins: f(a.joins, b.joins),
        misses: f(a.misses, b.misses),
        evictions: f(a.evictions, b.evictions),
        corrupt_segments: f(a.corrupt_segments, b.corrupt_segments),
        disk_bytes_written: f(a.disk_bytes_written, b.disk_bytes_written),
        rows_served: f(a.rows_served, b.rows_served),
        bytes_served: f(a.bytes_served, b.bytes_served),
        streams: f(a.streams, b.streams),
        prefetched: f(a.prefetched, b.prefetched),
        bypassed: f(a.bypassed, b.bypassed),
        plans_announced: f(a.plans_announced, b.plans_announced),
        peer_fills: f(a.peer_fills, b.peer_fills),
        peer_bytes: f(a.peer_bytes, b.peer_bytes),
        peer_bytes_served: f(a.peer_bytes_served, b.peer_bytes_served),
        shared_bytes: f(a.shared_bytes, b.shared_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences() {
        let before = Counters { s3_bytes: 10, hits: 5, ..Default::default() };
        let after = Counters { s3_bytes: 25, hits: 3, ..Default::default() };
        let d = since(&before, &after);
        assert_eq!((d.s3_bytes, d.hits, d.misses), (15, 3, 0));
    }

    /// Nodes as (name, bytes, uptime in seconds).
    fn readings(at: Instant, nodes: &[(&str, u64, u64)]) -> Readings {
        let mut readings = Readings::default();
        for (name, s3_bytes, uptime_s) in nodes {
            let counters = Counters { s3_bytes: *s3_bytes, ..Default::default() };
            readings.add((*name).to_owned(), counters, at, Duration::from_secs(*uptime_s));
        }
        readings
    }

    fn s3_bytes(now: &Readings, before: &Readings) -> u64 {
        now.since(before).unwrap().s3_bytes
    }

    #[test]
    fn who_is_told_nothing_does_not_take_it_for_0() {
        let before = readings(Instant::now(), &[("a", 1000, 50)]);
        assert_eq!(Readings::default().since(&before), None);
        assert_eq!(before.since(&before), Some(Counters::default()));
    }

    #[test]
    fn a_node_that_dies_takes_nothing_from_what_others_did() {
        let start = Instant::now();
        let later = |seconds| start + Duration::from_secs(seconds);
        let before = readings(start, &[("a", 1000, 50), ("b", 5000, 50)]);
        let without = readings(later(10), &[("a", 1030, 60)]);
        assert_eq!(s3_bytes(&without, &before), 30);
        // It was only silent: all that it did is counted when it answers again.
        let next = without.over(before.clone());
        let silent = readings(later(20), &[("a", 1040, 70), ("b", 5007, 70)]);
        assert_eq!(s3_bytes(&silent, &next), 17);
        // Restarted, it counts from there, be it more or less than it had done before.
        for done in [4, 9000] {
            let restarted = readings(later(20), &[("a", 1040, 70), ("b", done, 6)]);
            assert_eq!(s3_bytes(&restarted, &next), 10 + done);
        }
        // One that joined, and one that was there and is heard for the first time.
        let joined = readings(later(20), &[("a", 1040, 70), ("c", 8, 12), ("d", 70_000, 400)]);
        assert_eq!(s3_bytes(&joined, &next), 18);
        assert_eq!(s3_bytes(&joined, &Readings::default()), 71_048);
    }
}
