//! Makes a plan's next segments ready ahead of the cursor.

use super::builder::MessageBuilder;
use super::walk::PlanWalk;
use crate::ready::drop_aside;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::sync::Semaphore;

/// Segments that are kept ready at most, however wide the window: beyond that the source decides.
const SEGMENTS_MAX: usize = 64;

/// Segments that are got at once.
const CONCURRENCY: usize = 8;

/// A task that gets the next segments. Dropping this ends it.
pub(super) struct ReadAhead {
    room: Arc<Semaphore>,
    /// Where each wanted segment stands in the order of need.
    places: HashMap<u32, usize>,
    /// Segments before this place are past.
    past: Arc<AtomicUsize>,
    window: usize,
    reached: HashSet<u32>,
    last: Option<u32>,
    /// Segments that room was made for.
    made: usize,
    task: tokio::task::JoinHandle<()>,
}

impl ReadAhead {
    /// Starts reading ahead for a walk; `None` if its source of segments does so by itself.
    pub fn start(builder: &MessageBuilder, walk: &PlanWalk) -> Option<Self> {
        let window = walk.order.window_segments();
        let ready = window.saturating_add(builder.budget.segments_ahead?).min(SEGMENTS_MAX);
        let (room, past) = (Arc::new(Semaphore::new(ready)), Arc::new(AtomicUsize::new(0)));
        let (segments, reading) = (builder.segments.clone(), builder.reading.clone());
        let mut seen = HashSet::new();
        let mut next = walk.order.segments_from(walk.cut.first_position);
        next.retain(|&s| walk.wants(s) && seen.insert(s));
        let places = next.iter().enumerate().map(|(place, segment)| (*segment, place)).collect();
        let (permits, floor) = (room.clone(), past.clone());
        let task = tokio::spawn(async move {
            let mut under_way = tokio::task::JoinSet::new();
            for (place, segment) in next.into_iter().enumerate() {
                match permits.acquire().await {
                    Ok(permit) => permit.forget(),
                    Err(_) => return,
                }
                while under_way.len() >= CONCURRENCY {
                    under_way.join_next().await;
                }
                if place < floor.load(Relaxed) {
                    continue;
                }
                let (segments, reading) = (segments.clone(), reading.clone());
                // A get that fails here fails again, and is reported, when the cursor needs the segment.
                under_way
                    .spawn(async move { segments.get(&reading, segment).await.map(|r| drop_aside([r])) });
            }
            while under_way.join_next().await.is_some() {}
        });
        let (reached, last, made) = (HashSet::new(), None, 0);
        Some(Self { room, places, past, window, reached, last, made, task })
    }

    /// The cursor has come to a row of a segment.
    pub fn reached(&mut self, segment: u32) {
        // Rows come in runs of one segment: most calls end here.
        if self.last.replace(segment) == Some(segment) || !self.reached.insert(segment) {
            return;
        }
        // A rank may have no row in many small segments: a segment one window back is past, reached or not.
        let place = self.places.get(&segment).copied().unwrap_or(0);
        let past = (place + 1).saturating_sub(self.window);
        self.past.fetch_max(past, Relaxed);
        let due = self.reached.len().max(past);
        self.room.add_permits(due.saturating_sub(self.made));
        self.made = self.made.max(due);
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.task.abort();
    }
}
