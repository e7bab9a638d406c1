//! Which maps are kept.

use crate::disk::file::Origin;
use crate::disk::map;
use crate::disk::policy::{Admit, NoForecast, Role};
use crate::disk::{DiskCache, DiskCacheSettings};
use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use forebay_proto::manifest::{Digest, SegmentId};
use std::sync::Arc;

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
        cache.write(&origin, &batch, Admit::Always, Role::Primary).unwrap();
    }
    drop(cache);
    let cache = open();
    {
        let mut index = cache.files.index();
        (index.maps.kept_max, index.maps.bound) = (8, 8);
    }
    let find = |i| cache.find(SegmentId(Digest(i)), &["id".into()]);
    let kept = || {
        let index = cache.files.index();
        let kept = index.entries.values().filter(|e| e.map.is_some()).count();
        assert_eq!(kept, index.maps.kept);
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
    drop(cache.write(&origin, &batch, Admit::Always, Role::Primary).unwrap());
    let mut index = cache.files.index();
    let key = index.files_of(origin.id)[0];
    let open = || {
        let place = &cache.files.dirs().get(0);
        Arc::new(map::open(place.shared_disk(), &place.segment(&key), true).unwrap())
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
    assert_eq!(index.maps.kept, 1);
}
