//! Prefetch: makes segments ready in the order in which announced plans need them.
//!
//! How far ahead of the fastest stream of a job: as many decoded bytes of the plan as [`Memory::ahead_bytes`]
//! says, shared by all jobs; at an epoch's end that goes on into the next. Of a dataset that the disk cache
//! cannot hold it is a small part of the segments at most. It yields to demand: it uses a part of the memory
//! for fills, its requests go behind those that somebody waits for, and it starts nothing while a read waits
//! for memory, or a segment that is here for memory to be decoded. It fetches nothing that it could not
//! keep: either the disk cache has free room, or room in the memory tier is set aside first. A segment that
//! is stored pushes out only those needed later, as with any fill.
//!
//! [`Memory::ahead_bytes`]: crate::read::memory::Memory::ahead_bytes

use crate::disk::policy::Role;
use crate::read::cache::Cache;
use crate::read::fill::Ahead;
use crate::read::plans::{Due, JobKey};
use crate::runtime::blocking;
use forebay_dataset::stream::Reading;
use forebay_dataset::{SegmentRun, Urgency};
use forebay_proto::Backoff;
use forebay_proto::manifest::{Manifest, SegmentId};
use futures::FutureExt;
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Segments that are prefetched at once, so that requests are busy while some are decoded and written. They
/// wait for memory, and where few requests may be under way for their turn; those that lie side by side in an
/// object are then sent as one.
const CONCURRENCY: usize = 32;

/// The same where another node has to make them, which takes each for a read that somebody waits for.
const CONCURRENCY_ELSEWHERE: usize = 16;

/// Segments that are made ready ahead of a stream, at least.
const AHEAD_MIN: usize = 16;

/// Of how many segments one is prefetched, at most, where the disk cache cannot hold all of them: whether a
/// segment is worth its place is decided when it is fetched, and long before its turn that is a guess.
const ONE_AHEAD_OF: usize = 64;

/// A segment that could not be fetched, or that nothing could hold, is left alone for this time at most: a
/// reader who needs it tries, and is told. The nodes of a cluster do not all try again at once.
const PAUSE: Duration = Duration::from_secs(5);

/// While memory is short it is looked at this often: what others hold is given back without a word.
const SHORT: Duration = Duration::from_millis(100);

/// Decoded bytes of segments that are read in one request, about.
const RUN_BYTES: u64 = 128 << 20;

/// The segments being fetched, and those that failed.
#[derive(Debug, Default)]
struct PrefetchState {
    under_way: HashMap<SegmentId, UnderWay>,
    /// With the time until which each is left alone.
    failed: HashMap<SegmentId, Instant>,
    /// Whether memory was short when it last looked.
    is_short: bool,
}

/// Where a segment that is being fetched is to go, and its decoded bytes.
#[derive(Debug, Clone, Copy)]
enum UnderWay {
    ToDisk(u64),
    ToMemory(u64),
}

impl UnderWay {
    fn to_disk(self) -> Option<u64> {
        if let Self::ToDisk(bytes) = self { Some(bytes) } else { None }
    }

    fn to_memory(self) -> Option<u64> {
        if let Self::ToMemory(bytes) = self { Some(bytes) } else { None }
    }
}

/// A segment to fetch.
struct Start {
    id: SegmentId,
    reading: Reading,
    segment: u32,
    ahead: Ahead,
}

/// What may still be ahead of a job's fastest stream.
struct AheadBudget {
    bytes: u64,
    segments: usize,
}

impl AheadBudget {
    /// The share of one of `jobs` in `bytes` ahead, in a dataset that the disk cache holds or does not. A few
    /// segments are always ahead.
    fn new(bytes: u64, segments: usize, jobs: usize, is_held: bool) -> Self {
        let of_all = (segments / ONE_AHEAD_OF).max(AHEAD_MIN);
        let segments = if is_held { usize::MAX } else { (of_all / jobs.max(1)).max(1) };
        Self { bytes: bytes / jobs.max(1) as u64, segments }
    }

    /// Takes one more segment out of it; false if it is spent.
    fn take(&mut self, bytes: u64) -> bool {
        let (Some(bytes), Some(segments)) = (self.bytes.checked_sub(bytes), self.segments.checked_sub(1))
        else {
            *self = Self { bytes: 0, segments: 0 };
            return false;
        };
        *self = Self { bytes, segments };
        true
    }
}

/// Prefetches into a cache until it is dropped.
pub async fn run(cache: Arc<Cache>) {
    let mut under_way = JoinSet::new();
    let mut state = PrefetchState::default();
    loop {
        let moved = cache.plans.moved();
        let (own, mut looked) = (cache.clone(), std::mem::take(&mut state));
        let look = blocking(move || {
            own.memory_tier.sweep();
            let starts = looked.look(&own);
            (looked, starts)
        });
        let starts = match look.await {
            Ok((looked, starts)) => {
                state = looked;
                starts
            }
            Err(_) => Vec::new(),
        };
        for start in starts {
            let cache = cache.clone();
            under_way.spawn(async move {
                let Start { id, reading, segment, ahead } = start;
                let held = AssertUnwindSafe(cache.prefetch(&reading, segment, ahead)).catch_unwind();
                (id, held.await.unwrap_or(false))
            });
        }
        tokio::select! {
            () = moved => {}
            // A job that does not come back, and what failed a while ago: only time tells of these.
            () = tokio::time::sleep(if state.is_short { SHORT } else { Backoff::once(PAUSE) }) => {}
            Some(ended) = under_way.join_next() => if let Ok((id, is_held)) = ended {
                state.ended(id, is_held);
            },
        }
    }
}

impl PrefetchState {
    fn ended(&mut self, id: SegmentId, is_held: bool) {
        self.under_way.remove(&id);
        if !is_held {
            self.failed.insert(id, Instant::now() + Backoff::once(PAUSE));
        }
    }

    /// What to start now.
    fn look(&mut self, of: &Cache) -> Vec<Start> {
        let now = Instant::now();
        self.failed.retain(|_, until| now < *until);
        self.is_short = of.memory.is_short();
        let jobs = of.plans.jobs();
        let (mut starts, count) = (Vec::new(), jobs.len());
        for job in jobs {
            self.look_at(of, job, count, &mut starts);
        }
        starts
    }

    fn look_at(&mut self, of: &Cache, job: JobKey, jobs: usize, starts: &mut Vec<Start>) {
        let Some((reading, due)) = of.plans.due(job) else { return };
        let first = starts.len();
        let segments = reading.manifest.segments().len();
        let is_held = reading.manifest.decoded_bytes() <= of.disk.limit_bytes_under(reading.manifest.uri());
        let free = if is_held { of.disk.free_bytes() } else { 0 };
        let mut left = AheadBudget::new(of.memory.ahead_bytes(free), segments, jobs, is_held);
        for run in runs_of(of, &reading.manifest, due, of.memory.ahead_bytes(0) / jobs.max(1) as u64) {
            // A run is one request: it begins as a whole.
            if !self.under_way.is_empty() && self.under_way.len() + run.len() > CONCURRENCY {
                break;
            }
            let mut due = run.iter();
            if !due.all(|due| self.start(of, (job, &reading), due, &mut left, starts)) {
                break;
            }
        }
        join_neighbours(of, &mut starts[first..]);
    }

    /// Starts a segment that is due, unless there is no need; false if there is no memory for it, or it is
    /// too far ahead.
    fn start(
        &mut self,
        of: &Cache,
        (job, reading): (JobKey, &Reading),
        due: &Due,
        left: &mut AheadBudget,
        starts: &mut Vec<Start>,
    ) -> bool {
        let manifest = &reading.manifest;
        let (Ok(s), Ok(id)) = (manifest.segment(due.segment), manifest.segment_id(due.segment)) else {
            return false;
        };
        if !due.is_read && !left.take(s.decoded_bytes) {
            return false;
        }
        if self.under_way.contains_key(&id) || self.failed.contains_key(&id) || of.has(reading, id) {
            return true;
        }
        let most = match of.peers.ownership.role(id) {
            Role::Primary => CONCURRENCY,
            Role::Replica => CONCURRENCY_ELSEWHERE,
        };
        if self.under_way.len() >= most || self.is_short {
            return false;
        }
        let object = manifest.object_uri(&manifest.objects()[s.object as usize]);
        let under_way = || self.under_way.values().copied();
        let is_free = of
            .disk
            .has_room(Some(&object), under_way().filter_map(UnderWay::to_disk).chain([s.decoded_bytes]));
        let to_memory = under_way().filter_map(UnderWay::to_memory).sum::<u64>() + s.decoded_bytes;
        let tier = match is_free {
            true => None,
            false if to_memory > of.memory.unread_bytes() => return false,
            false => match of.memory_tier.permit(s.decoded_bytes) {
                None => return false,
                tier => tier,
            },
        };
        of.plans.prefetched(job, due);
        let to = if is_free { UnderWay::ToDisk } else { UnderWay::ToMemory };
        self.under_way.insert(id, to(s.decoded_bytes));
        let ahead = Ahead { urgency: Urgency::prefetch(), tier, run: None };
        starts.push(Start { id, reading: reading.clone(), segment: due.segment, ahead });
        true
    }
}

/// The due segments, those that are to begin together side by side.
fn runs_of(of: &Cache, manifest: &Manifest, due: Vec<Due>, ahead: u64) -> Vec<Vec<Due>> {
    // A segment that is stored anyway may come early: then fewer requests do.
    if !of.source.prefers_runs() || of.disk.free_bytes() <= ahead {
        return due.into_iter().map(|due| vec![due]).collect();
    }
    // Segments that a stream has come to stay first, each by itself.
    let (now, later): (Vec<Due>, Vec<Due>) = due.into_iter().partition(|due| due.is_read);
    let place = |segment| manifest.segment(segment).ok().map(|s| (s.object, s.decoded_bytes));
    let later = runs(&later, |due| due.segment, place, (ahead, RUN_BYTES.min(of.memory.fetches.limit())));
    now.into_iter().map(|due| vec![due]).chain(later).collect()
}

/// Has segments that begin together and follow each other in an object read in one request.
fn join_neighbours(of: &Cache, starts: &mut [Start]) {
    if !of.source.prefers_runs() {
        return;
    }
    let object = |start: &Start| start.reading.manifest.segment(start.segment).ok().map(|s| s.object);
    let follows = |a: &Start, b: &Start| a.segment + 1 == b.segment && object(a) == object(b);
    for run in starts.chunk_by_mut(follows).filter(|run| run.len() > 1) {
        let (segments, reading) = (run[0].segment..run[0].segment + run.len() as u32, &run[0].reading);
        let (manifest, projection) = (reading.manifest.clone(), reading.projection.to_vec());
        if let Ok(joined) = SegmentRun::new(of.source.clone(), manifest, segments, projection) {
            let joined = Arc::new(joined);
            run.iter_mut().for_each(|start| start.ahead.run = Some(joined.clone()));
        }
    }
}

/// The first of `due` that make up `ahead` bytes, each segment once, in runs: each with those of them that
/// lie right behind it in its object, up to `run_bytes`; `place` says a segment's object and bytes.
fn runs<T: Copy>(
    due: &[T],
    segment: impl Fn(&T) -> u32,
    place: impl Fn(u32) -> Option<(u32, u64)>,
    (ahead, run_bytes): (u64, u64),
) -> Vec<Vec<T>> {
    let mut sum = 0;
    let is_within = |due: &&T| {
        sum += place(segment(due)).map_or(0, |(_, bytes)| bytes);
        sum <= ahead
    };
    let within: Vec<T> = due.iter().take_while(is_within).copied().collect();
    let mut left: HashMap<u32, T> = within.iter().rev().map(|due| (segment(due), *due)).collect();
    let mut runs = Vec::new();
    for first in within.iter().map(segment) {
        let (mut segment, mut bytes_so_far, mut run) = (first, 0, Vec::new());
        while bytes_so_far < run_bytes
            && run.len() < CONCURRENCY
            && let Some((object, bytes)) = place(segment)
            && place(first).is_some_and(|(of, _)| of == object)
            && let Some(due) = left.remove(&segment)
        {
            run.push(due);
            bytes_so_far += bytes;
            segment += 1;
        }
        if !run.is_empty() {
            runs.push(run);
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::manifest::Digest;

    #[test]
    fn what_failed_everywhere_is_not_tried_again_everywhere_at_once() {
        let mut state = PrefetchState::default();
        let began = Instant::now();
        (0..50).for_each(|id| state.ended(SegmentId(Digest(id)), false));
        let until = || state.failed.values().copied();
        let (first, last) = (until().min().unwrap(), until().max().unwrap());
        assert!(first >= began + PAUSE / 2 && last <= Instant::now() + PAUSE);
        assert!(last - first > PAUSE / 8, "all after the same pause");
    }

    #[test]
    fn bytes_and_a_share_of_the_segments_bound_what_is_ahead() {
        let full = |bytes, segments, jobs| AheadBudget::new(bytes, segments, jobs, false);
        let ahead = |mut left: AheadBudget| (0..1000).take_while(|_| left.take(10)).count();
        assert_eq!((ahead(full(65, 1_000_000, 1)), ahead(full(65, 1_000_000, 2))), (6, 3));
        assert_eq!((ahead(full(9000, 6400, 1)), ahead(full(9000, 6400, 4))), (100, 25));
        assert_eq!((ahead(full(9000, 30, 1)), ahead(full(9000, 30, 100))), (AHEAD_MIN, 1));
        assert_eq!(ahead(AheadBudget::new(9000, 30, 1, true)), 900, "the disk cache holds all of it");
        let mut left = full(15, 1600, 1);
        assert!(left.take(10) && !left.take(10) && !left.take(1), "none overtakes one that is too far ahead");
    }

    #[test]
    fn each_is_followed_by_what_lies_behind_it_in_its_object() {
        // Objects of four segments, a third of a run each.
        let place = |segment: u32| Some((segment / 4, RUN_BYTES / 3 + 1));
        let order = |segments: &[u32], n| {
            runs(segments, |s| *s, place, ((RUN_BYTES / 3 + 1) * n, RUN_BYTES)).concat()
        };
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
