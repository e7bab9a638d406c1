//! The announced plans: which segment will be read when.
//!
//! A stream announces the plan that it reads: every position of the epoch, and of those that follow, is known
//! from then on. Streams of one dataset version, seed and shuffle are one **job**, which stands where its
//! slowest stream does. A segment that no stream of the job needs any more in this epoch is needed again in
//! the next one, if there is one. Jobs advance at different speeds: distances are measured in samples of the
//! fastest, by each job's own throughput. A segment may be in several datasets, splits and mixes: its next
//! use is the nearest of all.
//!
//! A segment that a run has read for the last time is needed after all that is planned, but before segments
//! in no plan at all; it is not worth another's place.
//!
//! A job whose streams have all gone is remembered for a minute, so that it may come back; it is forgotten at
//! once if its last epoch was over.
//!
//! Memory: 16 bytes for each segment of a job, 32 more for each of its epochs that is known, and a bit for
//! each distinct set of segments that its streams want; [`BYTES_MAX`] for all jobs together. A stream beyond
//! that is read like any other, but unannounced.

mod ids;
mod job;
mod schedule;
mod throughput;
mod view;
mod wanted;

use crate::disk::policy::{Forecast, NextUse};
use forebay_dataset::stream::{Orders, PlanWalk, Reading};
use forebay_proto::Result;
use forebay_proto::manifest::SegmentId;
use forebay_proto::plan::Order;
use forebay_proto::plan::steps::{Cut, Ending};
use ids::SegmentIds;
pub use job::{Due, JobKey};
use job::{Job, Reader, RunPosition};
use parking_lot::Mutex;
use schedule::AccessSchedule;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use tokio::sync::Notify;
use view::JobView;
pub use view::ReadSpan;

/// Bytes that all jobs may take together: one of two million segments, or many small ones.
pub const BYTES_MAX: usize = 256 << 20;

/// The plans that streams have announced, by job: when each reads which segments, and how far it has come.
#[derive(Debug, Default)]
pub struct Plans {
    state: Mutex<Jobs>,
    /// The orders that streams follow, shared among them.
    pub orders: Orders,
    /// Held while a plan's schedule is computed: the ranks of a job all announce at once.
    computing: Mutex<()>,
    /// Told when a stream has come further, joined or gone.
    moved: Notify,
    /// Plans announced since start, one for each stream.
    pub announced: AtomicU64,
    clock: Clock,
}

/// What tells the time: jobs are compared by how fast they are.
#[derive(Debug)]
struct Clock(fn() -> Instant);

impl Default for Clock {
    fn default() -> Self {
        Self(Instant::now)
    }
}

#[derive(Debug, Default)]
struct Jobs {
    jobs: HashMap<JobKey, Job>,
    next_reader: u64,
    /// Segments that are served from memory until their read span is over: nobody reads the disk cache for
    /// them before.
    in_memory: Arc<HashMap<SegmentId, Arc<ReadSpan>>>,
}

impl Plans {
    /// For whom time stands still: no job is faster than another, none is given up.
    #[cfg(test)]
    pub fn timeless() -> Self {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        Self { clock: Clock(|| *START.get_or_init(Instant::now)), ..Self::default() }
    }

    fn now(&self) -> Instant {
        (self.clock.0)()
    }

    /// Announces a stream over a plan, which lasts as long as the value returned. Computes an epoch's
    /// schedule if it is not known: milliseconds for each 100,000 segments, not for an async thread.
    #[tracing::instrument(level = "trace", skip_all)]
    pub fn announce(self: &Arc<Self>, reading: &Reading, walk: &PlanWalk) -> Result<Announced> {
        let (key, cut) = (*walk.order.key(), walk.cut);
        let job = JobKey { dataset: reading.manifest.id(), seed: key.seed, shuffle: key.shuffle };
        let position = Arc::new(AtomicU64::new(cut.first_position));
        let segments = reading.manifest.segments().len().max(1) as u64;
        let reader = Reader {
            rank: walk.rank,
            world: cut.world,
            epoch: key.epoch,
            position: position.clone(),
            wanted: walk.wanted.clone(),
            reading: reading.clone(),
            left: None,
        };
        let job = self.join(job, reader, walk).map(|number| (job, number));
        if job.is_none() {
            tracing::warn!(
                dataset = reading.manifest.uri(),
                limit_bytes = BYTES_MAX,
                "the announced plans take too much memory: what this stream will read is not foreseen"
            );
        }
        self.announced.fetch_add(1, Relaxed);
        self.moved.notify_waiters();
        let step = (walk.order.len() / segments / 4).max(1);
        Ok(Announced { plans: self.clone(), job, position, step, told: AtomicU64::new(cut.first_position) })
    }

    /// Adds a stream to its job, with the schedules of its epoch and of the one after it. `None` if there is
    /// no room for it.
    fn join(&self, key: JobKey, reader: Reader, walk: &PlanWalk) -> Option<u64> {
        let (manifest, epoch, samples) = (reader.reading.manifest.clone(), reader.epoch, walk.order.len());
        let last_epoch = walk.epochs_after.map(|n| epoch.saturating_add(n));
        let _computing = self.computing.lock();
        let segments = manifest.segments().len();
        let (known, ids, held) = {
            let mut state = self.state.lock();
            state.forget(self.now());
            let known = state.jobs.get(&key);
            let same = state.jobs.iter().find(|(k, _)| k.dataset == key.dataset);
            (
                known.map(|j| j.schedules.clone()),
                same.map(|(_, j)| j.ids.clone()),
                state.jobs.values().map(Job::bytes).sum::<usize>(),
            )
        };
        let after = epoch.checked_add(1).filter(|e| last_epoch.is_none_or(|last| *e <= last));
        let epochs = || [Some(epoch), after].into_iter().flatten();
        let own = if known.is_some() { 0 } else { ids::bytes(segments) };
        let mut schedules: BTreeMap<u64, Arc<AccessSchedule>> = known.unwrap_or_default();
        let new = epochs().filter(|epoch| !schedules.contains_key(epoch)).count() * schedule::bytes(segments);
        let wanted = reader.wanted.as_ref().map_or(0, |wanted| wanted.bytes());
        if held + own + new + wanted > BYTES_MAX {
            return None;
        }
        let ids = ids.unwrap_or_else(|| Arc::new(SegmentIds::of(&manifest)));
        let padding = padding(samples, &walk.cut);
        for of in epochs() {
            schedules.entry(of).or_insert_with(|| {
                let next = (of != epoch).then(|| Order::new(&manifest, key.seed, of, key.shuffle));
                Arc::new(AccessSchedule::new(next.as_ref().unwrap_or(&walk.order), segments, padding))
            });
        }
        let mut state = self.state.lock();
        state.next_reader += 1;
        let number = state.next_reader;
        let job = state.jobs.entry(key).or_insert_with(|| Job::new(ids, samples, epoch, self.now()));
        job.schedules.extend(schedules);
        job.last_epoch = last_epoch.or(job.last_epoch);
        job.join(number, reader, self.now());
        Some(number)
    }

    /// The reads that a segment is filled for: those of each job that reads it now, or else the next there
    /// are. A stream may want a segment a message before it says that it has come there.
    pub fn read_span(&self, id: SegmentId) -> ReadSpan {
        let mut span = ReadSpan::default();
        let mut state = self.state.lock();
        let fronts: Vec<_> = state.jobs.iter().filter_map(|(key, job)| Some((*key, job.front()?))).collect();
        let views = state.views(self.now());
        drop(state);
        for view in &views {
            if let Some((_, front)) = fronts.iter().find(|(key, _)| *key == view.key) {
                view.extend_span(id, *front, &mut span);
            }
        }
        if span.is_empty() {
            let distance = |view: &JobView| view.ids.find(id).map(|segment| view.distance(segment)).min();
            let nearest = views.iter().filter_map(|v| Some((distance(v)?, v))).min_by_key(|(d, _)| *d);
            if let Some((_, view)) = nearest {
                view.extend_span(id, RunPosition { epoch: u64::MAX, position: 0 }, &mut span);
            }
        }
        span
    }

    /// Whether a read span is over for every job.
    pub fn is_over(&self, span: &ReadSpan) -> bool {
        let mut state = self.state.lock();
        state.forget(self.now());
        span.ends.iter().all(|(key, end)| {
            let at = state.jobs.get(key).and_then(Job::at);
            at.is_none_or(|at| at >= *end || at.epoch > end.epoch)
        })
    }

    /// From now on a segment is served from memory until its read span is over: on disk it is needed after
    /// that only.
    pub fn keep_in_memory(&self, id: SegmentId, span: Arc<ReadSpan>) {
        Arc::make_mut(&mut self.state.lock().in_memory).insert(id, span);
    }

    /// A segment is no longer served from memory.
    pub fn left_memory(&self, id: SegmentId) {
        Arc::make_mut(&mut self.state.lock().in_memory).remove(&id);
    }

    /// The jobs that have an open stream.
    pub fn jobs(&self) -> Vec<JobKey> {
        let mut state = self.state.lock();
        state.forget(self.now());
        state.jobs.iter().filter(|(_, job)| job.is_read()).map(|(key, _)| *key).collect()
    }

    /// The segments that a job will read soon, in the order of need, this epoch and the next; `None` if it
    /// has no open stream for which they may be fetched ahead.
    pub fn due(&self, job: JobKey) -> Option<(Reading, Vec<Due>)> {
        self.state.lock().jobs.get(&job)?.due()
    }

    /// A prefetch of a job has come this far.
    pub fn prefetched(&self, job: JobKey, due: &Due) {
        if let Some(job) = self.state.lock().jobs.get_mut(&job) {
            job.prefetched = job.prefetched.max(Some(due.at));
        }
    }

    /// Waits until a stream has come further, joined or gone, from when this was called.
    pub fn moved(&self) -> tokio::sync::futures::Notified<'_> {
        self.moved.notified()
    }
}

impl Jobs {
    fn forget(&mut self, now: Instant) {
        self.jobs.retain(|_, job| job.is_alive(now));
    }

    /// All jobs as they stand now.
    fn views(&mut self, now: Instant) -> Vec<JobView> {
        self.forget(now);
        for job in self.jobs.values_mut() {
            let done = job.done();
            job.throughput.observe(now, done);
        }
        let fastest = self.jobs.values().filter_map(|job| job.throughput.per_s()).fold(0.0, f64::max);
        self.jobs.iter().filter_map(|(key, job)| JobView::new(*key, job, fastest)).collect()
    }
}

impl Forecast for Plans {
    fn next_uses(&self, ids: &[SegmentId]) -> Vec<NextUse> {
        let (views, in_memory) = {
            let mut state = self.state.lock();
            (state.views(self.now()), state.in_memory.clone())
        };
        let next_use = |id: &SegmentId| {
            let span = in_memory.get(id);
            let distances = views.iter().flat_map(|view| {
                view.ids.find(*id).map(move |segment| match span {
                    Some(span) => view.distance_after(segment, span),
                    None => view.distance(segment),
                })
            });
            distances.min().map_or(NextUse::Unplanned, NextUse::Planned)
        };
        ids.iter().map(next_use).collect()
    }
}

/// Rows of the epoch's beginning that fill up the last step.
fn padding(samples: u64, cut: &Cut) -> u64 {
    let slots = match cut.ending {
        Ending::Drop => return 0,
        Ending::Pad => cut.global_batch,
        Ending::Exact => u64::from(cut.world),
    };
    match samples.saturating_sub(cut.first_position) % slots.max(1) {
        0 => 0,
        short => slots - short,
    }
}

/// A stream's entry among the plans. Dropping it tells that the stream has gone.
#[derive(Debug)]
pub struct Announced {
    plans: Arc<Plans>,
    job: Option<(JobKey, u64)>,
    position: Arc<AtomicU64>,
    /// Positions after which it is worth telling.
    step: u64,
    told: AtomicU64,
}

impl Announced {
    /// No position before this one is needed any more; `u64::MAX`: none of the epoch.
    pub fn reached(&self, position: u64) {
        self.position.store(position, Relaxed);
        if position.saturating_sub(self.told.load(Relaxed)) >= self.step {
            self.told.store(position, Relaxed);
            self.plans.moved.notify_waiters();
        }
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        if let Some((key, number)) = self.job {
            let mut state = self.plans.state.lock();
            if let Some(job) = state.jobs.get_mut(&key) {
                job.leave(number, self.plans.now());
            }
            state.forget(self.plans.now());
        }
        self.plans.moved.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
