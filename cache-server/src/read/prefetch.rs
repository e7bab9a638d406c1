//! Prefetch: makes segments ready in the order in which announced plans need them.
//!
//! How far ahead of the fastest stream of a job: as many decoded bytes of the plan as [`Memory::ahead_bytes`]
//! says, shared by all jobs; at an epoch's end that goes on into the next. It yields to demand: it uses a
//! part of the memory for fills and of the requests to the source, and starts nothing while a read waits for
//! memory. It fetches nothing that it could not keep: either the disk cache has free room, or room in transit
//! is set aside first. What is stored pushes out only what is needed later, as with any fill.
//!
//! [`Memory::ahead_bytes`]: crate::read::memory::Memory::ahead_bytes

use crate::read::budget::Held;
use crate::read::cache::Cache;
use crate::read::plans::{Due, JobKey};
use crate::runtime::blocking;
use forebay_dataset::stream::Reading;
use forebay_proto::manifest::{Manifest, SegmentId};
use futures::FutureExt;
use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Segments that are prefetched at once, as far as there is memory for them. Where few requests may be under
/// way the others wait for their turn, and those that lie side by side in an object are sent as one.
const CONCURRENCY: usize = 16;

/// A segment that could not be fetched, or that nothing could hold, is left alone for so long: whoever needs
/// it tries, and is told.
const PAUSE: Duration = Duration::from_secs(5);

/// Decoded bytes of segments that are read in one request, about.
const RUN_BYTES: u64 = 128 << 20;

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
                let Start { id, reading, segment, share, room } = start;
                let held = AssertUnwindSafe(cache.prefetch(&reading, segment, share, room)).catch_unwind();
                (id, held.await.unwrap_or(false))
            });
        }
        tokio::select! {
            () = moved => {}
            // A job that does not come back, and what failed a while ago: only time tells of these.
            () = tokio::time::sleep(PAUSE) => {}
            Some(landed) = under_way.join_next() => if let Ok((id, is_held)) = landed {
                course.landed(id, is_held);
            },
        }
    }
}

/// What is being fetched, and what failed.
#[derive(Debug, Default)]
struct Course {
    /// With the bytes that it may add to the disk cache.
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
    /// Its part of the memory for prefetches, by what the manifest says.
    share: Held,
}

impl Course {
    fn landed(&mut self, id: SegmentId, is_held: bool) {
        self.under_way.remove(&id);
        if !is_held {
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
        let Some((reading, mut due)) = cache.plans().due(job) else { return };
        // What is kept anyway may come early: then requests that wait for each other become fewer.
        if cache.source().prefers_runs() && cache.disk().free_bytes() > ahead {
            due = in_runs(&reading.manifest, due, ahead);
        }
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
            let Some(share) = cache.memory().prefetch.try_hold(s.decoded_bytes.saturating_mul(2)) else {
                return;
            };
            let coming = self.under_way.values().copied().filter(|bytes| *bytes > 0);
            let is_free = cache.disk().has_room(coming.chain([s.decoded_bytes]));
            let room = if is_free { None } else { cache.transit_room(s.decoded_bytes) };
            if !is_free && room.is_none() {
                return;
            }
            cache.plans().prefetched(job, &due);
            self.under_way.insert(id, if is_free { s.decoded_bytes } else { 0 });
            starts.push(Start { id, reading: reading.clone(), segment: due.segment, room, share });
        }
    }
}

/// What is due within so many bytes, each followed by those that lie right behind it in its object: the
/// source reads them in one request. What a stream has come to stays first.
fn in_runs(manifest: &Manifest, due: Vec<Due>, ahead: u64) -> Vec<Due> {
    let (mut order, later): (Vec<Due>, Vec<Due>) = due.into_iter().partition(|due| due.is_read);
    let place = |segment| manifest.segment(segment).ok().map(|s| (s.object, s.decoded_bytes));
    let runs = runs(&later.iter().map(|due| due.segment).collect::<Vec<_>>(), place, ahead);
    let first: HashMap<u32, Due> = later.into_iter().rev().map(|due| (due.segment, due)).collect();
    order.extend(runs.iter().filter_map(|segment| first.get(segment)));
    order
}

/// The first of `segments` that make up so many bytes, each once, and each followed by those of them that lie
/// behind it in its object; `place` says a segment's object and bytes.
fn runs(segments: &[u32], place: impl Fn(u32) -> Option<(u32, u64)>, ahead: u64) -> Vec<u32> {
    let mut sum = 0;
    let is_within = |segment: &&u32| {
        sum += place(**segment).map_or(0, |(_, bytes)| bytes);
        sum <= ahead
    };
    let within: Vec<u32> = segments.iter().take_while(is_within).copied().collect();
    let (mut left, mut order): (HashSet<u32>, _) = (within.iter().copied().collect(), Vec::new());
    for first in within {
        let (mut segment, mut run) = (first, 0);
        while run < RUN_BYTES
            && let Some((object, bytes)) = place(segment)
            && place(first).is_some_and(|(of, _)| of == object)
            && left.remove(&segment)
        {
            order.push(segment);
            run += bytes;
            segment += 1;
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_followed_by_what_lies_behind_it_in_its_object() {
        // Objects of four segments, a third of a run each.
        let place = |segment: u32| Some((segment / 4, RUN_BYTES / 3 + 1));
        let order = |segments: &[u32], n| runs(segments, place, (RUN_BYTES / 3 + 1) * n);
        assert_eq!(order(&[5, 9, 2, 3, 6, 4, 8], 9), [5, 6, 9, 2, 3, 4, 8]);
        assert_eq!(
            order(&[0, 9, 3, 2, 1], 9),
            [0, 1, 2, 9, 3],
            "a run ends when it is long enough: 3 comes by itself, at its turn"
        );
        assert_eq!(order(&[7, 8, 7], 9), [7, 8], "another object, and one that is due twice");
        assert_eq!(order(&[5, 9, 2, 6], 3), [5, 9, 2], "6 is too far ahead");
        assert!(order(&[], 9).is_empty());
    }
}
