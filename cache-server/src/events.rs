//! What the read path reports, counted here and nowhere else.

use crate::read::single_flight::Seat;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What the read path reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A read ended: all columns were in the disk cache, or in transit.
    Hit,
    /// A read ended: some columns were not there, it filled them (`Led`) or waited for the fill (`Joined`).
    Miss(Seat),
    /// A segment was filled before anybody asked for it.
    Prefetched,
    /// What was filled was stored.
    Stored,
    /// What was filled was not stored: it is served from memory.
    Bypassed,
}

/// Sums since start.
#[derive(Debug, Default)]
pub struct Events {
    /// Reads answered from the disk cache or from what is in transit.
    pub hits: AtomicU64,
    /// Reads that waited for a fill under way.
    pub joins: AtomicU64,
    /// Fills, ahead of a read or for it.
    pub misses: AtomicU64,
    /// Fills ahead of a read.
    pub prefetched: AtomicU64,
    /// Fills that were not stored.
    pub bypassed: AtomicU64,
    /// Rows sent on batch streams.
    pub rows_served: AtomicU64,
    /// Body bytes sent on batch streams.
    pub bytes_served: AtomicU64,
    /// Batch streams opened.
    pub streams: AtomicU64,
}

impl Events {
    /// Counts an event.
    pub fn record(&self, event: Event) {
        let counters: &[&AtomicU64] = match event {
            Event::Hit => &[&self.hits],
            Event::Miss(Seat::Joined) => &[&self.joins],
            Event::Miss(Seat::Led) => &[&self.misses],
            Event::Prefetched => &[&self.misses, &self.prefetched],
            Event::Stored => &[],
            Event::Bypassed => &[&self.bypassed],
        };
        for counter in counters {
            counter.fetch_add(1, Relaxed);
        }
    }
}
