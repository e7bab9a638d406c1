//! The disk cache: against a model, against damage, against its limit.

use super::dirs::{BLOCK_BYTES, FOLDER_GROWTH_BLOCKS, Health};
use super::file::{Encoded, FileKey, Origin, Unsealed};
use super::index::Entry;
use super::policy::{Admit, Forecast, NextUse, Role};
use super::*;
use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use forebay_proto::Result;
use forebay_proto::manifest::{Digest, SegmentId};
use parking_lot::Mutex;
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// No plan is known: everything leaves by recency.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoForecast;

impl Forecast for NoForecast {
    fn next_uses(&self, ids: &[SegmentId]) -> Vec<NextUse> {
        vec![NextUse::Unplanned; ids.len()]
    }
}

impl DiskCacheSettings {
    /// One directory on the real disk.
    pub fn new(dir: impl Into<PathBuf>, limit_bytes: u64) -> Self {
        Self {
            dirs: vec![dir.into()],
            limit_bytes,
            raw_share: 0.25,
            maps_bytes: u64::MAX,
            kept_files: 4,
            start_patience: Duration::from_millis(200),
            disk: Arc::new(RealDisk),
        }
    }
}

impl DiskCache {
    /// As [`DiskCache::try_again`], and waits for what comes of it.
    pub fn heal(&self, now: Instant) {
        for attempt in self.try_again(now) {
            assert!(attempt.has_ended(Duration::from_secs(60)), "the disk does not answer");
        }
    }
}

/// Has the index hold a file of each segment, of which there is none on the disk.
pub fn hold_without_files(cache: &DiskCache, ids: &[SegmentId]) {
    let columns: Arc<[String]> = vec!["a".to_owned()].into();
    let mut index = cache.files.index();
    for id in ids {
        let reservation = index.quotas.reserve(0, 1);
        let entry = Entry { object: "s3://b/o".into(), columns: columns.clone(), ..Entry::default() };
        index.insert(FileKey::new(*id, &columns), entry, reservation);
    }
}

fn open(dir: &Path, limit_bytes: u64) -> Result<DiskCache> {
    DiskCache::open(&DiskCacheSettings::new(dir, limit_bytes), Arc::new(NoForecast))
}

fn put(cache: &DiskCache, n: u128, rows: i64, columns: &[&str]) -> Option<Arc<RecordBatch>> {
    match cache.write(&origin(n), &batch(n, rows, columns).into(), Admit::IfWorthIt, Role::Primary).unwrap() {
        Written::Stored(ready) => Some(ready.batch.columns().unwrap().into()),
        Written::Refused(_) => None,
    }
}

fn origin(n: u128) -> Origin {
    Origin {
        id: SegmentId(Digest(n << 64 | n)),
        object: format!("s3://b/d{}/o{n}", n % 2).into(),
        etag: "e".into(),
    }
}

fn batch(n: u128, rows: i64, columns: &[&str]) -> RecordBatch {
    RecordBatch::try_from_iter(columns.iter().map(|c| {
        let ints = (0..rows).map(|i| i * 7 + n as i64 + c.len() as i64);
        let array: ArrayRef = match c.starts_with('s') {
            true => Arc::new(StringArray::from_iter_values(ints.map(|i| i.to_string()))),
            false => Arc::new(Int64Array::from_iter_values(ints)),
        };
        (*c, array)
    }))
    .unwrap()
}

fn names(columns: &[&str]) -> Vec<String> {
    columns.iter().map(|c| c.to_string()).collect()
}

/// On a disk with blocks of 4 KiB.
fn charge(bytes: u64) -> u64 {
    let blocks = bytes.div_ceil(BLOCK_BYTES);
    BLOCK_BYTES * (blocks + u64::from(blocks > 4))
}

fn file_bytes(rows: i64, columns: &[&str]) -> u64 {
    charge(Encoded::new(&origin(1), &batch(1, rows, columns).into()).unwrap().bytes())
}

/// What `du` says of a directory.
fn disk_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut total = fs::metadata(dir).map_or(0, |m| m.blocks() * 512);
    for e in fs::read_dir(dir).into_iter().flatten().flatten() {
        // Files may go between being listed and being asked.
        total += match e.metadata() {
            Ok(m) if m.is_dir() => disk_bytes(&e.path()),
            Ok(m) => m.blocks() * 512,
            Err(_) => 0,
        };
    }
    total
}

fn health(cache: &DiskCache) -> Vec<Health> {
    cache.dirs().iter().map(|d| d.health).collect()
}

fn held(cache: &DiskCache) -> usize {
    (0..64).filter(|&n| cache.find(origin(n).id, &names(&["a"])).missing.is_empty()).count()
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

/// What an empty disk cache uses: its folders.
fn empty_bytes() -> u64 {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path(), 1 << 20).unwrap().used_bytes()
}

/// A limit for this number of files of one size: folders, the bytes reserved while one is written, and the
/// files.
fn limit_for(files: u64, each: u64) -> u64 {
    empty_bytes() + FOLDER_GROWTH_BLOCKS * BLOCK_BYTES + files * each
}

#[test]
fn written_columns_are_found_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let both = batch(5, 100, &["a", "s"]);
    let cache = open(dir.path(), 1 << 20).unwrap();
    let mapped = put(&cache, 5, 100, &["a", "s"]).unwrap();
    assert_eq!(*mapped, both);
    // A further column becomes a second file of the same segment.
    put(&cache, 5, 100, &["more"]).unwrap();
    drop(mapped);
    drop(cache);
    let cache = open(dir.path(), 1 << 20).unwrap();
    assert_eq!(cache.files(), 2);
    let found = cache.find(origin(5).id, &names(&["s", "more", "none"]));
    assert_eq!(found.missing, ["none"]);
    assert!(found.parts.iter().any(|p| p.batch.columns().unwrap() == both));
    assert_eq!(cache.find(origin(6).id, &names(&["a"])).missing, ["a"]);
}

#[test]
fn every_damaged_byte_is_a_miss() {
    let dir = tempfile::tempdir().unwrap();
    let path = {
        let cache = open(dir.path(), 1 << 20).unwrap();
        put(&cache, 3, 40, &["a", "s"]);
        cache.files.dirs.get(0).segment(&FileKey::new(origin(3).id, &names(&["a", "s"])))
    };
    let good = fs::read(&path).unwrap();
    let header_end = 24 + u32::from_le_bytes(good[8..12].try_into().unwrap()) as usize;
    let body = u32::from_le_bytes(good[12..16].try_into().unwrap()) as usize;
    // The zeros between header and body carry nothing.
    let places = (0..header_end).chain(body..good.len());
    let check = |bytes: &[u8], what: &str| {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        let cache = open(dir.path(), 1 << 20).unwrap();
        let found = cache.find(origin(3).id, &names(&["a", "s"]));
        assert_eq!(found.missing.len(), 2, "{what} was not noticed");
        assert_eq!((cache.files(), cache.counters().corrupt.load(Ordering::Relaxed)), (0, 1), "{what}");
        assert!(!path.exists(), "{what}: the file is gone");
    };
    for at in places {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        check(&bad, &format!("a flipped bit in byte {at}"));
    }
    for length in [0, 7, 23, 24, header_end, body, good.len() - 1] {
        check(&good[..length], &format!("a cut after {length} bytes"));
    }
    check(&[&good[..], &[0]].concat(), "a byte too many");
}

#[test]
fn one_server_per_directory() {
    let dir = tempfile::tempdir().unwrap();
    let _first = open(dir.path(), 1 << 20).unwrap();
    let second = open(dir.path(), 1 << 20).unwrap_err();
    assert!(second.message.contains("used by another server"), "{second}");
}

#[test]
fn a_lowered_limit_evicts_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let each = file_bytes(50, &["a"]);
    let cache = open(dir.path(), limit_for(10, each)).unwrap();
    (1..=8).for_each(|n| drop(put(&cache, n, 50, &["a"]).unwrap()));
    drop(cache);
    let cache = open(dir.path(), limit_for(3, each)).unwrap();
    assert!(cache.used_bytes() <= limit_for(3, each) && cache.files() >= 3);
}

#[test]
fn what_is_being_read_stays_and_what_has_no_room_is_not_stored() {
    let dir = tempfile::tempdir().unwrap();
    let each = file_bytes(50, &["a"]);
    let cache = open(dir.path(), limit_for(2, each)).unwrap();
    let first = put(&cache, 1, 50, &["a"]).unwrap();
    let second = put(&cache, 2, 50, &["a"]).unwrap();
    assert!(put(&cache, 3, 50, &["a"]).is_none(), "both are being read");
    drop(first);
    assert!(put(&cache, 3, 50, &["a"]).is_some());
    assert!(cache.holds(origin(2).id, &[]) && !cache.holds(origin(1).id, &[]));
    assert!(put(&cache, 4, 500, &["a"]).is_none(), "larger than the cache");
    assert_eq!(*second, batch(2, 50, &["a"]));
}

#[test]
fn free_takes_a_uri_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), 1 << 20).unwrap();
    (1..=6).for_each(|n| drop(put(&cache, n, 5, &["a"])));
    assert_eq!(cache.free("s3://b/d"), (0, 0));
    let (files, bytes) = cache.free("s3://b/d1/");
    assert_eq!((files, cache.files()), (3, 3));
    assert_eq!(bytes, 3 * file_bytes(5, &["a"]));
}

#[test]
fn a_length_that_another_node_made_up_has_no_room() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), 1 << 20).unwrap();
    assert!(cache.has_room(None, [1]));
    assert!(!cache.has_room(None, [u64::MAX]) && !cache.has_room(None, [u64::MAX - 1, 1]));
}

#[test]
fn the_length_of_a_file_is_known_before_it_is_hashed() {
    for (rows, columns) in [(0, vec!["a"]), (5, vec!["a"]), (5000, vec!["a", "s", "more"])] {
        let unsealed = Unsealed::new(&origin(1), &batch(1, rows, &columns).into()).unwrap();
        let bytes = unsealed.bytes();
        let written: usize = unsealed.seal().0.into_iter().map(|piece| piece.len()).sum();
        assert_eq!(bytes, written as u64, "{rows} rows of {columns:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    /// Random writes, reads, frees and restarts: the limit holds on disk after each, and the rows found are
    /// right.
    #[test]
    fn holds_its_limit_and_never_lies(ops in prop::collection::vec((0u8..10, 1u128..9, 1i64..200), 1..40)) {
        let dir = tempfile::tempdir().unwrap();
        let limit = limit_for(3, 8192);
        let mut cache = open(dir.path(), limit).unwrap();
        let rows = |n: u128| n as i64 * 20;
        for (op, n, _) in ops {
            match op {
                0..=4 => { put(&cache, n, rows(n), &["a", "s"]); }
                5..=7 => {
                    let found = cache.find(origin(n).id, &names(&["a", "s"]));
                    prop_assert!(found.parts.is_empty() != found.missing.is_empty());
                    for part in &found.parts {
                        prop_assert_eq!(&part.batch.columns().unwrap(), &batch(n, rows(n), &["a", "s"]));
                    }
                }
                8 => { cache.free("s3://b/d0"); }
                _ => {
                    drop(cache);
                    cache = open(dir.path(), limit).unwrap();
                }
            }
            let on_disk = disk_bytes(dir.path());
            prop_assert!(on_disk <= limit, "{} bytes on disk", on_disk);
            prop_assert!(on_disk <= cache.used_bytes(), "{} bytes on disk, {} booked", on_disk, cache.used_bytes());
        }
    }
}

mod copies;
mod damage;
mod faults;
mod faulty;
mod full;
mod hangs;
mod limit;
mod plan;
