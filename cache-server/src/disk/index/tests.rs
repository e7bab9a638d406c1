//! Files that come, are replaced and go; which maps are kept.

use super::{Entry, Index};
use crate::disk::file::{FileKey, Origin, RAW_COLUMN};
use crate::disk::map::{self, KeptFiles};
use crate::disk::policy::{Admit, Role};
use crate::disk::tests::NoForecast;
use crate::disk::{DiskCache, DiskCacheSettings, Occurrence, SegmentsHeld};
use crate::service::metrics::resident_bytes;
use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use forebay_proto::manifest::{DatasetId, Digest, SegmentId};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[test]
fn maps_of_idle_files_go_and_those_being_read_stay() {
    let dir = tempfile::tempdir().unwrap();
    let open =
        || DiskCache::open(&DiskCacheSettings::new(dir.path(), 1 << 30), Arc::new(NoForecast)).unwrap();
    let cache = open();
    for i in 0..40 {
        let values = Arc::new(Int64Array::from_iter_values(0..100)) as ArrayRef;
        let batch = RecordBatch::try_from_iter([("id", values)]).unwrap();
        let origin = Origin { id: SegmentId(Digest(i)), object: "file:///o".into(), etag: "e".into() };
        cache.write(&origin, &batch.clone().into(), Admit::Always, Role::Primary).unwrap();
    }
    drop(cache);
    let cache = open();
    {
        let mut index = cache.files.index();
        (index.maps_max, index.maps_bound) = (8, 8);
    }
    let find = |i| cache.find(SegmentId(Digest(i)), &["id".into()]);
    let kept = || {
        let index = cache.files.index();
        let kept = index.entries.values().filter(|e| e.map.is_some()).count();
        assert_eq!(kept, index.maps);
        kept
    };
    let read: Vec<_> = (0..20).map(find).collect();
    assert_eq!(kept(), 20, "all of them are being read");
    (20..40).for_each(|i| drop(find(i)));
    assert!(kept() < 24, "{}", kept());
    assert_eq!(cache.files.index().entries.values().filter(|e| e.is_in_use()).count(), 20);
    drop(read);
    (20..40).for_each(|i| drop(find(i)));
    (20..40).for_each(|i| drop(find(i)));
    assert!(kept() <= 8, "{}", kept());
}

#[test]
fn a_file_that_two_open_at_once_has_one_map() {
    let dir = tempfile::tempdir().unwrap();
    let cache = DiskCache::open(&DiskCacheSettings::new(dir.path(), 1 << 30), Arc::new(NoForecast)).unwrap();
    let values = Arc::new(Int64Array::from_iter_values(0..100)) as ArrayRef;
    let batch = RecordBatch::try_from_iter([("id", values)]).unwrap();
    let origin = Origin { id: SegmentId(Digest(1)), object: "file:///o".into(), etag: "e".into() };
    drop(cache.write(&origin, &batch.clone().into(), Admit::Always, Role::Primary).unwrap());
    let mut index = cache.files.index();
    let key = index.files_of(origin.id)[0];
    let open = || {
        let place = &cache.files.dirs.get(0);
        Arc::new(map::open(&place.disk, &place.segment(&key), None, &KeptFiles::new(1)).unwrap())
    };
    let written = index.get(&key).unwrap().map.clone().unwrap();
    index.drop_map(&key, &written);
    let first = index.keep_map(&key, &open());
    let read = first.ready().batch;
    drop((written, first));
    assert!(Arc::ptr_eq(&index.keep_map(&key, &open()).ready().batch, &read));
    assert!(index.get(&key).unwrap().is_in_use(), "the first still reads it");
    drop(read);
    assert!(!index.get(&key).unwrap().is_in_use());
    assert_eq!(index.maps, 1);
}

fn key(n: u128, column: &str) -> FileKey {
    FileKey::new(SegmentId(Digest(n)), &[column.into()])
}

fn add(index: &mut Index, n: u128, column: &str, dir: usize, bytes: u64) -> super::Replaced {
    let reservation = index.quotas.reserve(dir, bytes);
    let (object, columns) = (format!("s3://b/d{}/o{n}", n % 2).into(), Arc::from([column.to_owned()]));
    let entry = Entry { object, columns, ..Entry::default() };
    index.insert(key(n, column), entry, reservation)
}

#[test]
fn files_are_found_by_segment_and_by_uri() {
    let mut index = Index::new([100, 100]);
    [(1, "a"), (1, "b"), (2, "a")]
        .into_iter()
        .for_each(|(n, column)| drop(add(&mut index, n, column, 0, 10)));
    let holds = |index: &Index, n, columns: &[&str]| {
        index.holds(SegmentId(Digest(n)), &columns.iter().map(|c| c.to_string()).collect::<Vec<_>>())
    };
    assert!(holds(&index, 1, &["a", "b"]) && holds(&index, 2, &["a"]) && !holds(&index, 2, &["a", "b"]));
    assert_eq!((index.len(), index.segments(), index.quotas.used_bytes()), (3, 2, 30));
    assert_eq!((index.files_under("s3://b/d1").len(), index.files_under("s3://b").len()), (2, 3));
    index.set_pinned(|object| object.starts_with("s3://b/d0/"));
    assert_eq!(index.pinned_bytes(), 10);
    index.clear(0);
    assert_eq!((index.len(), index.segments(), index.quotas.used_bytes()), (0, 0, 0));
}

#[test]
fn a_file_is_replaced_in_its_directory_and_returned_from_another() {
    let mut index = Index::new([100, 100]);
    add(&mut index, 1, "a", 0, 10);
    assert!(add(&mut index, 1, "a", 0, 20).elsewhere.is_none());
    assert_eq!(index.quotas.used_bytes(), 20);
    let old = add(&mut index, 1, "a", 1, 30).elsewhere.unwrap();
    assert_eq!((old.dir, old.bytes, index.quotas.used_bytes()), (0, 20, 50));
    assert!(!index.begin_writing(&key(1, "a")), "nothing may take its name as long as it is there");
    index.gone(&key(1, "a"), old, true);
    assert!(index.begin_writing(&key(1, "a")) && index.quotas.used_bytes() == 30);
}

#[test]
fn what_is_being_written_again_does_not_leave() {
    let mut index = Index::new([100]);
    add(&mut index, 1, "a", 0, 60);
    assert!(index.begin_writing(&key(1, "a")) && !index.begin_writing(&key(1, "a")), "two write the same");
    assert!(index.take_one(&key(1, "a"), |_| true).is_none(), "its name would be unlinked");
    assert!(index.take(0, &[key(1, "a")], 60).is_none());
    index.written(&key(1, "a"));
    assert!(index.take_one(&key(1, "a"), |_| true).is_some());
}

#[test]
fn victims_make_room_all_together_or_not_at_all() {
    let mut index = Index::new([100]);
    (1..=4).for_each(|n| drop(add(&mut index, n, "a", 0, 25)));
    let keys = [key(1, "a"), key(2, "a")];
    assert!(index.take(0, &keys, 60).is_none(), "they are not enough");
    index.set_pinned(|object| object.ends_with("o2"));
    assert!(index.take(0, &keys, 40).is_none() && index.len() == 4, "one is pinned");
    index.set_pinned(|_| false);
    let (more, taken) = index.take(0, &keys, 40).unwrap();
    assert_eq!((more.bytes, taken.len(), index.quotas.used_bytes()), (0, 2, 100));
    // The second cannot be unlinked: its bytes stay reserved, and it is tried again later.
    taken.iter().for_each(|file| index.gone(&file.key, file.reservation, file.key == keys[0]));
    assert_eq!(index.quotas.used_bytes(), 75);
    let now = Instant::now();
    let again = index.take_stuck(0, now);
    assert!(again.len() == 1 && !index.begin_writing(&keys[1]));
    index.gone(&keys[1], again[0].1, false);
    assert!(index.take_stuck(0, now).is_empty(), "not at once");
    assert!(index.take_stuck(1, now + Duration::from_secs(60)).is_empty(), "another directory's");
    let again = index.take_stuck(0, now + Duration::from_secs(60));
    index.gone(&keys[1], again[0].1, true);
    assert_eq!(index.quotas.used_bytes(), 50);
}

/// Raw files whose memory is measured, each of an object of its own.
const RAW_FILES: u64 = 300_000;

/// Bytes of the index for a raw file at most.
const BYTES_PER_RAW_FILE: u64 = 220;

/// Says that this process is the one that measures.
const MEASURE: &str = "FOREBAY_TEST_INDEX_BYTES";

/// Measured in a process of its own, in which no other test allocates.
#[test]
fn a_raw_file_costs_the_index_few_bytes() {
    if std::env::var_os(MEASURE).is_some() {
        println!("bytes per file: {}", bytes_per_raw_file());
        return;
    }
    let name = "disk::index::tests::a_raw_file_costs_the_index_few_bytes";
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let output = command.args([name, "--exact", "--nocapture"]).env(MEASURE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let figure = text.split("bytes per file: ").nth(1).and_then(|rest| rest.split_whitespace().next());
    let bytes: u64 = figure.and_then(|figure| figure.parse().ok()).unwrap_or_else(|| panic!("{text}"));
    assert!((50..=BYTES_PER_RAW_FILE).contains(&bytes), "{bytes} bytes per raw file");
}

fn bytes_per_raw_file() -> u64 {
    let columns: Arc<[String]> = vec![RAW_COLUMN.to_owned()].into();
    let mut index = Index::new([1 << 50]);
    let before = resident_bytes();
    for n in 0..RAW_FILES {
        let id = SegmentId(Digest(forebay_proto::hash::xxh3_128(&n.to_le_bytes())));
        let key = FileKey::new(id, &columns);
        let reservation = index.quotas.reserve(0, 8192);
        let object = format!("s3://bucket/images/train/{n:08}.jpg").into();
        index.insert(key, Entry { object, columns: columns.clone(), ..Entry::default() }, reservation);
    }
    assert_eq!(index.raw().files, RAW_FILES);
    (resident_bytes() - before) / RAW_FILES
}

#[test]
fn segments_and_raw_blocks_are_counted() {
    let mut index = Index::new([1 << 30]);
    let mut insert = |id: u128, names: &[&str]| {
        let columns: Arc<[String]> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = FileKey::new(SegmentId(Digest(id)), &columns);
        let reservation = index.quotas.reserve(0, 100);
        index.insert(key, Entry { columns, ..Entry::default() }, reservation);
        key
    };
    let keys = [insert(1, &["a"]), insert(1, &["b"]), insert(2, &[RAW_COLUMN]), insert(2, &[RAW_COLUMN])];
    let counts = |index: &Index| (index.len(), index.segments(), index.raw().files, index.raw().bytes);
    assert_eq!(counts(&index), (3, 2, 1, 100));
    assert_eq!(index.files_of(SegmentId(Digest(1))).len(), 2);
    assert!(index.holds(SegmentId(Digest(1)), &["a".into(), "b".into()]));
    assert!(!index.holds(SegmentId(Digest(1)), &["c".into()]) && !index.holds(SegmentId(Digest(3)), &[]));
    let left = keys.map(|key| {
        index.take_one(&key, |_| true);
        counts(&index)
    });
    assert_eq!(left, [(2, 2, 1, 100), (1, 1, 1, 100), (0, 0, 0, 0), (0, 0, 0, 0)]);
}

/// What of a dataset the index holds, counted again.
fn recounted(index: &Index, dataset: &BTreeMap<u128, Occurrence>) -> SegmentsHeld {
    let held = || dataset.iter().filter(|(n, _)| index.holds(SegmentId(Digest(**n)), &[]));
    let times = |(_, occurrence): (&u128, &Occurrence)| u64::from(occurrence.times);
    SegmentsHeld {
        held: held().map(times).sum(),
        owned: held().filter(|(_, occurrence)| occurrence.is_owned).map(times).sum(),
    }
}

proptest! {
    /// Random files that come, are replaced, evicted and freed, directories that are lost, pins, and segments
    /// that datasets gain and lose or that other nodes own: all counts are those of counting again.
    #[test]
    fn counts_are_kept(ops in prop::collection::vec((0u8..10, 0u128..8, 0usize..3, 0usize..2), 1..120)) {
        let mut index = Index::new([1 << 30, 1 << 30]);
        let datasets = [1, 2].map(|n| DatasetId::new(Digest(n), "s3://b/d"));
        let mut counted: [BTreeMap<u128, Occurrence>; 2] = Default::default();
        let mut pinned = 0;
        for (op, n, column, which) in ops {
            let (column, id) = (["a", "b", "c"][column], SegmentId(Digest(n)));
            let file = key(n, column);
            match op {
                0..=3 => {
                    let reservation = index.quotas.reserve(which, 10 + n as u64);
                    let (object, columns) = (format!("o{n}").into(), Arc::from([column.to_owned()]));
                    let entry = Entry { object, columns, pinned: n < pinned, ..Entry::default() };
                    index.insert(file, entry, reservation);
                }
                4 => drop(index.take(which, &[file], 1)),
                5 => drop(index.take_one(&file, |_| true)),
                6 => index.clear(which),
                7 => {
                    pinned = n;
                    index.set_pinned(|object| object[1..].parse::<u128>().is_ok_and(|n| n < pinned));
                }
                8 => {
                    let occurrence = Occurrence { times: 1 + n as u32 % 2, is_owned: column == "a" };
                    counted[which].insert(n, occurrence);
                    index.count(datasets[which], id, Some(occurrence));
                }
                _ => {
                    counted[which].remove(&n);
                    index.count(datasets[which], id, None);
                }
            }
            let bytes: u64 = index.entries.values().filter(|e| e.pinned).map(|e| e.bytes).sum();
            prop_assert_eq!(index.pinned_bytes(), bytes);
            let segments: BTreeSet<_> = index.entries.keys().map(|key| key.id).collect();
            prop_assert_eq!(index.segments(), segments.len());
            for (dataset, counted) in datasets.iter().zip(&counted) {
                prop_assert_eq!(index.holdings.of(*dataset), recounted(&index, counted));
            }
        }
        for (dataset, counted) in datasets.into_iter().zip(counted) {
            counted.keys().for_each(|n| index.count(dataset, SegmentId(Digest(*n)), None));
            prop_assert_eq!(index.holdings.of(dataset), SegmentsHeld::default());
            index.holdings.forget(dataset);
        }
    }
}
