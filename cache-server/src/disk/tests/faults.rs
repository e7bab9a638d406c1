//! Directories that fail, fill up, vanish and come back.

use super::faulty::{EACCES, EIO, ENOSPC, Faulty, Two, Wrong};
use super::*;

#[test]
fn both_are_used_and_both_are_recovered() {
    let two = Two::new(1);
    let cache = two.open(10).unwrap();
    (0..12).for_each(|n| drop(put(&cache, n, 50, &["a"]).unwrap()));
    let used: Vec<u64> = cache.dirs().iter().map(|d| d.used_bytes).collect();
    assert_eq!(used[0], used[1], "each new file goes where most room is");
    assert!(two.open(10).unwrap_err().message.contains("used by another server"));
    drop(cache);
    let cache = two.open(10).unwrap();
    assert_eq!((cache.files(), held(&cache)), (12, 12));
}

#[test]
fn a_directory_that_fails_is_set_aside_and_comes_back_with_what_it_held() {
    for code in [EIO, EACCES] {
        let two = Two::new(2);
        let cache = two.open(10).unwrap();
        (0..12).for_each(|n| drop(put(&cache, n, 50, &["a"]).unwrap()));
        two.disk.set(two.one.path(), Wrong::All(code));
        assert_eq!(held(&cache), 6, "the other's files are there");
        assert_eq!(health(&cache), [Health::Away, Health::Up]);
        assert_eq!(cache.counters().dir_faults.load(Ordering::Relaxed), 1);
        // Its files count as absent, and are filled again, elsewhere.
        for n in (0..12).filter(|&n| !cache.holds(origin(n).id, &[])).take(2).collect::<Vec<_>>() {
            assert!(put(&cache, n, 50, &["a"]).is_some());
        }
        cache.heal(later());
        assert_eq!(health(&cache), [Health::Away, Health::Up], "it fails still");
        two.disk.set(two.one.path(), Wrong::Nothing);
        cache.heal(Instant::now());
        assert_eq!(health(&cache), [Health::Away, Health::Up], "not before its time");
        cache.heal(later() + Duration::from_secs(60));
        assert_eq!(health(&cache), [Health::Up, Health::Up]);
        assert_eq!((held(&cache), cache.files()), (12, 12), "what two directories hold is dropped in one");
        let on_disk = disk_bytes(two.one.path()) + disk_bytes(two.two.path());
        assert!(on_disk <= cache.used_bytes(), "{on_disk} {}", cache.used_bytes());
    }
}

#[test]
fn a_full_disk_is_read_and_its_writes_go_elsewhere() {
    let two = Two::new(3);
    let cache = two.open(10).unwrap();
    (0..4).for_each(|n| drop(put(&cache, n, 50, &["a"]).unwrap()));
    two.disk.set(two.two.path(), Wrong::Writes(ENOSPC));
    (4..8).for_each(|n| drop(put(&cache, n, 50, &["a"]).unwrap()));
    assert_eq!((health(&cache), held(&cache)), (vec![Health::Up, Health::Full], 8));
    cache.heal(later());
    assert_eq!(health(&cache), [Health::Up, Health::Full]);
    two.disk.set(two.two.path(), Wrong::Nothing);
    cache.heal(later() + Duration::from_secs(60));
    assert_eq!(health(&cache), [Health::Up, Health::Up]);
}

#[test]
fn all_away_means_reading_through_and_all_bad_at_start_is_an_error() {
    let two = Two::new(4);
    let cache = two.open(10).unwrap();
    (0..4).for_each(|n| drop(put(&cache, n, 50, &["a"]).unwrap()));
    two.disk.set(Path::new("/"), Wrong::All(EIO));
    assert_eq!(held(&cache), 0);
    assert!(put(&cache, 9, 50, &["a"]).is_none());
    assert_eq!(health(&cache), [Health::Away, Health::Away]);
    drop(cache);
    assert!(two.open(10).unwrap_err().message.contains("--cache-dir"));
    two.disk.set(two.one.path(), Wrong::All(EIO));
    let cache = two.open(10).unwrap();
    assert_eq!((health(&cache), held(&cache)), (vec![Health::Away, Health::Up], 2));
    two.disk.set(two.one.path(), Wrong::Nothing);
    cache.heal(later());
    assert_eq!((health(&cache), held(&cache)), (vec![Health::Up, Health::Up], 4));
}

#[test]
fn one_that_vanishes_is_set_aside_and_made_anew() {
    let two = Two::new(5);
    let cache = two.open(10).unwrap();
    (0..12).for_each(|n| drop(put(&cache, n, 50, &["a"]).unwrap()));
    fs::remove_dir_all(two.one.path()).unwrap();
    assert_eq!(held(&cache), 6);
    (20..26).for_each(|n| drop(put(&cache, n, 50, &["a"]).unwrap()));
    assert_eq!(health(&cache), [Health::Away, Health::Up]);
    cache.heal(later());
    assert_eq!(health(&cache), [Health::Up, Health::Up]);
    assert!(put(&cache, 30, 50, &["a"]).is_some());
}

#[test]
fn one_bad_file_is_not_a_bad_directory() {
    let two = Two::new(6);
    let cache = two.open(10).unwrap();
    put(&cache, 1, 50, &["a"]).unwrap();
    drop(cache);
    let cache = two.open(10).unwrap();
    let file = cache.files.dirs.get(0).segment(&FileKey::new(origin(1).id, &names(&["a"])));
    two.disk.set(&file, Wrong::All(EIO));
    assert_eq!(held(&cache), 0);
    assert_eq!(health(&cache), [Health::Up, Health::Up]);
}

#[test]
fn what_no_directory_can_keep_is_not_pinned() {
    let two = Two::new(7);
    let cache = two.open(10).unwrap();
    two.disk.set(two.one.path(), Wrong::Writes(EACCES));
    cache.pin("s3://b/d0").unwrap();
    two.disk.set(Path::new("/"), Wrong::Writes(EACCES));
    let pinned = || cache.pinned().0;
    assert_eq!(cache.pin("s3://b/d1").unwrap_err().kind, forebay_proto::Kind::Retry);
    assert_eq!(cache.unpin("s3://b/d0").unwrap_err().kind, forebay_proto::Kind::Retry);
    assert_eq!(pinned(), ["s3://b/d0"], "as it was");
    two.disk.set(Path::new("/"), Wrong::Nothing);
    cache.heal(later());
    cache.pin("s3://b/d1").unwrap();
    assert_eq!(pinned(), ["s3://b/d0", "s3://b/d1"]);
    drop(cache);
    fs::remove_dir_all(two.two.path()).unwrap();
    assert_eq!(two.open(10).unwrap().pinned().0, ["s3://b/d0", "s3://b/d1"], "in the other one too");
}

#[test]
fn what_cannot_be_removed_is_removed_later() {
    let two = Two::new(8);
    let cache = two.open(10).unwrap();
    put(&cache, 1, 50, &["a"]).unwrap();
    put(&cache, 2, 50, &["a"]).unwrap();
    let used = cache.used_bytes();
    let key = |n| FileKey::new(origin(n).id, &names(&["a"]));
    let dir = cache.files.index().get(&key(1)).unwrap().dir();
    let file = cache.files.dirs.get(dir).segment(&key(1));
    two.disk.set(&file, Wrong::All(EACCES));
    assert!(cache.copies().remove(origin(1).id));
    assert_eq!((cache.files(), cache.used_bytes()), (1, used), "it is still there");
    cache.heal(Instant::now());
    assert!(file.exists() && cache.used_bytes() == used);
    two.disk.set(&file, Wrong::Nothing);
    cache.heal(Instant::now());
    assert!(file.exists(), "not at once");
    cache.heal(later());
    assert!(!file.exists());
    assert_eq!(cache.used_bytes(), used - file_bytes(50, &["a"]));
    // A successor of the same name stays.
    two.disk.set(&cache.files.dirs.get(1 - dir).segment(&key(2)), Wrong::All(EACCES));
    assert!(cache.copies().remove(origin(2).id));
    two.disk.set(Path::new("/"), Wrong::Nothing);
    (10..20).for_each(|n| drop(put(&cache, n, 50, &["a"])));
    put(&cache, 2, 50, &["a"]).unwrap();
    cache.heal(later() + Duration::from_secs(60));
    assert!(cache.find(origin(2).id, &names(&["a"])).missing.is_empty());
    let on_disk = disk_bytes(two.one.path()) + disk_bytes(two.two.path());
    assert!(on_disk <= cache.used_bytes(), "{on_disk} {}", cache.used_bytes());
}

#[test]
fn what_is_above_a_lower_limit_and_cannot_be_removed_counts() {
    let two = Two::new(12);
    let cache = two.open(10).unwrap();
    (0..10).for_each(|n| drop(put(&cache, n, 50, &["a"]).unwrap()));
    let key = FileKey::new(origin(0).id, &names(&["a"]));
    let dir = cache.files.index().get(&key).unwrap().dir();
    let oldest = cache.files.dirs.get(dir).segment(&key);
    drop(cache);
    two.disk.set(&oldest, Wrong::Writes(EACCES));
    let cache = two.open(0).unwrap();
    assert!(!cache.holds(origin(0).id, &[]) && oldest.exists());
    let on_disk = disk_bytes(two.one.path()) + disk_bytes(two.two.path());
    let used = cache.used_bytes();
    assert!(on_disk <= used, "{on_disk} {used}");
    two.disk.set(Path::new("/"), Wrong::Nothing);
    cache.heal(later());
    assert!(!oldest.exists());
    assert_eq!(cache.used_bytes(), used - file_bytes(50, &["a"]));
}

#[test]
fn a_list_of_pins_counts_while_the_one_before_it_is_there() {
    let two = Two::new(13);
    let cache = Arc::new(two.open(40).unwrap());
    // Much longer than the blocks reserved beside the files anyway.
    let uri = |n: usize| format!("s3://b/{n}/{}", "long".repeat(500));
    for n in 0..20 {
        cache.pin(&uri(n)).unwrap();
    }
    (0..80).for_each(|n| drop(put(&cache, n, 50, &["a"])));
    let (other, dirs) = (cache.clone(), [two.one.path().to_owned(), two.two.path().to_owned()]);
    let (saw, seen) = std::sync::mpsc::sync_channel(100);
    two.disk.before_sync.set(move || {
        let on_disk: u64 = dirs.iter().map(|dir| disk_bytes(dir)).sum();
        saw.send((on_disk, other.used_bytes())).unwrap();
    });
    cache.pin(&uri(20)).unwrap();
    let (on_disk, used) = seen.recv().unwrap();
    assert!(on_disk <= used && used <= cache.limit_bytes(), "{on_disk} {used} {}", cache.limit_bytes());
    // Where nothing can go any more the pins can still change.
    cache.pin("s3://b").unwrap();
    cache.unpin("s3://b").unwrap();
}

#[test]
fn what_is_pinned_while_a_copy_is_dropped_stays() {
    let two = Two::new(10);
    let cache = Arc::new(two.open(10).unwrap());
    put(&cache, 1, 50, &["a"]).unwrap();
    put(&cache, 1, 50, &["more"]).unwrap();
    let other = cache.clone();
    two.disk.before_remove.set(move || {
        other.pin(&origin(1).object).unwrap();
    });
    assert!(!cache.copies().remove(origin(1).id), "one of its files is pinned");
    assert_eq!(cache.files(), 1);
}

#[test]
fn a_sound_file_that_took_the_name_of_a_damaged_one_stays() {
    let two = Two::new(11);
    let cache = two.open(10).unwrap();
    put(&cache, 1, 50, &["a"]).unwrap();
    drop(cache);
    let cache = two.open(10).unwrap();
    let path = cache.files.dirs.get(0).segment(&FileKey::new(origin(1).id, &names(&["a"])));
    let sound = fs::read(&path).unwrap();
    let mut damaged = sound.clone();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(&path, damaged).unwrap();
    let (from, to) = (two.one.path().join("sound"), path.clone());
    fs::write(&from, sound).unwrap();
    two.disk.before_read.set(move || fs::rename(from, to).unwrap());
    assert_eq!(cache.find(origin(1).id, &names(&["a"])).missing, ["a"], "it had begun to read the other");
    assert!(path.exists());
    assert_eq!(
        cache.find(origin(1).id, &names(&["a"])).parts[0].batch.columns().unwrap(),
        batch(1, 50, &["a"])
    );
    assert_eq!(cache.counters().corrupt.load(Ordering::Relaxed), 0);
}

/// As when a file is dropped while another node's copy of it is on its way.
#[test]
fn a_file_that_was_gone_and_is_back_stays() {
    let two = Two::new(12);
    let cache = two.open(10).unwrap();
    put(&cache, 1, 50, &["a"]).unwrap();
    drop(cache);
    let cache = two.open(10).unwrap();
    let path = cache.files.dirs.get(0).segment(&FileKey::new(origin(1).id, &names(&["a"])));
    let (sound, back) = (fs::read(&path).unwrap(), path.clone());
    fs::remove_file(&path).unwrap();
    two.disk.after_open.set(move || fs::write(back, sound).unwrap());
    assert_eq!(cache.find(origin(1).id, &names(&["a"])).missing, ["a"], "it was not there");
    assert!(path.exists());
    assert!(cache.find(origin(1).id, &names(&["a"])).missing.is_empty());
    assert_eq!(cache.counters().corrupt.load(Ordering::Relaxed), 0);
}

/// What happens when a directory is set aside after a file took its name there, and comes back before its
/// writer is done.
#[test]
fn a_file_that_is_indexed_before_its_writer_is_done_stays() {
    let two = Two::new(14);
    let cache = Arc::new(two.open(10).unwrap());
    put(&cache, 1, 50, &["a"]).unwrap();
    let (one, disk, other) = (two.one.path().to_owned(), two.disk.clone(), cache.clone());
    let back = Arc::new(AtomicU64::new(0));
    let seen = back.clone();
    fs::remove_dir_all(two.two.path()).unwrap();
    put(&cache, 2, 50, &["a"]).unwrap();
    assert_eq!(health(&cache), [Health::Up, Health::Away], "only one directory is left");
    two.disk.before_read.set(move || {
        disk.set(&one, Wrong::All(EIO));
        other.find(origin(1).id, &names(&["a"]));
        assert_eq!(health(&other)[0], Health::Away);
        disk.set(Path::new("/"), Wrong::Nothing);
        other.heal(later());
        seen.store(other.files(), Ordering::Relaxed);
    });
    put(&cache, 3, 50, &["a"]).unwrap();
    assert_eq!(back.load(Ordering::Relaxed), 3, "the file is among those that came back");
    assert_eq!((cache.files(), held(&cache)), (3, 3));
    assert_eq!(cache.counters().corrupt.load(Ordering::Relaxed), 0);
}

#[test]
fn large_blocks_are_counted_whether_the_disk_tells_of_them_or_not() {
    const LARGE: u64 = 64 << 10;
    for said in [BLOCK_BYTES, LARGE] {
        let two = Two::new(9);
        two.disk.blocks.store(LARGE, Ordering::Relaxed);
        two.disk.said_blocks.store(said, Ordering::Relaxed);
        let dirs = vec![two.one.path().to_owned()];
        let limit_bytes = empty_bytes() + 10 * LARGE;
        let settings = DiskCacheSettings {
            dirs,
            limit_bytes,
            raw_share: 0.25,
            maps_bytes: u64::MAX,
            kept_files: 4,
            start_patience: Duration::ZERO,
            disk: two.disk.clone(),
        };
        let cache = DiskCache::open(&settings, Arc::new(NoForecast)).unwrap();
        for n in 0..20 {
            put(&cache, n, 50, &["a"]);
            let on_disk = cache.files() * LARGE;
            assert!(on_disk <= cache.used_bytes(), "{on_disk} of {} bytes are counted", cache.used_bytes());
            if said == LARGE {
                assert!(cache.used_bytes() <= limit_bytes, "{} of {limit_bytes} bytes", cache.used_bytes());
            }
        }
        assert!((3..=10).contains(&cache.files()), "{} files", cache.files());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    /// Whatever fails whenever: no wrong data, the limit holds, nothing is left half-written, and it heals.
    #[test]
    fn faults_at_random_cost_only_hits(seed in any::<u64>(), share in 1u32..400, code in prop::sample::select(vec![EIO, EACCES, ENOSPC])) {
        let two = Two::new(seed);
        let cache = two.open(4).unwrap();
        two.disk.set(Path::new("/"), Wrong::Some(share, code));
        let mut now = Instant::now();
        for round in 0..60u128 {
            let n = (round * 7) % 16;
            let found = cache.find(origin(n).id, &names(&["a"]));
            for part in &found.parts {
                prop_assert_eq!(&part.batch.columns().unwrap(), &batch(n, 50, &["a"]));
            }
            if !found.missing.is_empty() {
                drop(put(&cache, n, 50, &["a"]));
            }
            now += Duration::from_secs(30);
            cache.heal(now);
        }
        two.disk.set(Path::new("/"), Wrong::Nothing);
        cache.heal(now + Duration::from_secs(300));
        prop_assert_eq!(health(&cache), vec![Health::Up, Health::Up]);
        drop(cache);
        let cache = two.open(4).unwrap();
        for n in 0..16 {
            for part in cache.find(origin(n).id, &names(&["a"])).parts {
                prop_assert_eq!(&part.batch.columns().unwrap(), &batch(n, 50, &["a"]));
            }
        }
        for dir in [&two.one, &two.two] {
            prop_assert_eq!(fs::read_dir(dir.path().join("v1/tmp")).unwrap().count(), 0);
            prop_assert!(disk_bytes(dir.path()) <= cache.limit_bytes() / 2);
        }
    }

    /// Killed anywhere between two operations, or in the middle of a write: the files left
    /// verify.
    #[test]
    fn a_kill_leaves_only_what_verifies(operation in 0u64..400) {
        let two = Two::new(0);
        let cache = two.open(4).unwrap();
        let begun = two.disk.operations.load(Ordering::Relaxed);
        two.disk.set(Path::new("/"), Wrong::From(begun + operation));
        for round in 0..30u128 {
            // A second file of the same segment, a replaced one, and evictions are among them.
            let n = (round * 7) % 12;
            drop(put(&cache, n, 50, &["a"]));
            drop(put(&cache, n, 50, &["more"]));
        }
        drop(cache);
        two.disk.set(Path::new("/"), Wrong::Nothing);
        let cache = two.open(4).unwrap();
        let corrupt = || cache.counters().corrupt.load(Ordering::Relaxed);
        prop_assert_eq!(corrupt(), 0, "what has its name is whole");
        for n in 0..12 {
            for column in ["a", "more"] {
                for part in cache.find(origin(n).id, &names(&[column])).parts {
                    prop_assert_eq!(&part.batch.columns().unwrap(), &batch(n, 50, &[column]));
                }
            }
        }
        prop_assert_eq!(corrupt(), 0);
        for dir in [&two.one, &two.two] {
            prop_assert_eq!(fs::read_dir(dir.path().join("v1/tmp")).unwrap().count(), 0);
            prop_assert!(disk_bytes(dir.path()) <= cache.limit_bytes() / 2);
        }
    }
}

/// Pins are a promise; segments and what lies beside them can be fetched again.
#[test]
fn what_must_survive_a_loss_of_power_is_on_the_medium_before_it_has_its_name() {
    let two = Two::new(9);
    let cache = two.open(10).unwrap();
    cache.sidecar("v1/notes").write("x", b"a note").unwrap();
    assert!(
        two.disk.unflushed.has(&two.one.path().join("v1/notes/x")),
        "a file that is not flushed is noticed"
    );
    for uri in ["s3://b/a", "s3://b/c"] {
        cache.pin(uri).unwrap();
        for dir in [two.one.path(), two.two.path()] {
            let pins = dir.join("v1/pins");
            assert!(pins.exists() && !two.disk.unflushed.has(&pins), "{}", pins.display());
        }
    }
    drop(cache);
    two.disk.unflushed.lose();
    let cache = two.open(10).unwrap();
    assert_eq!(cache.pinned().0, ["s3://b/a", "s3://b/c"]);
    assert_eq!(cache.sidecar("v1/notes").read("x"), None, "a name that is not flushed is lost");
}

#[test]
fn the_folders_that_are_made_for_pins_survive_a_loss_of_power_with_them() {
    let (temp, disk) = (tempfile::tempdir().unwrap(), Faulty::new(15));
    let dir = temp.path().join("new/cache");
    let settings = DiskCacheSettings { disk: disk.clone(), ..DiskCacheSettings::new(&dir, 1 << 20) };
    let open = || DiskCache::open(&settings, Arc::new(NoForecast)).unwrap();
    let cache = open();
    cache.pin("s3://b/a").unwrap();
    assert!(!disk.unflushed.has(&dir.join("v1/pins")));
    drop(cache);
    disk.unflushed.lose();
    assert_eq!(open().pinned().0, ["s3://b/a"]);
}
