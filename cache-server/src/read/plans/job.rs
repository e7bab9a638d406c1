//! A job: the streams of one run (dataset version, seed, shuffle), and what they will need.

use super::ids::{self, SegmentIds};
use super::schedule::{self, AccessSchedule};
use super::throughput::Throughput;
use super::wanted::WantedSegments;
use forebay_dataset::stream::Reading;
use forebay_proto::SegmentSet;
use forebay_proto::manifest::DatasetId;
use forebay_proto::plan::Shuffle;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long a stream that has gone is expected back: the next epoch's, or another attempt.
pub(super) const GRACE: Duration = Duration::from_secs(60);

/// How long ranks that have not come yet are waited for: all start at about the same time.
const EXPECTED: Duration = Duration::from_secs(10);

/// Intervals that a prefetch looks at, at most: more than any budget lets it fetch.
const DUE_MAX: usize = 4096;

/// What makes streams one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct JobKey {
    /// The dataset's version, and where it lies.
    pub dataset: DatasetId,
    /// Two runs that differ in the seed read segments in different orders.
    pub seed: u64,
    /// The same of their shuffles.
    pub shuffle: Shuffle,
}

/// A position in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RunPosition {
    pub epoch: u64,
    pub position: u64,
}

/// A segment that a job will read soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// Index into the manifest's segments.
    pub segment: u32,
    /// Whether a stream has come to where it is read.
    pub is_read: bool,
    /// The position of the run at which its reads begin.
    pub(super) at: RunPosition,
}

/// One stream, or the position that it left and is expected back at.
#[derive(Debug)]
pub(super) struct Reader {
    pub rank: u32,
    pub world: u32,
    pub epoch: u64,
    /// No position before this one is needed any more; `u64::MAX`: the epoch is over.
    pub position: Arc<AtomicU64>,
    /// The segments that it wants; `None` = all.
    pub wanted: Option<Arc<SegmentSet>>,
    pub reading: Reading,
    /// When the stream went.
    pub left: Option<Instant>,
}

impl Reader {
    pub fn at(&self) -> RunPosition {
        match self.position.load(Relaxed) {
            u64::MAX => RunPosition { epoch: self.epoch.saturating_add(1), position: 0 },
            position => RunPosition { epoch: self.epoch, position },
        }
    }
}

/// Which ranks of a run have come.
#[derive(Debug, Default)]
pub(super) struct ExpectedRanks {
    world: u32,
    came: HashSet<u32>,
    /// Where the ranks that have not come yet will begin, and since when they are waited for.
    awaited: Option<(RunPosition, Instant)>,
}

impl ExpectedRanks {
    fn join(&mut self, reader: &Reader, now: Instant) {
        if self.world != reader.world {
            *self = Self { world: reader.world, came: HashSet::new(), awaited: Some((reader.at(), now)) };
        }
        self.came.insert(reader.rank);
        if self.came.len() >= self.world as usize {
            self.awaited = None;
        }
    }
}

/// A run: the streams that follow one order, and how far they have come.
#[derive(Debug)]
pub(super) struct Job {
    pub ids: Arc<SegmentIds>,
    /// Positions of an epoch.
    pub samples: u64,
    /// When the epochs that are read or come next read each segment.
    pub schedules: BTreeMap<u64, Arc<AccessSchedule>>,
    /// The last epoch, if that is known.
    pub last_epoch: Option<u64>,
    pub throughput: Throughput,
    readers: HashMap<u64, Reader>,
    expected_ranks: ExpectedRanks,
    /// What the open streams want.
    wanted: WantedSegments,
    /// How far it was prefetched.
    pub prefetched: Option<RunPosition>,
}

impl Job {
    /// A job that no stream has joined yet and that stands at `epoch`'s beginning.
    pub fn new(ids: Arc<SegmentIds>, samples: u64, epoch: u64, now: Instant) -> Self {
        Self {
            ids,
            samples,
            schedules: BTreeMap::new(),
            last_epoch: None,
            throughput: Throughput::new(now, u128::from(epoch) * u128::from(samples)),
            readers: HashMap::new(),
            expected_ranks: ExpectedRanks::default(),
            wanted: WantedSegments::default(),
            prefetched: None,
        }
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        let segments = self.ids.len();
        ids::bytes(segments) + self.schedules.len() * schedule::bytes(segments) + self.wanted.bytes()
    }

    /// Where it stands: as far as the slowest of its streams, those included that are about to come.
    pub fn at(&self) -> Option<RunPosition> {
        let slowest = self.readers.values().map(Reader::at).min()?;
        Some(self.expected_ranks.awaited.map_or(slowest, |(at, _)| at.min(slowest)))
    }

    /// Where the fastest of its streams stands.
    pub fn fastest(&self) -> Option<RunPosition> {
        self.readers.values().map(Reader::at).max()
    }

    /// Up to where its segments are being read or made ready.
    pub fn front(&self) -> Option<RunPosition> {
        self.fastest().max(self.prefetched)
    }

    /// Adds a stream. It takes the place of one that went and had its rank; those of another world will not
    /// come back.
    pub fn join(&mut self, number: u64, mut reader: Reader, now: Instant) {
        self.expected_ranks.join(&reader, now);
        self.readers.retain(|_, r| r.left.is_none() || (r.world == reader.world && r.rank != reader.rank));
        if !self.is_read() {
            self.prefetched = None;
        }
        reader.wanted = self.wanted.add(reader.wanted);
        self.readers.insert(number, reader);
        // Where each stream is and where it goes next, but nothing in between: one that stands still beside
        // others that go on for a thousand epochs must not hold a thousand of them in memory.
        let positions =
            self.readers.values().map(Reader::at).chain(self.expected_ranks.awaited.map(|(at, _)| at));
        let near: HashSet<u64> = positions.flat_map(|p| [p.epoch, p.epoch.saturating_add(1)]).collect();
        self.schedules.retain(|epoch, _| near.contains(epoch));
    }

    /// A stream goes. After the run's last epoch it will not come back.
    pub fn leave(&mut self, number: u64, now: Instant) {
        let Some(reader) = self.readers.get_mut(&number) else { return };
        reader.left = Some(now);
        let wanted = reader.wanted.take();
        let is_over = self.last_epoch.is_some_and(|last| reader.at().epoch > last);
        self.wanted.remove(&wanted);
        if is_over {
            self.readers.remove(&number);
        }
    }

    /// Forgets streams that did not come back; false if none is left.
    pub fn is_alive(&mut self, now: Instant) -> bool {
        self.readers.retain(|_, r| r.left.is_none_or(|left| now.saturating_duration_since(left) < GRACE));
        let awaited = &mut self.expected_ranks.awaited;
        awaited.take_if(|(_, since)| now.saturating_duration_since(*since) >= EXPECTED);
        !self.readers.is_empty()
    }

    /// Whether a stream is open.
    pub fn is_read(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Samples that are done, counted from the first epoch.
    pub fn done(&self) -> u128 {
        let at = self.at().unwrap_or(RunPosition { epoch: 0, position: 0 });
        u128::from(at.epoch) * u128::from(self.samples) + u128::from(at.position.min(self.samples))
    }

    /// The segments whose intervals are not over, in the order of need, as far as an open stream wants them;
    /// `None` without a stream for which they may be fetched ahead.
    pub fn due(&self) -> Option<(Reading, Vec<Due>)> {
        let (at, fastest) = (self.at()?, self.fastest()?);
        let may_fetch = |r: &&Reader| r.left.is_none() && !r.reading.is_throttled;
        let reading = self.readers.values().find(may_fetch)?.reading.clone();
        let epochs = self.schedules.iter().filter(|(e, _)| **e >= at.epoch);
        let epochs = epochs.filter(|(e, _)| self.last_epoch.is_none_or(|last| **e <= last));
        let due = epochs.flat_map(|(&epoch, schedule)| {
            let from = if epoch == at.epoch { at.position } else { 0 };
            schedule.due(from).map(move |interval| {
                let at = RunPosition { epoch, position: interval.start };
                Due { segment: interval.segment, is_read: at <= fastest, at }
            })
        });
        let wanted = due.filter(|due| self.wanted.contains(due.segment));
        Some((reading, wanted.take(DUE_MAX).collect()))
    }
}
