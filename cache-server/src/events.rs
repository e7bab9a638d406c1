//! What the read path reports, counted here and nowhere else.

use crate::read::single_flight::Turnout;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What the read path reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A read ended: all columns were in the disk cache, or in the memory tier.
    Hit,
    /// A read ended: some columns were not there, it filled them (`Leader`) or waited for the fill
    /// (`Follower`).
    Miss(Turnout),
    /// A segment was filled before anybody asked for it.
    Prefetched,
    /// A filled segment was not stored: memory serves it until no stream needs it.
    KeptInMemory,
    /// A filled segment found no place, neither on disk nor in memory: who needs it next fetches it again.
    Unplaced,
}

/// Sums since start.
#[derive(Debug, Default)]
pub struct Events {
    /// Reads answered from the disk cache or from the memory tier.
    pub hits: AtomicU64,
    /// Reads that waited for a fill under way.
    pub joins: AtomicU64,
    /// Fills, ahead of a read or for it.
    pub misses: AtomicU64,
    /// Fills ahead of a read.
    pub prefetched: AtomicU64,
    /// Fills that were not stored.
    pub bypassed: AtomicU64,
    /// Those of them that found no place in memory either: they are fetched again when they are needed again.
    pub unplaced: AtomicU64,
    /// Rows sent on batch streams.
    pub rows_served: AtomicU64,
    /// Body bytes sent on batch streams.
    pub bytes_served: AtomicU64,
    /// Those of them that readers took from shared memory.
    pub bytes_shared: AtomicU64,
    /// Those of these that readers copied out of segment files.
    pub bytes_lent: AtomicU64,
    /// Those of these whose rows the readers found by the plan.
    pub bytes_planned: AtomicU64,
    /// Batch streams opened.
    pub streams: AtomicU64,
    /// Requests of S3 clients, and those of them that were refused.
    pub gateway_requests: AtomicU64,
    pub gateway_refused: AtomicU64,
}

impl Events {
    /// Counts an event, in each of the counters that it belongs to.
    pub fn record(&self, event: Event) {
        let counters: &[&AtomicU64] = match event {
            Event::Hit => &[&self.hits],
            Event::Miss(Turnout::Follower) => &[&self.joins],
            Event::Miss(Turnout::Leader) => &[&self.misses],
            Event::Prefetched => &[&self.misses, &self.prefetched],
            Event::KeptInMemory => &[&self.bypassed],
            Event::Unplaced => &[&self.bypassed, &self.unplaced],
        };
        for counter in counters {
            counter.fetch_add(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_that_found_no_place_is_told_from_one_that_memory_keeps() {
        let events = Events::default();
        events.record(Event::KeptInMemory);
        assert_eq!((events.bypassed.load(Relaxed), events.unplaced.load(Relaxed)), (1, 0));
        events.record(Event::Unplaced);
        assert_eq!((events.bypassed.load(Relaxed), events.unplaced.load(Relaxed)), (2, 1));
    }
}
