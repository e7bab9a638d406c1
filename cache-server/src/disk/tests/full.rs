//! Disks that are full before the limit is reached: of the cache's own files, of others', by a quota, when
//! the cache is opened.

use super::faulty::{DiskRoom, EDQUOT, EIO, ENOSPC, Faulty, Two, Wrong};
use super::*;
use forebay_proto::Kind;

const ROWS: i64 = 4000;

/// A directory on a disk that has room for a few files, of which the limit allows a hundred.
struct Small {
    dir: tempfile::TempDir,
    disk: Arc<Faulty>,
}

impl Small {
    fn new(files: u64, code: i32, allocates: bool) -> Self {
        let small = Self { dir: tempfile::tempdir().unwrap(), disk: Faulty::new(1) };
        drop(small.open(Arc::new(NoForecast)));
        let bytes = disk_bytes(small.dir.path()) + files * each() + FOLDER_GROWTH_BLOCKS * BLOCK_BYTES;
        let dir = small.dir.path().to_owned();
        *small.disk.room.lock() = Some(DiskRoom { dir, bytes, code, allocates, is_taken: false });
        small
    }

    fn open(&self, forecast: Arc<dyn Forecast>) -> DiskCache {
        self.try_open(forecast).unwrap()
    }

    fn try_open(&self, forecast: Arc<dyn Forecast>) -> Result<DiskCache> {
        let settings = DiskCacheSettings::new(self.dir.path(), limit_for(100, each()));
        DiskCache::open(&DiskCacheSettings { disk: self.disk.clone(), ..settings }, forecast)
    }

    /// Has the disk another size, of which others may take what files leave.
    fn resize(&self, bytes: u64, is_taken: bool) {
        let mut room = self.disk.room.lock();
        let room = room.as_mut().unwrap();
        (room.bytes, room.is_taken) = (bytes, is_taken);
    }

    fn used(&self) -> u64 {
        disk_bytes(self.dir.path())
    }
}

fn each() -> u64 {
    file_bytes(ROWS, &["a"])
}

fn write(cache: &DiskCache, n: u128) -> bool {
    put(cache, n, ROWS, &["a"]).is_some()
}

fn evictions(cache: &DiskCache) -> u64 {
    cache.counters().evictions.load(Ordering::Relaxed)
}

fn faults(cache: &DiskCache) -> u64 {
    cache.counters().dir_faults.load(Ordering::Relaxed)
}

/// When a full disk is looked at again.
fn soon(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(seconds)
}

#[test]
fn a_disk_full_of_own_files_is_a_lower_limit() {
    for (code, allocates) in [(ENOSPC, true), (ENOSPC, false), (EDQUOT, true), (EDQUOT, false)] {
        let small = Small::new(8, code, allocates);
        let cache = small.open(Arc::new(NoForecast));
        for n in 0..40 {
            assert!(write(&cache, n), "file {n}, error {code}");
            let (on_disk, used) = (small.used(), cache.used_bytes());
            assert!(on_disk <= used && used <= cache.limit_bytes(), "{on_disk} {used}");
            assert!(n < 8 || (6..=9).contains(&cache.files()), "{} files after {n}", cache.files());
        }
        assert_eq!(health(&cache), [Health::Full]);
        assert_eq!(evictions(&cache), 40 - cache.files());
        assert!(cache.holds(origin(39).id, &[]) && !cache.holds(origin(20).id, &[]), "the oldest left");
        assert_eq!(faults(&cache), 1, "it is said once");
        assert_eq!(fs::read_dir(small.dir.path().join("v1/tmp")).unwrap().count(), 0);
        let status = &cache.dirs()[0];
        assert_eq!(status.limit_bytes, limit_for(100, each()), "its share");
        assert!(cache.limit_bytes_under("s3://b") < limit_for(10, each()), "what it can hold");
        // Freed room can be used at once.
        let (before, freed) = (evictions(&cache), cache.free("s3://b/d0").0);
        assert!(freed >= 2 && cache.has_room(None, [each()]), "{freed} files");
        assert!(write(&cache, 100));
        assert_eq!(evictions(&cache), before);
    }
}

#[test]
fn small_files_that_must_be_written_find_room_on_a_full_disk() {
    let small = Small::new(6, ENOSPC, true);
    let cache = small.open(Arc::new(NoForecast));
    (0..6).for_each(|n| assert!(write(&cache, n)));
    small.resize(small.used(), false);
    let notes = cache.sidecar("v1/notes");
    notes.write("x", &[7; 5000]).unwrap();
    assert_eq!(notes.read("x").unwrap(), [7; 5000]);
    small.resize(small.used(), false);
    cache.pin("s3://b/d0").unwrap();
    assert_eq!(cache.pinned().0, ["s3://b/d0"]);
    assert!((2..=5).contains(&cache.files()), "{} files", cache.files());
    drop((notes, cache));
    assert_eq!(small.open(Arc::new(NoForecast)).pinned().0, ["s3://b/d0"]);
}

#[test]
fn others_that_take_what_files_leave_do_not_get_all_of_it() {
    let small = Small::new(20, ENOSPC, true);
    let cache = small.open(Arc::new(NoForecast));
    (0..20).for_each(|n| assert!(write(&cache, n)));
    small.resize(small.used(), true);
    assert!(!write(&cache, 20));
    let left = cache.files();
    assert!((15..20).contains(&left), "{left} files are left");
    assert_eq!((health(&cache), cache.free_bytes()), (vec![Health::Full], 0));
    for n in 21..40 {
        assert!(!write(&cache, n));
    }
    assert_eq!(cache.files(), left, "nothing is written for a while");
    assert_eq!(held(&cache), left as usize, "and all is read");
    // One more try, and a longer rest.
    cache.heal(soon(2));
    (40..50).for_each(|n| assert!(!write(&cache, n)));
    let then = cache.files();
    assert!(then < left && then + 3 > left, "{then} of {left} files");
    // Room that comes back ends it.
    small.resize(small.used() + 10 * each(), false);
    cache.heal(soon(4));
    assert!(write(&cache, 50) && cache.files() > then);
    assert_eq!(faults(&cache), 1);
}

#[test]
fn what_is_freed_ends_the_rest_of_a_full_disk() {
    let small = Small::new(20, ENOSPC, true);
    let cache = small.open(Arc::new(NoForecast));
    (0..20).for_each(|n| assert!(write(&cache, n)));
    small.resize(small.used(), true);
    assert!(!write(&cache, 20));
    small.resize(small.used(), false);
    assert!(!write(&cache, 21), "it rests");
    let before = evictions(&cache);
    assert!(cache.free("s3://b/d0").0 >= 6);
    assert!(write(&cache, 22) && write(&cache, 24));
    assert_eq!(evictions(&cache), before);
}

#[test]
fn the_limit_rises_as_room_comes_back() {
    for code in [ENOSPC, EDQUOT] {
        let small = Small::new(6, code, true);
        let cache = small.open(Arc::new(NoForecast));
        (0..12).for_each(|n| assert!(write(&cache, n)));
        assert!(cache.files() <= 7 && cache.free_bytes() < 3 * each());
        let more = 10 * each();
        small.resize(small.used() + more, false);
        // A quota does not show; it is tried after a minute.
        cache.heal(soon(if code == ENOSPC { 2 } else { 100 }));
        let room = cache.free_bytes();
        assert!(room > more - 2 * each(), "{room} of {more} bytes");
        let (before, files) = (evictions(&cache), cache.files());
        (20..27).for_each(|n| assert!(write(&cache, n)));
        assert_eq!((evictions(&cache), cache.files()), (before, files + 7));
        small.resize(u64::MAX / 2, false);
        cache.heal(soon(200));
        assert_eq!(health(&cache), [Health::Up]);
        assert_eq!(cache.limit_bytes_under("s3://b"), cache.limit_bytes());
    }
}

/// The next use of each is its number.
#[derive(Debug)]
struct InOrder;

impl Forecast for InOrder {
    fn next_uses(&self, ids: &[SegmentId]) -> Vec<NextUse> {
        ids.iter().map(|id| NextUse::Planned(id.0.0 as u64)).collect()
    }
}

#[test]
fn on_a_full_disk_too_the_file_needed_last_leaves() {
    let small = Small::new(8, ENOSPC, true);
    let cache = small.open(Arc::new(InOrder));
    (1..9).for_each(|n| assert!(write(&cache, 10 * n)));
    small.resize(small.used(), false);
    assert!(!write(&cache, 90), "all others are needed sooner");
    assert_eq!(cache.files(), 8, "and stay");
    assert!(write(&cache, 45));
    let held: Vec<u128> = (0..100).filter(|&n| cache.holds(origin(n).id, &[])).collect();
    assert!(
        [&[10, 20, 30, 40, 45, 50, 60, 70][..], &[10, 20, 30, 40, 45, 50, 60]].contains(&&held[..]),
        "{held:?}"
    );
}

#[test]
fn a_cache_is_opened_on_a_disk_that_others_have_filled() {
    for code in [ENOSPC, EDQUOT] {
        let small = Small::new(6, code, true);
        let cache = small.open(Arc::new(NoForecast));
        (0..5).for_each(|n| assert!(write(&cache, n)));
        cache.pin("s3://b/d1").unwrap();
        drop(cache);
        // Left by a crash, in room that others took.
        fs::write(small.dir.path().join("v1/tmp/1.1"), [1; 9000]).unwrap();
        small.resize(small.used() - 12 * 1024, false);
        let cache = small.open(Arc::new(NoForecast));
        assert_eq!((health(&cache), cache.files(), faults(&cache)), (vec![Health::Full], 5, 1));
        assert_eq!((held(&cache), cache.pinned().0), (5, vec!["s3://b/d1".to_owned()]));
        assert_eq!(fs::read(small.dir.path().join("v1/pulse")).unwrap().len(), 512);
        assert!(write(&cache, 10), "an older one leaves");
        assert!(
            cache.holds(origin(1).id, &[]) && cache.holds(origin(3).id, &[]),
            "not those that are pinned"
        );
        cache.pin("s3://b/d0/o10").unwrap();
    }
}

#[test]
fn a_bad_file_does_not_keep_a_full_directory_from_being_opened() {
    let small = Small::new(6, ENOSPC, true);
    let cache = small.open(Arc::new(NoForecast));
    (0..5).for_each(|n| assert!(write(&cache, n)));
    let bad = cache.files.dirs.get(0).segment(&FileKey::new(origin(2).id, &names(&["a"])));
    drop(cache);
    small.resize(small.used(), false);
    small.disk.set(&bad, Wrong::All(EIO));
    let cache = small.open(Arc::new(NoForecast));
    assert_eq!((health(&cache), held(&cache)), (vec![Health::Full], 4));
}

#[test]
fn one_full_directory_of_two_is_opened_with_what_it_holds() {
    let two = Two::new(30);
    let cache = two.open(10).unwrap();
    (0..12).for_each(|n| drop(put(&cache, n, 50, &["a"]).unwrap()));
    drop(cache);
    let dir = two.two.path().to_owned();
    let bytes = disk_bytes(&dir);
    *two.disk.room.lock() = Some(DiskRoom { dir, bytes, code: ENOSPC, allocates: true, is_taken: false });
    let cache = two.open(10).unwrap();
    assert_eq!((health(&cache), held(&cache)), (vec![Health::Up, Health::Full], 12));
    (12..14).for_each(|n| drop(put(&cache, n, 50, &["a"]).unwrap()));
    assert_eq!((evictions(&cache), held(&cache)), (0, 14), "the other one has room");
}

#[test]
fn a_directory_that_cannot_be_made_says_where_room_is_wanted() {
    let small = Small::new(0, ENOSPC, true);
    for (code, kind, says) in
        [(ENOSPC, Kind::Full, "; free room there, or choose"), (EIO, Kind::Denied, "; choose another")]
    {
        small.disk.set(Path::new("/"), Wrong::Writes(code));
        let e = small.try_open(Arc::new(NoForecast)).unwrap_err();
        assert!(e.kind == kind && e.message.contains(says) && e.message.contains("--cache-dir"), "{e}");
    }
}
