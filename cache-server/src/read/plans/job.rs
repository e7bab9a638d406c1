//! A job: the streams of one run (dataset version, seed, shuffle), and what they will need.

use super::ids::{self, Ids};
use super::pace::{Pace, stretch};
use super::uses::{self, Turn, Uses};
use forebay_dataset::stream::Reading;
use forebay_proto::manifest::{Digest, SegmentId};
use forebay_proto::plan::Shuffle;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long a stream that has gone is expected back: the next epoch's, or another attempt.
pub(super) const GRACE: Duration = Duration::from_secs(60);

/// How long ranks that have not come yet are waited for: all start at about the same time.
const MUSTER: Duration = Duration::from_secs(10);

/// What makes streams one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct JobKey {
    /// The dataset's version.
    pub manifest: Digest,
    /// The run's seed.
    pub seed: u64,
    /// How rows are shuffled.
    pub shuffle: Shuffle,
}

/// A place in a job's course.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub epoch: u64,
    pub position: u64,
}

/// One stream, or the place that it left and is expected back at.
#[derive(Debug)]
pub(super) struct Reader {
    pub rank: u32,
    pub world: u32,
    pub epoch: u64,
    /// No position before this one is needed any more; `u64::MAX`: the epoch is over.
    pub position: Arc<AtomicU64>,
    /// Bit per segment that it wants; empty = all.
    pub wanted: bytes::Bytes,
    pub reading: Reading,
    /// When the stream went.
    pub left: Option<Instant>,
}

impl Reader {
    pub fn place(&self) -> Place {
        match self.position.load(Relaxed) {
            u64::MAX => Place { epoch: self.epoch.saturating_add(1), position: 0 },
            position => Place { epoch: self.epoch, position },
        }
    }

    fn wants(&self, segment: u32) -> bool {
        let byte = |b: &u8| b & (1 << (segment % 8)) != 0;
        self.wanted.is_empty() || self.wanted.get(segment as usize / 8).is_some_and(byte)
    }
}

/// Which ranks of a run have come.
#[derive(Debug, Default)]
pub(super) struct Muster {
    world: u32,
    came: HashSet<u32>,
    /// Where those that have not come yet will begin, and since when they are waited for.
    awaited: Option<(Place, Instant)>,
}

impl Muster {
    fn join(&mut self, reader: &Reader, now: Instant) {
        if self.world != reader.world {
            *self = Self { world: reader.world, came: HashSet::new(), awaited: Some((reader.place(), now)) };
        }
        self.came.insert(reader.rank);
        if self.came.len() >= self.world as usize {
            self.awaited = None;
        }
    }
}

/// A run.
#[derive(Debug)]
pub(super) struct Job {
    pub ids: Arc<Ids>,
    /// Positions of an epoch.
    pub samples: u64,
    /// The turns of the epochs that are read or come next.
    pub uses: BTreeMap<u64, Arc<Uses>>,
    /// The last epoch, if that is known.
    pub last_epoch: Option<u64>,
    pub readers: HashMap<u64, Reader>,
    pub muster: Muster,
    /// How far it was prefetched.
    pub prefetched: Option<Place>,
    pub pace: Pace,
}

/// A job as it stands at a moment.
#[derive(Debug, Clone)]
pub(super) struct View {
    pub key: JobKey,
    pub ids: Arc<Ids>,
    samples: u64,
    uses: Vec<(u64, Arc<Uses>)>,
    last_epoch: Option<u64>,
    place: Place,
    stretch: f64,
}

impl Job {
    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        let (segments, wanted) =
            (self.ids.len(), self.readers.values().map(|r| r.wanted.len()).sum::<usize>());
        ids::bytes(segments) + self.uses.len() * uses::bytes(segments) + wanted
    }

    /// Where it stands: as far as the slowest of its streams, those included that are about to come.
    pub fn place(&self) -> Option<Place> {
        let slowest = self.readers.values().map(Reader::place).min()?;
        Some(self.muster.awaited.map_or(slowest, |(place, _)| place.min(slowest)))
    }

    /// Up to where its segments are being read or made ready.
    pub fn front(&self) -> Option<Place> {
        self.readers.values().map(Reader::place).max().max(self.prefetched)
    }

    /// Adds a stream. It takes the place of one that went and had its rank; those of another world will not come back.
    pub fn join(&mut self, number: u64, reader: Reader, now: Instant) {
        self.muster.join(&reader, now);
        self.readers.retain(|_, r| r.left.is_none() || (r.world == reader.world && r.rank != reader.rank));
        if !self.is_read() {
            self.prefetched = None;
        }
        self.readers.insert(number, reader);
        // Where each stream is and where it goes next, but nothing in between: one that stands still beside others that go
        // on for a thousand epochs must not hold a thousand of them in memory.
        let places =
            self.readers.values().map(Reader::place).chain(self.muster.awaited.map(|(place, _)| place));
        let near: HashSet<u64> = places.flat_map(|p| [p.epoch, p.epoch.saturating_add(1)]).collect();
        self.uses.retain(|epoch, _| near.contains(epoch));
    }

    /// A stream goes. After the run's last epoch it will not come back.
    pub fn leave(&mut self, number: u64, now: Instant) {
        let Some(reader) = self.readers.get_mut(&number) else { return };
        reader.left = Some(now);
        if self.last_epoch.is_some_and(|last| reader.place().epoch > last) {
            self.readers.remove(&number);
        }
    }

    /// Forgets streams that did not come back; false if none is left.
    pub fn is_alive(&mut self, now: Instant) -> bool {
        self.readers.retain(|_, r| r.left.is_none_or(|left| now.saturating_duration_since(left) < GRACE));
        self.muster.awaited.take_if(|(_, since)| now.saturating_duration_since(*since) >= MUSTER);
        !self.readers.is_empty()
    }

    /// Whether a stream is open.
    pub fn is_read(&self) -> bool {
        self.readers.values().any(|r| r.left.is_none())
    }

    /// Samples that are done, counted from the first epoch.
    pub fn done(&self) -> u128 {
        let place = self.place().unwrap_or(Place { epoch: 0, position: 0 });
        u128::from(place.epoch) * u128::from(self.samples) + u128::from(place.position.min(self.samples))
    }

    pub fn view(&self, key: JobKey, fastest: f64) -> Option<View> {
        let place = self.place()?;
        let (uses, ids) = (self.uses.iter().map(|(e, u)| (*e, u.clone())).collect(), self.ids.clone());
        let (samples, last_epoch) = (self.samples, self.last_epoch);
        Some(View {
            key,
            ids,
            samples,
            uses,
            last_epoch,
            place,
            stretch: stretch(self.pace.per_s(), fastest),
        })
    }

    /// The turns that are not over, in the order of need, of segments that a stream here wants.
    pub fn due(&self) -> Option<(Reading, Vec<(Place, Turn)>)> {
        let place = self.place()?;
        let reading = self.readers.values().find(|r| r.left.is_none())?.reading.clone();
        let wanted = |segment| self.readers.values().any(|r| r.left.is_none() && r.wants(segment));
        let epochs = self.uses.iter().filter(|(e, _)| **e >= place.epoch);
        let epochs = epochs.filter(|(e, _)| self.last_epoch.is_none_or(|last| **e <= last));
        let due = epochs.flat_map(|(&epoch, uses)| {
            let from = if epoch == place.epoch { place.position } else { 0 };
            uses.due(from).map(move |t| (Place { epoch, position: t.start }, t))
        });
        Some((reading, due.filter(|(_, t)| wanted(t.segment)).take(DUE_MAX).collect()))
    }
}

/// The distance of what a run has read for the last time: farther than anything it will read.
pub(super) const AFTER_THE_RUN: u64 = u64::MAX / 2;

/// Turns that a prefetch looks at, at most: more than any budget lets it fetch.
const DUE_MAX: usize = 4096;

impl View {
    /// The first turn of a segment that is not over at a place.
    pub fn turn(&self, segment: u32, from: Place) -> Option<(u64, Turn)> {
        self.uses.iter().filter(|(epoch, _)| *epoch >= from.epoch && self.follows(*epoch)).find_map(
            |(epoch, uses)| {
                let from = if *epoch == from.epoch { from.position } else { 0 };
                Some((*epoch, uses.next(segment, from)?))
            },
        )
    }

    /// How far off the first turn of a segment is that is not over, in samples at the common pace. In epochs whose plan
    /// was not made yet it is needed after all that is known; what a run has read for the last time is needed after
    /// that, by another run perhaps.
    pub fn distance(&self, segment: u32) -> u64 {
        let to = match self.turn(segment, self.place) {
            Some((epoch, turn)) => Place { epoch, position: turn.start },
            None => match self.first_unknown(self.place) {
                Some(epoch) => Place { epoch, position: self.samples },
                None => return AFTER_THE_RUN,
            },
        };
        self.distance_to(to)
    }

    /// The first epoch whose plan was not made, if it will be read.
    fn first_unknown(&self, from: Place) -> Option<u64> {
        let known = self.uses.last().map_or(self.place.epoch, |(epoch, _)| *epoch);
        Some(known.max(from.epoch) + 1).filter(|epoch| self.follows(*epoch))
    }

    fn follows(&self, epoch: u64) -> bool {
        self.last_epoch.is_none_or(|last| epoch <= last)
    }

    fn samples_to(&self, to: Place) -> f64 {
        let epochs = to.epoch.saturating_sub(self.place.epoch) as f64 * self.samples as f64;
        (epochs + to.position as f64 - self.place.position.min(self.samples) as f64).max(0.0)
    }
}

/// The turn in which a segment is being read or made ready: when it is over for all jobs, nobody waits for it here.
#[derive(Debug, Clone, Default)]
pub struct Pass {
    pub(super) ends: Vec<(JobKey, Place)>,
    /// A turn lasts the whole epoch.
    pub(super) is_whole: bool,
}

impl Pass {
    /// Whether no plan reads the segment now.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Whether the segment is read from the epoch's beginning to its end, with rows of all others in between.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }
}

impl View {
    /// Adds the turn in which this job reads or will read the segment at once, if it does.
    pub fn pass(&self, id: SegmentId, front: Place, pass: &mut Pass) {
        for segment in self.ids.find(id) {
            let Some((epoch, turn)) = self.turn(segment, self.place) else { continue };
            if (Place { epoch, position: turn.start }) <= front {
                pass.ends.push((self.key, Place { epoch, position: turn.end }));
                pass.is_whole |= turn.start == 0 && turn.end >= self.samples;
            }
        }
    }

    /// How far off a segment's next use is once its pass is over, as a reason to store it.
    ///
    /// The job that reads it now will read it again in its next epoch, like everything else: storing one segment in
    /// another's place gains nothing there, as every reuse spans the epoch's beginning, and what is stored then is what is
    /// hit. So that use counts as the epoch's end: nothing that is read before goes for it, and nothing is written in
    /// vain. Another job may read it sooner; that use counts as twice as far, so that what is written is seldom evicted
    /// before it comes.
    pub fn distance_after(&self, segment: u32, pass: &Pass) -> u64 {
        let own = pass.ends.iter().filter(|(key, _)| *key == self.key).map(|(_, end)| *end).max();
        let Some(end) = own else { return self.distance(segment).saturating_mul(2) };
        let from = end.max(self.place);
        let epoch = self.turn(segment, from).map(|(epoch, _)| epoch).or_else(|| self.first_unknown(from));
        // After the run's last epoch it goes for nothing that is in a plan.
        epoch.map_or(u64::MAX, |epoch| self.distance_to(Place { epoch, position: self.samples }))
    }

    fn distance_to(&self, to: Place) -> u64 {
        ((self.samples_to(to) * self.stretch) as u64).min(AFTER_THE_RUN - 1)
    }
}
