//! How many segments of a dataset the disk cache holds, counted as their files come and go: a status is asked
//! for each second, and a dataset may have millions of segments.

use forebay_proto::manifest::{DatasetId, SegmentId};
use std::collections::{BTreeMap, HashMap};

/// Segments of a dataset that are held, and those of them that this node owns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SegmentsHeld {
    pub held: u64,
    pub owned: u64,
}

/// How a segment occurs in a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occurrence {
    /// How often: parts of a mix may share it.
    pub times: u32,
    /// Whether this node owns it.
    pub is_owned: bool,
}

/// The counts of some datasets.
#[derive(Debug, Default)]
pub struct Holdings {
    /// Shorter than ids, as each of their segments has one.
    numbers: HashMap<DatasetId, u32>,
    last_number: u32,
    counts: HashMap<u32, SegmentsHeld>,
    /// By segment and dataset, whether the segment is held or not: about 80 bytes each.
    occurrences: BTreeMap<(SegmentId, u32), Occurrence>,
}

impl SegmentsHeld {
    fn add(&mut self, occurrence: Occurrence) {
        self.held += u64::from(occurrence.times);
        self.owned += occurrence.owned();
    }

    fn remove(&mut self, occurrence: Occurrence) {
        self.held -= u64::from(occurrence.times);
        self.owned -= occurrence.owned();
    }
}

impl Occurrence {
    fn owned(self) -> u64 {
        if self.is_owned { u64::from(self.times) } else { 0 }
    }
}

impl Holdings {
    /// How much of a dataset is held: nothing of one that is not counted.
    pub fn of(&self, dataset: DatasetId) -> SegmentsHeld {
        let count = self.numbers.get(&dataset).and_then(|number| self.counts.get(number));
        count.copied().unwrap_or_default()
    }

    /// Says how a segment, which is held now or not, occurs in a dataset from now on.
    pub fn set(&mut self, dataset: DatasetId, id: SegmentId, now: Option<Occurrence>, is_held: bool) {
        let number = *self.numbers.entry(dataset).or_insert_with(|| {
            self.last_number += 1;
            self.last_number
        });
        let before = match now {
            Some(now) => self.occurrences.insert((id, number), now),
            None => self.occurrences.remove(&(id, number)),
        };
        if is_held {
            let count = self.counts.entry(number).or_default();
            if let Some(before) = before {
                count.remove(before);
            }
            if let Some(now) = now {
                count.add(now);
            }
        }
    }

    /// A segment's first file has come, or its last one has gone.
    pub fn changed(&mut self, id: SegmentId, is_held: bool) {
        for ((_, number), occurrence) in self.occurrences.range((id, 0)..=(id, u32::MAX)) {
            let count = self.counts.entry(*number).or_default();
            match is_held {
                true => count.add(*occurrence),
                false => count.remove(*occurrence),
            }
        }
    }

    /// Forgets a dataset in which no segment occurs any more.
    pub fn forget(&mut self, dataset: DatasetId) {
        if let Some(number) = self.numbers.remove(&dataset) {
            self.counts.remove(&number);
        }
    }
}
