//! The counts of the segments that the disk cache holds of each dataset.

use super::holdings::{Occurrence, SegmentsHeld};
use super::segment_files::SegmentFiles;
use forebay_proto::manifest::{DatasetId, SegmentId};

/// Segments that are looked up at once: others need the index too.
const UNDER_ONE_LOCK: usize = 512;

/// The counts of the disk cache. Touches no disk.
pub struct DatasetCounts<'a>(pub(super) &'a SegmentFiles);

impl DatasetCounts<'_> {
    /// How much of some datasets is held now; nothing of those that are not counted.
    pub fn of(&self, datasets: impl IntoIterator<Item = DatasetId>) -> Vec<SegmentsHeld> {
        let index = self.0.index();
        datasets.into_iter().map(|dataset| index.holdings.of(dataset)).collect()
    }

    /// Counts segments of a dataset from now on, or counts them otherwise than before.
    pub fn set(&self, dataset: DatasetId, segments: &[(SegmentId, Occurrence)]) {
        for some in segments.chunks(UNDER_ONE_LOCK) {
            let mut index = self.0.index();
            some.iter().for_each(|(id, occurrence)| index.count(dataset, *id, Some(*occurrence)));
        }
    }

    /// Counts a dataset no more, whose segments these are.
    pub fn remove(&self, dataset: DatasetId, segments: &[SegmentId]) {
        for some in segments.chunks(UNDER_ONE_LOCK) {
            let mut index = self.0.index();
            some.iter().for_each(|id| index.count(dataset, *id, None));
        }
        self.0.index().holdings.forget(dataset);
    }
}
