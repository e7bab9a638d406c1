//! Has the disk cache count the segments of the datasets that are known here, and by who owns them.
//!
//! That begins when somebody asks for the counts, and takes a look at each segment: once for a dataset, and
//! again when other nodes own what. After that the disk cache keeps them, and they are just read.

use super::dataset::Dataset;
use crate::cluster::ownership::{Owners, Ownership};
use crate::disk::{DiskCache, Occurrence, SegmentsHeld};
use forebay_proto::manifest::{DatasetId, SegmentId};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Which datasets are counted, and how.
pub(super) struct SegmentCounter {
    disk: Arc<DiskCache>,
    ownership: Arc<Ownership>,
    /// Locked while that changes.
    counted: Mutex<CountedDatasets>,
}

#[derive(Default)]
struct CountedDatasets {
    datasets: HashMap<DatasetId, Dataset>,
    /// By whom they are counted.
    owners: Option<Owners>,
}

impl SegmentCounter {
    pub fn new(disk: Arc<DiskCache>, ownership: Arc<Ownership>) -> Self {
        Self { disk, ownership, counted: Mutex::default() }
    }

    /// The datasets that `list` gives, which are all that are known, and how much of each is held. Not for an
    /// async thread.
    pub fn held(&self, list: impl FnOnce() -> Vec<Dataset>) -> Vec<(Dataset, SegmentsHeld)> {
        let mut counted = self.counted.lock();
        let (known, owners) = (list(), self.ownership.owners());
        let ids: Vec<DatasetId> = known.iter().map(|dataset| dataset.manifest.id()).collect();
        let is_known: HashSet<DatasetId> = ids.iter().copied().collect();
        let gone: Vec<_> = counted.datasets.keys().filter(|id| !is_known.contains(*id)).copied().collect();
        self.remove(&mut counted, &gone);
        let is_as_before = counted.owners.as_ref().is_some_and(|before| before.agree_with(&owners));
        for (id, dataset) in ids.iter().zip(&known) {
            if counted.datasets.insert(*id, dataset.clone()).is_none() || !is_as_before {
                self.disk.counts().set(*id, &occurrences(dataset, &owners));
            }
        }
        counted.owners = Some(owners);
        let held = self.disk.counts().of(ids);
        known.into_iter().zip(held).collect()
    }

    /// Counts datasets no more that were forgotten just now. Not for an async thread.
    pub fn forget(&self, gone: &[DatasetId]) {
        // Who has nothing to forget need not wait for who counts.
        if !gone.is_empty() {
            self.remove(&mut self.counted.lock(), gone);
        }
    }

    fn remove(&self, counted: &mut CountedDatasets, gone: &[DatasetId]) {
        for id in gone {
            if let Some(dataset) = counted.datasets.remove(id) {
                self.disk.counts().remove(*id, &dataset.segment_ids().collect::<Vec<_>>());
            }
        }
    }
}

/// The segments of a dataset, each once.
fn occurrences(dataset: &Dataset, owners: &Owners) -> Vec<(SegmentId, Occurrence)> {
    let mut ids: Vec<SegmentId> = dataset.segment_ids().collect();
    ids.sort_unstable();
    let each: Vec<_> = ids.chunk_by(|a, b| a == b).map(|same| (same[0], same.len() as u32)).collect();
    let owned = owners.owned(each.iter().map(|(id, _)| *id));
    let all = each.iter().zip(owned);
    all.map(|((id, times), is_owned)| (*id, Occurrence { times: *times, is_owned })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::DiskCacheSettings;
    use crate::disk::tests::{NoForecast, hold_without_files};
    use arrow::datatypes::Schema;
    use forebay_proto::manifest::{Manifest, Object, SegmentSize};
    use forebay_proto::v1;
    use forebay_proto::view::Split;
    use tokio::sync::watch;

    fn manifest(name: &str, segments: usize) -> Manifest {
        let object = Object { key: name.into(), etag: "e".into(), size: 1, ..Default::default() };
        let size = SegmentSize { object: 0, row_groups: 1, rows: 10, decoded_bytes: 80 };
        Manifest::new("s3://b/d", 1, vec![], vec![object], &vec![size; segments]).unwrap()
    }

    fn dataset(manifest: Manifest) -> Dataset {
        Dataset { manifest: Arc::new(manifest), schema: Arc::new(Schema::empty()) }
    }

    #[test]
    fn counts_follow_files_nodes_and_datasets() {
        let dir = tempfile::tempdir().unwrap();
        let settings = DiskCacheSettings::new(dir.path(), 1 << 30);
        let disk = Arc::new(DiskCache::open(&settings, Arc::new(NoForecast)).unwrap());
        let node = |name: &str| v1::Node {
            name: name.into(),
            address: format!("http://{name}"),
            weight: 1.0,
            ..Default::default()
        };
        let alone = v1::Topology { nodes: vec![node("a")], ..Default::default() };
        let (topology, seen) = watch::channel(alone);
        let ownership = Arc::new(Ownership::new("http://a", seen));
        let counter = SegmentCounter::new(disk.clone(), ownership.clone());
        let all = [dataset(manifest("one", 100)), dataset(manifest("two", 50))];
        let [one, two] = [0, 1].map(|n: usize| all[n].segment_ids().collect::<Vec<_>>());
        let held = |known: &[Dataset]| -> Vec<(u64, u64)> {
            let held = counter.held(|| known.to_vec());
            held.into_iter().map(|(_, count)| (count.held, count.owned)).collect()
        };
        hold_without_files(&disk, &one[..60]);
        assert_eq!(held(&all), [(60, 60), (0, 0)]);
        hold_without_files(&disk, &two[..10]);
        assert_eq!(held(&all), [(60, 60), (10, 10)]);
        topology.send_modify(|topology| topology.nodes.push(node("b")));
        let owned = |ids: &[SegmentId]| {
            let owned = ownership.owners().owned(ids.iter().copied()).filter(|is_owned| *is_owned).count();
            owned as u64
        };
        assert!((1..60).contains(&owned(&one[..60])));
        assert_eq!(held(&all), [(60, owned(&one[..60])), (10, owned(&two[..10]))]);
        disk.free_segments(&one[..30]);
        assert_eq!(held(&all), [(30, owned(&one[30..60])), (10, owned(&two[..10]))]);
        counter.forget(&[all[0].manifest.id()]);
        assert_eq!(disk.counts().of([all[0].manifest.id()]), [SegmentsHeld::default()]);
        assert_eq!(held(&all[..1]), [(30, owned(&one[30..60]))]);
        assert_eq!(disk.counts().of([all[1].manifest.id()]), [SegmentsHeld::default()], "it is not known");
    }

    #[test]
    fn a_segment_that_two_parts_of_a_mix_share_counts_twice() {
        let whole = manifest("one", 3);
        let part = |rows: &str| (whole.split(&rows.parse::<Split>().unwrap()).unwrap(), 0.5);
        let mix = Manifest::mix(&[part("0:15"), part("15:30")]).unwrap();
        let mut counts = occurrences(&dataset(mix), &Ownership::alone().owners());
        assert!(counts.iter().all(|(_, occurrence)| occurrence.is_owned));
        counts.sort_by_key(|(id, _)| (0..3).position(|n| whole.segment_id(n).unwrap() == *id));
        assert_eq!(counts.iter().map(|(_, occurrence)| occurrence.times).collect::<Vec<_>>(), [1, 2, 1]);
    }
}
