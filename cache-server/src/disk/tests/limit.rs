//! The limit, as `du` sees it while files come and go.

use super::*;
use forebay_proto::Kind;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant, SystemTime};

/// Bytes that files and folders take up, each as no other one is: numbers of inodes are given out again.
type Seen = BTreeMap<(u64, Option<SystemTime>), u64>;

fn walk(path: &Path, seen: &mut Seen) {
    let Ok(of) = fs::symlink_metadata(path) else { return };
    seen.insert((of.ino(), of.created().ok()), 512 * of.blocks());
    if of.is_dir() {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.for_each(|entry| walk(&entry.path(), seen));
    }
}

/// What `du` says of directories at one instant. A walk that counts a file that went and the one that came
/// for it says too much, so there are two: what both saw was there in between.
fn disk_bytes_at_once(dirs: [&Path; 2]) -> u64 {
    let look = || {
        let mut seen = Seen::new();
        dirs.iter().for_each(|dir| walk(dir, &mut seen));
        seen
    };
    let (first, second) = (look(), look());
    first.into_iter().filter(|(file, _)| second.contains_key(file)).map(|(_, bytes)| bytes).sum()
}

#[test]
fn du_never_shows_more_than_the_limit() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let limit = 2 * limit_for(5, 400 << 10);
    let settings = DiskCacheSettings {
        dirs: vec![one.path().to_owned(), two.path().to_owned()],
        ..DiskCacheSettings::new("", limit)
    };
    let cache = DiskCache::open(&settings, Arc::new(NoForecast)).unwrap();
    let (done, looks, began) = (AtomicBool::new(false), AtomicU64::new(0), Instant::now());
    let mut most = 0;
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|t| {
                let (cache, looks) = (&cache, &looks);
                scope.spawn(move || {
                    // Longer where the watcher has hardly looked by then.
                    let is_seen =
                        || looks.load(Ordering::Relaxed) > 10 || began.elapsed() > Duration::from_secs(30);
                    for i in (0u128..).take_while(|i| *i < 60 || !is_seen()) {
                        // From a page to a third of a megabyte, columns of the same segment among them.
                        let n = t * 1_000_000 + i / 2;
                        let column = if i % 2 == 0 { "a" } else { "b" };
                        drop(put(cache, n, 10 + (i as i64 * 997) % 40_000, &[column]));
                    }
                })
            })
            .collect();
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !done.load(Ordering::Relaxed) {
                most = disk_bytes_at_once([one.path(), two.path()]).max(most);
                looks.fetch_add(1, Ordering::Relaxed);
            }
            most
        });
        writers.into_iter().for_each(|w| w.join().unwrap());
        done.store(true, Ordering::Relaxed);
        most = watch.join().unwrap();
    });
    let looks = looks.into_inner();
    assert!(most <= limit, "{most} of {limit} bytes, {looks} looks");
    assert!(most > limit / 2 && looks > 10, "it is used: {most} of {limit} bytes, {looks} looks");
    assert!(cache.counters().evictions.load(Ordering::Relaxed) > 20);
    assert!(
        cache.dirs().iter().all(|d| d.used_bytes <= limit / 2 && d.used_bytes > limit / 8),
        "both are used"
    );
    assert!(disk_bytes(one.path()) + disk_bytes(two.path()) <= cache.used_bytes());
}

#[test]
fn what_lies_under_a_prefix_keeps_to_its_limit() {
    let dir = tempfile::tempdir().unwrap();
    let each = file_bytes(4000, &["a"]);
    let cache = open(dir.path(), limit_for(100, each)).unwrap();
    // Objects of even numbers lie under d0, the others under d1.
    let limit = |files: u64, prefix: &str| PrefixLimit {
        prefixes: vec![format!("s3://b/{prefix}")],
        limit_bytes: files * each + FOLDER_GROWTH_BLOCKS * BLOCK_BYTES,
    };
    let held = |cache: &DiskCache, odd: u128| {
        let is_held = |n: &u128| n % 2 == odd && cache.holds(origin(*n).id, &[]);
        (0..60).filter(is_held).collect::<Vec<_>>()
    };
    cache.set_prefix_limits(vec![limit(5, "d0")]);
    std::thread::scope(|scope| {
        for start in [0, 15, 30, 45] {
            let cache = &cache;
            scope.spawn(move || (start..start + 15).for_each(|n| drop(put(cache, n, 4000, &["a"]))));
        }
    });
    let (even, odd) = (held(&cache, 0), held(&cache, 1));
    assert!((3..=5).contains(&even.len()) && odd.len() == 30, "{even:?} {odd:?}");
    put(&cache, 60, 4000, &["a"]).expect("an older one leaves");
    assert!(held(&cache, 0).len() < 5, "for the new one");
    // A new limit is for files that are there, also after a restart.
    drop(cache);
    let cache = open(dir.path(), limit_for(100, each)).unwrap();
    cache.set_prefix_limits(vec![limit(0, "d0"), limit(7, "d1")]);
    assert_eq!((held(&cache, 0).len(), held(&cache, 1).len()), (0, 7));
    assert!(put(&cache, 2, 4000, &["a"]).is_none(), "nothing fits into none");
    cache.set_prefix_limits(Vec::new());
    assert!(put(&cache, 2, 4000, &["a"]).is_some());
    assert_eq!(disk_bytes(dir.path()).max(cache.used_bytes()), cache.used_bytes());
}

#[test]
fn what_others_keep_beside_the_segments_counts() {
    let dir = tempfile::tempdir().unwrap();
    let limit = limit_for(5, 8192);
    let cache = open(dir.path(), limit).unwrap();
    let empty = cache.used_bytes();
    (0..20).for_each(|n| drop(put(&cache, n, 50, &["a"])));
    let beside = cache.sidecar("v1/manifests");
    beside.write("note", &[1; 10_000]).expect("segments make room for it");
    (0..20).for_each(|n| drop(put(&cache, n, 50, &["a"])));
    let on_disk = disk_bytes(dir.path());
    assert!(on_disk <= cache.used_bytes() && cache.used_bytes() <= limit, "{on_disk} of {limit}");
    let too_much = vec![1; limit as usize];
    assert_eq!(beside.write("much", &too_much).unwrap_err().kind, Kind::Full, "more than there is");
    cache.free("s3://b");
    drop((beside, cache));
    let cache = open(dir.path(), limit).unwrap();
    assert_eq!(cache.used_bytes() - empty, charge(10_000) + BLOCK_BYTES, "also after a restart");
    let beside = cache.sidecar("v1/manifests");
    assert_eq!((beside.list(), beside.read("note")), (vec!["note".to_owned()], Some(vec![1; 10_000])));
    beside.write("note", &[2; 10]).unwrap();
    assert_eq!(beside.read("note"), Some(vec![2; 10]), "in place of the one before");
    beside.remove("note");
    assert_eq!(cache.used_bytes(), empty);
}
