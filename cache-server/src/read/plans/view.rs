//! A job as it stands at a moment, and how far off each segment's next use is.

use super::ids::SegmentIds;
use super::job::{Job, JobKey, RunPosition};
use super::schedule::{AccessInterval, AccessSchedule};
use super::throughput::stretch;
use forebay_proto::manifest::SegmentId;
use std::sync::Arc;

/// The distance of a segment that a run has read for the last time: farther than anything it will read.
pub(super) const AFTER_THE_RUN: u64 = u64::MAX / 2;

/// A job at a moment.
#[derive(Debug, Clone)]
pub(super) struct JobView {
    pub key: JobKey,
    pub ids: Arc<SegmentIds>,
    samples: u64,
    schedules: Vec<(u64, Arc<AccessSchedule>)>,
    last_epoch: Option<u64>,
    at: RunPosition,
    stretch: f64,
}

/// The reads of a segment that it is filled for: when they are over for all jobs, nobody waits for it here.
#[derive(Debug, Clone, Default)]
pub struct ReadSpan {
    /// Where the reads end, for each job that reads it.
    pub(super) ends: Vec<(JobKey, RunPosition)>,
}

impl ReadSpan {
    /// Whether no plan reads the segment now.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

impl JobView {
    /// A job among others, the fastest of which takes `fastest` samples a second.
    pub fn new(key: JobKey, job: &Job, fastest: f64) -> Option<Self> {
        Some(Self {
            key,
            ids: job.ids.clone(),
            samples: job.samples,
            schedules: job.schedules.iter().map(|(epoch, schedule)| (*epoch, schedule.clone())).collect(),
            last_epoch: job.last_epoch,
            at: job.at()?,
            stretch: stretch(job.throughput.per_s(), fastest),
        })
    }

    /// How far off a segment's first interval is that is not over, in samples at the common throughput. In
    /// epochs whose plan was not made yet it is needed after all that is known; a segment that a run has read
    /// for the last time is needed after that, by another run perhaps.
    pub fn distance(&self, segment: u32) -> u64 {
        let to = match self.next(segment, self.at) {
            Some((epoch, interval)) => RunPosition { epoch, position: interval.start },
            None => match self.first_unknown(self.at) {
                Some(epoch) => RunPosition { epoch, position: self.samples },
                None => return AFTER_THE_RUN,
            },
        };
        self.distance_to(to)
    }

    /// How far off a segment's next use is once its read span is over, as a reason to store it on disk.
    ///
    /// A run of two epochs with 100 samples each, read in the order 0, 1, .., 9, ten rows a segment, with
    /// disk for five. It stands at position 25, within segment 2, which memory holds until position 30. When
    /// is segment 2 needed from disk? In the next epoch, at 120 or so: that is 95 samples off. Segment 4 on
    /// disk is needed in 15, and again 115 off. Nothing is gained if one of them takes the other's place: in
    /// each epoch five segments are hit, whichever they are, and the disk would be written in vain. So this
    /// job's next use counts as the *end* of the next epoch, 175 off: nothing that is read before then leaves
    /// for it.
    ///
    /// Another job may read it sooner. Say its next read is 40 samples off: then that counts, but twice as
    /// far, as 80, so that a segment that is written is seldom evicted before that job comes.
    pub fn distance_after(&self, segment: u32, span: &ReadSpan) -> u64 {
        let own = span.ends.iter().filter(|(key, _)| *key == self.key).map(|(_, end)| *end).max();
        let Some(end) = own else { return self.distance(segment).saturating_mul(2) };
        let from = end.max(self.at);
        let epoch = self.next(segment, from).map(|(epoch, _)| epoch).or_else(|| self.first_unknown(from));
        // After the run's last epoch nothing that is in a plan leaves for it.
        epoch.map_or(u64::MAX, |epoch| self.distance_to(RunPosition { epoch, position: self.samples }))
    }

    /// Adds the interval in which this job reads the segment, if it begins before `front`.
    pub fn extend_span(&self, id: SegmentId, front: RunPosition, span: &mut ReadSpan) {
        for segment in self.ids.find(id) {
            let Some((epoch, interval)) = self.next(segment, self.at) else { continue };
            if (RunPosition { epoch, position: interval.start }) <= front {
                span.ends.push((self.key, RunPosition { epoch, position: interval.end }));
            }
        }
    }

    /// The first interval of a segment that is not over at a position.
    fn next(&self, segment: u32, from: RunPosition) -> Option<(u64, AccessInterval)> {
        let epochs = self.schedules.iter().filter(|(epoch, _)| *epoch >= from.epoch && self.is_read(*epoch));
        epochs.into_iter().find_map(|(epoch, schedule)| {
            let from = if *epoch == from.epoch { from.position } else { 0 };
            Some((*epoch, schedule.next(segment, from)?))
        })
    }

    /// The first epoch whose plan was not made, if it will be read.
    fn first_unknown(&self, from: RunPosition) -> Option<u64> {
        let known = self.schedules.last().map_or(self.at.epoch, |(epoch, _)| *epoch);
        Some(known.max(from.epoch) + 1).filter(|epoch| self.is_read(*epoch))
    }

    fn is_read(&self, epoch: u64) -> bool {
        self.last_epoch.is_none_or(|last| epoch <= last)
    }

    fn distance_to(&self, to: RunPosition) -> u64 {
        let epochs = to.epoch.saturating_sub(self.at.epoch) as f64 * self.samples as f64;
        let samples = (epochs + to.position as f64 - self.at.position.min(self.samples) as f64).max(0.0);
        ((samples * self.stretch) as u64).min(AFTER_THE_RUN - 1)
    }
}
