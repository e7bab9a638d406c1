//! Prefetch: makes segments ready in the order in which announced plans need them.
//!
//! How far ahead of the fastest stream of a job: as many decoded bytes of the plan as [`Memory::ahead_bytes`] says, shared
//! by all jobs; at an epoch's end that goes on into the next. It yields to demand: it uses a part of the memory for fills
//! and of the requests to the source, and starts nothing while a read waits for memory. It fetches nothing that it could
//! not keep: either the store has free room, or room in transit is set aside first. What is stored pushes out only what is
//! needed later, as with any fill.
//!
//! [`Memory::ahead_bytes`]: crate::memory::Memory::ahead_bytes

use crate::cache::{Cache, blocking};
use crate::plans::JobKey;
use crate::room::Held;
use forebay_proto::manifest::SegmentId;
use forebay_segment::answer::Reading;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Segments that are prefetched at once: with a few requests each about half of what the source allows.
const CONCURRENCY: usize = 8;

/// A segment that could not be fetched is left alone for so long: whoever needs it tries, and is told.
const PAUSE: Duration = Duration::from_secs(5);

/// Prefetches for all announced plans, until it is dropped.
pub async fn run(cache: Arc<Cache>) {
    let mut under_way = JoinSet::new();
    let mut course = Course::default();
    loop {
        let moved = cache.plans().moved();
        let (looking, mut looked) = (cache.clone(), std::mem::take(&mut course));
        let look = blocking(move || {
            looking.sweep();
            let starts = looked.look(&looking);
            (looked, starts)
        });
        let starts = match look.await {
            Ok((looked, starts)) => {
                course = looked;
                starts
            }
            Err(_) => Vec::new(),
        };
        for start in starts {
            let cache = cache.clone();
            under_way.spawn(async move {
                let done = cache.prefetch(&start.reading, start.segment, start.room).await;
                drop(start.fill);
                (start.id, done.is_ok())
            });
        }
        tokio::select! {
            () = moved => {}
            // A job that does not come back, and what failed a while ago: only time tells of these.
            () = tokio::time::sleep(PAUSE) => {}
            Some(landed) = under_way.join_next() => if let Ok((id, is_there)) = landed {
                course.landed(id, is_there);
            },
        }
    }
}

/// What is being fetched, and what failed.
#[derive(Debug, Default)]
struct Course {
    /// With the bytes that it may add to the store.
    under_way: HashMap<SegmentId, u64>,
    failed: HashMap<SegmentId, Instant>,
}

/// A segment to fetch.
struct Start {
    id: SegmentId,
    reading: Reading,
    segment: u32,
    /// Where it is kept if it is not stored.
    room: Option<Held>,
    fill: Held,
}

impl Course {
    fn landed(&mut self, id: SegmentId, is_there: bool) {
        self.under_way.remove(&id);
        if !is_there {
            self.failed.insert(id, Instant::now());
        }
    }

    /// What to start now.
    fn look(&mut self, cache: &Cache) -> Vec<Start> {
        self.failed.retain(|_, at| at.elapsed() < PAUSE);
        let jobs = cache.plans().jobs();
        let ahead = cache.memory().ahead_bytes() / jobs.len().max(1) as u64;
        let mut starts = Vec::new();
        for job in jobs {
            self.look_at(cache, job, ahead, &mut starts);
        }
        starts
    }

    fn look_at(&mut self, cache: &Cache, job: JobKey, ahead: u64, starts: &mut Vec<Start>) {
        let Some((reading, due)) = cache.plans().due(job) else { return };
        let mut bytes_ahead = 0;
        for due in due {
            let (Ok(s), Ok(id)) =
                (reading.manifest.segment(due.segment), reading.manifest.segment_id(due.segment))
            else {
                return;
            };
            if !due.is_read {
                bytes_ahead += s.decoded_bytes;
                if bytes_ahead > ahead {
                    return;
                }
            }
            if self.under_way.contains_key(&id) || self.failed.contains_key(&id) || cache.has(&reading, id) {
                continue;
            }
            if self.under_way.len() >= CONCURRENCY || cache.memory().fills.is_short() {
                return;
            }
            let Some(fill) = cache.memory().prefetch.try_hold(s.decoded_bytes.saturating_mul(2)) else {
                return;
            };
            let store = cache.store();
            let coming: u64 = self.under_way.values().sum();
            let is_free = store.used_bytes() + coming + s.decoded_bytes < store.limit_bytes();
            let room = if is_free { None } else { cache.transit_room(s.decoded_bytes) };
            if !is_free && room.is_none() {
                return;
            }
            cache.plans().prefetched(job, &due);
            self.under_way.insert(id, if is_free { s.decoded_bytes } else { 0 });
            starts.push(Start { id, reading: reading.clone(), segment: due.segment, room, fill });
        }
    }
}
