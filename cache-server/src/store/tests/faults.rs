//! Directories that fail, fill up, vanish and come back: a wrapper around the real disk, with a seed.

use super::*;
use disk::Stat;
use std::fs::File;
use std::io::IoSlice;
use std::time::Duration;

/// What goes wrong in a directory.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Wrong {
    Nothing,
    /// Every operation.
    All(i32),
    /// Writing only.
    Writes(i32),
    /// This share of all operations, in 1/1000.
    Some(u32, i32),
    /// Everything from so many operations on, as if the process had been killed there.
    From(u64),
}

const EIO: i32 = 5;
const EACCES: i32 = 13;
const ENOSPC: i32 = 28;

/// The real disk, with something wrong in the directory that it is told.
#[derive(Debug)]
struct Faulty {
    wrong: Mutex<(PathBuf, Wrong)>,
    seed: AtomicU64,
    operations: AtomicU64,
}

impl Faulty {
    fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            wrong: Mutex::new((PathBuf::new(), Wrong::Nothing)),
            seed: AtomicU64::new(seed),
            operations: AtomicU64::new(0),
        })
    }

    fn set(&self, dir: &Path, wrong: Wrong) {
        *self.wrong.lock().unwrap() = (dir.to_owned(), wrong);
    }

    /// Weyl's sequence, hashed: a number for each operation.
    fn roll(&self) -> u32 {
        let n = self.seed.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        (xxhash_rust::xxh3::xxh3_64(&n.to_le_bytes()) % 1000) as u32
    }

    fn check(&self, path: Option<&Path>, writes: bool) -> io::Result<()> {
        let (dir, wrong) = self.wrong.lock().unwrap().clone();
        let done = self.operations.fetch_add(1, Ordering::Relaxed);
        // What has no path is an open file: of a directory that fails as a whole, or not.
        if path.is_some_and(|p| !p.starts_with(&dir)) {
            return Ok(());
        }
        match wrong {
            Wrong::All(code) if path.is_some() => Err(io::Error::from_raw_os_error(code)),
            Wrong::Writes(code) if writes && path.is_some() => Err(io::Error::from_raw_os_error(code)),
            Wrong::From(operation) if done >= operation => Err(io::Error::from_raw_os_error(EIO)),
            Wrong::Some(share, code) if self.roll() < share => Err(io::Error::from_raw_os_error(code)),
            _ => Ok(()),
        }
    }
}

impl Disk for Faulty {
    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.check(Some(path), true).and_then(|()| RealDisk.make_dir(path))
    }
    fn create(&self, path: &Path, bytes: u64) -> io::Result<File> {
        self.check(Some(path), true).and_then(|()| RealDisk.create(path, bytes))
    }
    fn write(&self, file: &mut File, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        if let Err(e) = self.check(None, true) {
            // Half of it is written all the same.
            let half = parts.len() / 2;
            RealDisk.write(file, &mut parts[..half]).ok();
            return Err(e);
        }
        RealDisk.write(file, parts)
    }
    fn sync(&self, file: &File) -> io::Result<()> {
        self.check(None, true).and_then(|()| RealDisk.sync(file))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check(Some(from), true).and_then(|()| RealDisk.rename(from, to))
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.check(Some(path), true).and_then(|()| RealDisk.remove(path))
    }
    fn open(&self, path: &Path) -> io::Result<File> {
        self.check(Some(path), false).and_then(|()| RealDisk.open(path))
    }
    fn open_direct(&self, path: &Path) -> io::Result<File> {
        self.check(Some(path), false).and_then(|()| RealDisk.open_direct(path))
    }
    fn read(&self, file: &File, into: &mut [u8], at: u64) -> io::Result<usize> {
        self.check(None, false).and_then(|()| RealDisk.read(file, into, at))
    }
    fn stat(&self, file: &File) -> io::Result<Stat> {
        self.check(None, false).and_then(|()| RealDisk.stat(file))
    }
    fn stat_path(&self, path: &Path) -> io::Result<Stat> {
        self.check(Some(path), false).and_then(|()| RealDisk.stat_path(path))
    }
    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.check(Some(path), false).and_then(|()| RealDisk.list(path))
    }
    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        self.check(Some(path), false).and_then(|()| RealDisk.free_bytes(path))
    }
}

/// Two directories on a disk that may fail.
struct Two {
    one: tempfile::TempDir,
    two: tempfile::TempDir,
    disk: Arc<Faulty>,
}

impl Two {
    fn new(seed: u64) -> Self {
        let dir = || tempfile::tempdir().unwrap();
        Self { one: dir(), two: dir(), disk: Faulty::new(seed) }
    }

    fn open(&self, files: u64) -> Result<Store> {
        let dirs = vec![self.one.path().to_owned(), self.two.path().to_owned()];
        let limit_bytes = 2 * limit_for(files, file_bytes(50, &["a"]));
        let settings = StoreSettings { dirs, limit_bytes, maps_bytes: u64::MAX, disk: self.disk.clone() };
        Store::open(&settings, Arc::new(policy::NoForecast))
    }
}

fn health(store: &Store) -> Vec<Health> {
    store.dirs().iter().map(|d| d.health).collect()
}

fn held(store: &Store) -> usize {
    (0..64).filter(|&n| store.find(origin(n).id, &names(&["a"])).missing.is_empty()).count()
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

#[test]
fn both_are_used_and_both_are_recovered() {
    let two = Two::new(1);
    let store = two.open(10).unwrap();
    (0..12).for_each(|n| drop(put(&store, n, 50, &["a"]).unwrap()));
    let used: Vec<u64> = store.dirs().iter().map(|d| d.used_bytes).collect();
    assert_eq!(used[0], used[1], "each new file goes where most room is");
    assert!(two.open(10).unwrap_err().message.contains("used by another server"));
    drop(store);
    let store = two.open(10).unwrap();
    assert_eq!((store.files(), held(&store)), (12, 12));
}

#[test]
fn a_directory_that_fails_is_set_aside_and_comes_back_with_what_it_held() {
    for code in [EIO, EACCES] {
        let two = Two::new(2);
        let store = two.open(10).unwrap();
        (0..12).for_each(|n| drop(put(&store, n, 50, &["a"]).unwrap()));
        two.disk.set(two.one.path(), Wrong::All(code));
        assert_eq!(held(&store), 6, "the other's files are there");
        assert_eq!(health(&store), [Health::Away, Health::Up]);
        assert_eq!(store.counters().dir_faults.load(Ordering::Relaxed), 1);
        // Its files count as absent, and are filled again, elsewhere.
        for n in (0..12).filter(|&n| !store.holds_any(origin(n).id)).take(2).collect::<Vec<_>>() {
            assert!(put(&store, n, 50, &["a"]).is_some());
        }
        store.heal(later());
        assert_eq!(health(&store), [Health::Away, Health::Up], "it fails still");
        two.disk.set(two.one.path(), Wrong::Nothing);
        store.heal(Instant::now());
        assert_eq!(health(&store), [Health::Away, Health::Up], "not before its time");
        store.heal(later() + Duration::from_secs(60));
        assert_eq!(health(&store), [Health::Up, Health::Up]);
        assert_eq!((held(&store), store.files()), (12, 12), "what two directories hold is dropped in one");
        let on_disk = disk_bytes(two.one.path()) + disk_bytes(two.two.path());
        assert!(on_disk <= store.used_bytes(), "{on_disk} {}", store.used_bytes());
    }
}

#[test]
fn a_full_disk_is_read_and_its_writes_go_elsewhere() {
    let two = Two::new(3);
    let store = two.open(10).unwrap();
    (0..4).for_each(|n| drop(put(&store, n, 50, &["a"]).unwrap()));
    two.disk.set(two.two.path(), Wrong::Writes(ENOSPC));
    (4..8).for_each(|n| drop(put(&store, n, 50, &["a"]).unwrap()));
    assert_eq!((health(&store), held(&store)), (vec![Health::Up, Health::Full], 8));
    store.heal(later());
    assert_eq!(health(&store), [Health::Up, Health::Full]);
    two.disk.set(two.two.path(), Wrong::Nothing);
    store.heal(later() + Duration::from_secs(60));
    assert_eq!(health(&store), [Health::Up, Health::Up]);
}

#[test]
fn all_away_means_reading_through_and_all_bad_at_start_is_an_error() {
    let two = Two::new(4);
    let store = two.open(10).unwrap();
    (0..4).for_each(|n| drop(put(&store, n, 50, &["a"]).unwrap()));
    two.disk.set(Path::new("/"), Wrong::All(EIO));
    assert_eq!(held(&store), 0);
    assert!(put(&store, 9, 50, &["a"]).is_none());
    assert_eq!(health(&store), [Health::Away, Health::Away]);
    drop(store);
    assert!(two.open(10).unwrap_err().message.contains("--cache-dir"));
    two.disk.set(two.one.path(), Wrong::All(EIO));
    let store = two.open(10).unwrap();
    assert_eq!((health(&store), held(&store)), (vec![Health::Away, Health::Up], 2));
    two.disk.set(two.one.path(), Wrong::Nothing);
    store.heal(later());
    assert_eq!((health(&store), held(&store)), (vec![Health::Up, Health::Up], 4));
}

#[test]
fn one_that_vanishes_is_set_aside_and_made_anew() {
    let two = Two::new(5);
    let store = two.open(10).unwrap();
    (0..12).for_each(|n| drop(put(&store, n, 50, &["a"]).unwrap()));
    fs::remove_dir_all(two.one.path()).unwrap();
    assert_eq!(held(&store), 6);
    (20..26).for_each(|n| drop(put(&store, n, 50, &["a"]).unwrap()));
    assert_eq!(health(&store), [Health::Away, Health::Up]);
    store.heal(later());
    assert_eq!(health(&store), [Health::Up, Health::Up]);
    assert!(put(&store, 30, 50, &["a"]).is_some());
}

#[test]
fn one_bad_file_is_not_a_bad_directory() {
    let two = Two::new(6);
    let store = two.open(10).unwrap();
    put(&store, 1, 50, &["a"]).unwrap();
    drop(store);
    let store = two.open(10).unwrap();
    let file = store.dirs[0].segment(&FileKey::new(origin(1).id, &names(&["a"])));
    two.disk.set(&file, Wrong::All(EIO));
    assert_eq!(held(&store), 0);
    assert_eq!(health(&store), [Health::Up, Health::Up]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    /// Whatever fails whenever: no wrong data, the limit holds, nothing is left half-written, and it heals.
    #[test]
    fn faults_at_random_cost_only_hits(seed in any::<u64>(), share in 1u32..400, code in prop::sample::select(vec![EIO, EACCES, ENOSPC])) {
        let two = Two::new(seed);
        let store = two.open(4).unwrap();
        two.disk.set(Path::new("/"), Wrong::Some(share, code));
        let mut now = Instant::now();
        for round in 0..60u128 {
            let n = (round * 7) % 16;
            let found = store.find(origin(n).id, &names(&["a"]));
            for part in &found.parts {
                prop_assert_eq!(&**part, &batch(n, 50, &["a"]));
            }
            if !found.missing.is_empty() {
                drop(put(&store, n, 50, &["a"]));
            }
            now += Duration::from_secs(30);
            store.heal(now);
        }
        two.disk.set(Path::new("/"), Wrong::Nothing);
        store.heal(now + Duration::from_secs(300));
        prop_assert_eq!(health(&store), vec![Health::Up, Health::Up]);
        drop(store);
        let store = two.open(4).unwrap();
        for n in 0..16 {
            for part in store.find(origin(n).id, &names(&["a"])).parts {
                prop_assert_eq!(&*part, &batch(n, 50, &["a"]));
            }
        }
        for dir in [&two.one, &two.two] {
            prop_assert_eq!(fs::read_dir(dir.path().join("v1/tmp")).unwrap().count(), 0);
            prop_assert!(disk_bytes(dir.path()) <= store.limit_bytes() / 2);
        }
    }

    /// Killed anywhere between two operations, or in the middle of a write: what is there afterwards verifies.
    #[test]
    fn a_kill_leaves_only_what_verifies(operation in 0u64..400) {
        let two = Two::new(0);
        let store = two.open(4).unwrap();
        let begun = two.disk.operations.load(Ordering::Relaxed);
        two.disk.set(Path::new("/"), Wrong::From(begun + operation));
        for round in 0..30u128 {
            // A second file of the same segment, a replaced one, and evictions are among them.
            let n = (round * 7) % 12;
            drop(put(&store, n, 50, &["a"]));
            drop(put(&store, n, 50, &["more"]));
        }
        drop(store);
        two.disk.set(Path::new("/"), Wrong::Nothing);
        let store = two.open(4).unwrap();
        let corrupt = || store.counters().corrupt.load(Ordering::Relaxed);
        prop_assert_eq!(corrupt(), 0, "what has its name is whole");
        for n in 0..12 {
            for column in ["a", "more"] {
                for part in store.find(origin(n).id, &names(&[column])).parts {
                    prop_assert_eq!(&*part, &batch(n, 50, &[column]));
                }
            }
        }
        prop_assert_eq!(corrupt(), 0);
        for dir in [&two.one, &two.two] {
            prop_assert_eq!(fs::read_dir(dir.path().join("v1/tmp")).unwrap().count(), 0);
            prop_assert!(disk_bytes(dir.path()) <= store.limit_bytes() / 2);
        }
    }
}
