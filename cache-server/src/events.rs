//! What a read reports: one event at its end, counted here and nowhere else.

use crate::flight::Seat;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How a segment read ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// All columns were in the store.
    Hit,
    /// Some were not: this read filled them (`Led`) or waited for the fill (`Joined`).
    Miss(Seat),
}

/// Sums since start.
#[derive(Debug, Default)]
pub struct Events {
    /// Reads answered from the store.
    pub hits: AtomicU64,
    /// Reads that waited for a fill under way.
    pub joins: AtomicU64,
    /// Reads that filled.
    pub misses: AtomicU64,
    /// Rows sent on batch streams.
    pub rows_served: AtomicU64,
    /// Body bytes sent on batch streams.
    pub bytes_served: AtomicU64,
    /// Batch streams opened.
    pub streams: AtomicU64,
}

impl Events {
    /// Counts a read.
    pub fn record(&self, event: Event) {
        let counter = match event {
            Event::Hit => &self.hits,
            Event::Miss(Seat::Joined) => &self.joins,
            Event::Miss(Seat::Led) => &self.misses,
        };
        counter.fetch_add(1, Relaxed);
    }
}
