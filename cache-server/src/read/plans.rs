//! The announced plans: which segment will be read when.
//!
//! Whoever asks for a plan's rows announces it: every position of the epoch, and of those that follow, is
//! known from then on. Streams of one dataset version, seed and shuffle are one **job**, which stands where
//! the slowest of its streams does. What no stream of the job needs any more in this epoch it needs again in
//! the next one, if there is one. Jobs advance at different speeds: distances are measured in samples of the
//! fastest, by each job's own pace. A segment may be in several datasets, splits and mixes: its next use is
//! the nearest of all.
//!
//! What a run has read for the last time is needed after all that is planned, but before what is in no plan
//! at all; it is not worth another's place.
//!
//! A job whose streams have all gone is remembered for a minute, so that it may come back, or at once
//! forgotten if its last epoch was over.
//!
//! Memory: 24 bytes for each segment of a job, 32 more for each of its epochs that is known, and a bit for
//! each of its streams that wants only some; [`BYTES_MAX`] for all jobs together. A stream beyond that is
//! read like any other, but unannounced.

mod ids;
mod job;
mod pace;
mod uses;

use crate::disk::policy::{Forecast, NextUse};
use forebay_dataset::stream::Reading;
use forebay_proto::manifest::SegmentId;
use forebay_proto::plan::steps::Ending;
use forebay_proto::plan::{Order, PlanKey};
use forebay_proto::{Result, v1};
use ids::Ids;
use job::{Job, Place, Reader, View};
pub use job::{JobKey, Pass};
use pace::Pace;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use tokio::sync::Notify;
use uses::Uses;

/// Bytes that all jobs may take together: one of two million segments, or many small ones.
pub const BYTES_MAX: usize = 256 << 20;

/// All announced plans.
#[derive(Debug, Default)]
pub struct Plans {
    state: Mutex<State>,
    /// Held while a plan's turns are computed: the ranks of a job all announce at once.
    computing: Mutex<()>,
    /// Told when a stream has come further, joined or gone.
    moved: Notify,
    announced: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    jobs: HashMap<JobKey, Job>,
    next_reader: u64,
    /// Segments that are served from memory until their pass is over: nobody reads the disk cache for them
    /// before.
    in_memory: Arc<HashMap<SegmentId, Arc<Pass>>>,
}

/// A segment that a job will read soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// The segment.
    pub segment: u32,
    /// Whether a stream has come to its turn.
    pub is_read: bool,
    place: Place,
}

impl Plans {
    /// Announces a checked ticket's plan and its stream, which lasts as long as the answer. Computes the
    /// turns of an epoch if they are not known: milliseconds for each 100,000 segments, not for an async
    /// thread.
    pub fn announce(self: &Arc<Self>, reading: &Reading, ticket: &v1::PlanTicket) -> Result<Announced> {
        let plan = ticket.plan.clone().unwrap_or_default();
        let key = PlanKey::try_from(plan)?;
        let job = JobKey { manifest: key.manifest, seed: key.seed, shuffle: key.shuffle };
        let position = Arc::new(AtomicU64::new(ticket.first_position));
        let samples = Order::samples(&reading.manifest);
        let segments = reading.manifest.segments().len().max(1) as u64;
        let mut announced = Announced {
            plans: self.clone(),
            job: None,
            position: position.clone(),
            step: (samples / segments / 4).max(1),
            told: AtomicU64::new(ticket.first_position),
        };
        let padding = match Ending::from(ticket.ending()) {
            Ending::Drop => 0,
            Ending::Pad => padding(samples, ticket.first_position, ticket.global_batch),
            Ending::Exact => padding(samples, ticket.first_position, u64::from(ticket.world)),
        };
        let last_epoch = ticket.epochs_after.map(|n| key.epoch.saturating_add(n));
        let reader = Reader {
            rank: ticket.rank,
            world: ticket.world,
            epoch: key.epoch,
            position,
            wanted: ticket.segments.clone(),
            reading: reading.clone(),
            left: None,
        };
        match self.join(job, reader, padding, last_epoch) {
            Some(number) => announced.job = Some((job, number)),
            None => tracing::warn!(
                dataset = reading.manifest.uri(),
                limit_bytes = BYTES_MAX,
                "the announced plans take too much memory: what this stream will read is not foreseen"
            ),
        }
        self.announced.fetch_add(1, Relaxed);
        self.moved.notify_waiters();
        Ok(announced)
    }

    /// Adds a stream to its job, with the turns of its epoch and of the one after it. `None` if there is no
    /// room for it.
    fn join(&self, job: JobKey, reader: Reader, padding: u64, last_epoch: Option<u64>) -> Option<u64> {
        let (manifest, epoch) = (reader.reading.manifest.clone(), reader.epoch);
        let _computing = self.computing.lock();
        let segments = manifest.segments().len();
        let (known, ids, held) = {
            let mut state = self.state();
            state.forget(Instant::now());
            let known = state.jobs.get(&job);
            let same = state.jobs.iter().find(|(k, _)| k.manifest == job.manifest);
            (
                known.map(|j| j.uses.clone()),
                same.map(|(_, j)| j.ids.clone()),
                state.jobs.values().map(Job::bytes).sum::<usize>(),
            )
        };
        let after = epoch.checked_add(1).filter(|e| last_epoch.is_none_or(|last| *e <= last));
        let epochs = || [Some(epoch), after].into_iter().flatten();
        let own = if known.is_some() { 0 } else { ids::bytes(segments) };
        let mut uses: BTreeMap<u64, Arc<Uses>> = known.unwrap_or_default();
        let new = epochs().filter(|epoch| !uses.contains_key(epoch)).count() * uses::bytes(segments);
        if held + own + new + reader.wanted.len() > BYTES_MAX {
            return None;
        }
        let ids = ids.unwrap_or_else(|| Arc::new(Ids::of(&manifest)));
        for epoch in epochs() {
            uses.entry(epoch).or_insert_with(|| {
                let order = Order::new(&manifest, job.seed, epoch, job.shuffle);
                Arc::new(Uses::new(&order, segments, padding))
            });
        }
        let samples = Order::samples(&manifest);
        let mut state = self.state();
        state.next_reader += 1;
        let number = state.next_reader;
        let known = state.jobs.entry(job).or_insert_with(|| Job {
            ids,
            samples,
            uses: BTreeMap::new(),
            last_epoch,
            readers: HashMap::new(),
            muster: Default::default(),
            prefetched: None,
            pace: Pace::new(Instant::now(), u128::from(epoch) * u128::from(samples)),
        });
        known.uses.extend(uses);
        known.last_epoch = last_epoch.or(known.last_epoch);
        known.join(number, reader, Instant::now());
        Some(number)
    }

    /// The turn that a segment is filled for: that of each job that reads it now, or else the next there is.
    /// A stream may want a segment a message before it says that it has come there.
    pub fn pass(&self, id: SegmentId) -> Pass {
        let mut pass = Pass::default();
        let mut state = self.state();
        let fronts: Vec<_> = state.jobs.iter().filter_map(|(key, job)| Some((*key, job.front()?))).collect();
        let views = state.views(Instant::now());
        drop(state);
        for view in &views {
            if let Some((_, front)) = fronts.iter().find(|(key, _)| *key == view.key) {
                view.pass(id, *front, &mut pass);
            }
        }
        if pass.is_empty() {
            let distance = |view: &View| view.ids.find(id).map(|segment| view.distance(segment)).min();
            let nearest = views.iter().filter_map(|v| Some((distance(v)?, v))).min_by_key(|(d, _)| *d);
            if let Some((_, view)) = nearest {
                view.pass(id, Place { epoch: u64::MAX, position: 0 }, &mut pass);
            }
        }
        pass
    }

    /// Whether a pass is over for every job.
    pub fn is_over(&self, pass: &Pass) -> bool {
        let mut state = self.state();
        state.forget(Instant::now());
        pass.ends.iter().all(|(key, end)| {
            let place = state.jobs.get(key).and_then(Job::place);
            place.is_none_or(|p| p >= *end || p.epoch > end.epoch)
        })
    }

    /// From now on a segment is served from memory until its pass is over: in the disk cache it is needed
    /// after that only.
    pub fn keep_in_memory(&self, id: SegmentId, pass: Arc<Pass>) {
        Arc::make_mut(&mut self.state().in_memory).insert(id, pass);
    }

    /// A segment is no longer served from memory.
    pub fn left_memory(&self, id: SegmentId) {
        Arc::make_mut(&mut self.state().in_memory).remove(&id);
    }

    /// The jobs that have an open stream.
    pub fn jobs(&self) -> Vec<JobKey> {
        let mut state = self.state();
        state.forget(Instant::now());
        state.jobs.iter().filter(|(_, job)| job.is_read()).map(|(key, _)| *key).collect()
    }

    /// What a job will read soon, in the order of need, this epoch and the next; `None` if it has no open
    /// stream.
    pub fn due(&self, job: JobKey) -> Option<(Reading, Vec<Due>)> {
        let state = self.state();
        let job = state.jobs.get(&job)?;
        let (reading, due) = job.due()?;
        let front = job.readers.values().map(Reader::place).max()?;
        let due = due.into_iter().map(|(place, turn)| Due {
            segment: turn.segment,
            is_read: place <= front,
            place,
        });
        Some((reading, due.collect()))
    }

    /// A prefetch of a job has come this far.
    pub fn prefetched(&self, job: JobKey, due: &Due) {
        if let Some(job) = self.state().jobs.get_mut(&job) {
            job.prefetched = job.prefetched.max(Some(due.place));
        }
    }

    /// Waits until a stream has come further, joined or gone, from when this was called.
    pub fn moved(&self) -> tokio::sync::futures::Notified<'_> {
        self.moved.notified()
    }

    /// Plans announced since start, one for each stream.
    pub fn announced(&self) -> u64 {
        self.announced.load(Relaxed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn forget(&mut self, now: Instant) {
        self.jobs.retain(|_, job| job.is_alive(now));
    }

    /// All jobs as they stand, paces looked at.
    fn views(&mut self, now: Instant) -> Vec<View> {
        self.forget(now);
        for job in self.jobs.values_mut() {
            let done = job.done();
            job.pace.look(now, done);
        }
        let fastest = self.jobs.values().filter_map(|j| j.pace.per_s()).fold(0.0, f64::max);
        self.jobs.iter().filter_map(|(key, job)| job.view(*key, fastest)).collect()
    }
}

impl Forecast for Plans {
    fn next_uses(&self, ids: &[SegmentId]) -> Vec<NextUse> {
        let (views, in_memory) = {
            let mut state = self.state();
            (state.views(Instant::now()), state.in_memory.clone())
        };
        let next_use = |id: &SegmentId| {
            let pass = in_memory.get(id);
            let distances = views.iter().flat_map(|view| {
                view.ids.find(*id).map(move |segment| match pass {
                    Some(pass) => view.distance_after(segment, pass),
                    None => view.distance(segment),
                })
            });
            distances.min().map_or(NextUse::Unplanned, NextUse::Planned)
        };
        ids.iter().map(next_use).collect()
    }
}

/// Rows of the epoch's beginning that fill the last step up to a multiple of `slots`.
fn padding(samples: u64, first: u64, slots: u64) -> u64 {
    match samples.saturating_sub(first) % slots.max(1) {
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
            let mut state = self.plans.state();
            if let Some(job) = state.jobs.get_mut(&key) {
                job.leave(number, Instant::now());
            }
            state.forget(Instant::now());
        }
        self.plans.moved.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
