//! Directories whose disks do not answer: when the cache is opened, while they are tried again, and between.

use super::faulty::{EIO, ENOSPC, Two, Wrong};
use super::*;
use std::io;
use std::thread;

const PATIENCE: Duration = Duration::from_secs(30);

fn wait_until(what: &str, mut happens: impl FnMut() -> bool) {
    let began = Instant::now();
    while !happens() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Two directories with twelve files, six in each.
fn filled(seed: u64) -> (Two, DiskCache) {
    let two = Two::new(seed);
    let cache = two.open(10).unwrap();
    (0..12).for_each(|n| drop(put(&cache, n, 50, &["a"]).unwrap()));
    (two, cache)
}

/// Has a directory set aside in which something waits, without the time that it takes to be sure.
fn until_hung(two: &Two, cache: &DiskCache) {
    let mut now = Instant::now();
    wait_until("something waits", || two.disk.hanging.waiting() > 0);
    wait_until("it is noticed", || {
        now += Duration::from_secs(1);
        cache.set_hung_aside(now) > 0
    });
}

/// Has directories tried until all work.
fn until_up(cache: &DiskCache) {
    let mut now = later();
    wait_until("all work", || {
        now += Duration::from_secs(100);
        drop(cache.try_again(now));
        health(cache) == [Health::Up, Health::Up]
    });
}

#[test]
fn a_directory_that_hangs_at_the_start_is_set_aside_and_taken_back_when_it_answers() {
    let (two, cache) = filled(20);
    cache.pin("s3://b/d0").unwrap();
    drop(cache);
    two.disk.hanging.set(&[two.one.path()]);
    let began = Instant::now();
    let cache = two.open(10).unwrap();
    assert!(began.elapsed() < PATIENCE);
    assert_eq!((health(&cache), held(&cache)), (vec![Health::Away, Health::Up], 6));
    assert_eq!(cache.pinned().0, ["s3://b/d0"], "the other directory has the list too");
    assert_eq!(cache.counters().dir_faults.load(Ordering::Relaxed), 1);
    let waiting = two.disk.hanging.waiting();
    for _ in 0..3 {
        assert!(cache.try_again(later()).is_empty());
    }
    assert_eq!(two.disk.hanging.waiting(), waiting, "one thread is enough, and one for the pulse");
    assert!(waiting <= 2, "{waiting} threads");
    two.disk.hanging.set(&[]);
    until_up(&cache);
    assert_eq!((held(&cache), cache.files()), (12, 12));
}

#[test]
fn a_directory_that_begins_to_hang_while_it_is_opened_comes_back_by_itself() {
    let (two, cache) = filled(21);
    drop(cache);
    let (disk, one) = (two.disk.clone(), two.one.path().to_owned());
    // The probe of one of them, after the pins were read.
    two.disk.before_sync.set(move || disk.hanging.set(&[one.as_path()]));
    let cache = two.open(10).unwrap();
    assert_eq!((health(&cache), held(&cache)), (vec![Health::Away, Health::Up], 6));
    two.disk.hanging.set(&[]);
    wait_until("both work", || health(&cache) == [Health::Up, Health::Up]);
    assert_eq!((held(&cache), cache.files()), (12, 12));
}

#[test]
fn where_all_directories_hang_the_start_fails_and_names_them() {
    let (two, cache) = filled(22);
    drop(cache);
    let dirs = [two.one.path(), two.two.path()];
    two.disk.hanging.set(&dirs);
    let began = Instant::now();
    let e = two.open(10).unwrap_err();
    assert!(began.elapsed() < PATIENCE);
    let names_all = dirs.iter().all(|dir| e.message.contains(&dir.display().to_string()));
    assert!(names_all && e.message.contains("does not answer") && e.message.contains("--cache-dir"), "{e}");
    two.disk.hanging.set(&[]);
}

#[test]
fn a_directory_that_hangs_while_it_is_tried_again_keeps_nothing_else_from_going_on() {
    let (two, cache) = filled(23);
    for dir in [two.one.path(), two.two.path()] {
        two.disk.set(dir, Wrong::All(EIO));
        held(&cache);
    }
    assert_eq!(health(&cache), [Health::Away, Health::Away]);
    two.disk.set(Path::new("/"), Wrong::Nothing);
    two.disk.hanging.set(&[two.one.path()]);
    let (began, attempts) = (Instant::now(), cache.try_again(later()));
    assert!(began.elapsed() < PATIENCE && attempts.len() == 2);
    wait_until("the other works", || health(&cache) == [Health::Away, Health::Up]);
    assert_eq!(held(&cache), 6);
    assert!(put(&cache, 40, 50, &["a"]).is_some());
    wait_until("it hangs", || two.disk.hanging.waiting() > 0);
    assert!(cache.files.dirs.get(0).state_unless_stuck().is_none(), "nobody waits for it for ever");
    assert!(cache.try_again(later() + PATIENCE).is_empty(), "one thread is enough");
    two.disk.hanging.set(&[]);
    wait_until("both work", || health(&cache) == [Health::Up, Health::Up]);
    assert_eq!(held(&cache), 13);
}

#[test]
fn a_full_directory_that_hangs_while_it_is_probed_comes_back_with_what_it_holds() {
    let (two, cache) = filled(24);
    two.disk.set(two.two.path(), Wrong::Writes(ENOSPC));
    (12..14).for_each(|n| drop(put(&cache, n, 50, &["a"]).unwrap()));
    assert_eq!((health(&cache), held(&cache)), (vec![Health::Up, Health::Full], 14));
    two.disk.set(Path::new("/"), Wrong::Nothing);
    two.disk.hanging.set(&[two.two.path()]);
    let attempts = cache.try_again(later());
    until_hung(&two, &cache);
    assert_eq!((health(&cache), cache.dirs()[1].used_bytes), (vec![Health::Up, Health::Away], 0));
    two.disk.hanging.set(&[]);
    assert!(attempts.len() == 1 && attempts[0].has_ended(PATIENCE));
    assert_eq!((health(&cache), held(&cache)), (vec![Health::Up, Health::Up], 14));
    let (on_disk, used) = (disk_bytes(two.two.path()), cache.dirs()[1].used_bytes);
    assert!(on_disk <= used, "{on_disk} {used}");
}

#[test]
fn a_probe_that_finds_no_room_in_the_end_leaves_a_directory_away_that_hung() {
    let (two, cache) = filled(25);
    two.disk.hanging.set(&[two.one.path()]);
    thread::scope(|scope| {
        let fault = || cache.files.fault(0, &io::Error::from_raw_os_error(EIO), None);
        let fault = scope.spawn(fault);
        until_hung(&two, &cache);
        two.disk.set(two.one.path(), Wrong::Writes(ENOSPC));
        two.disk.hanging.set(&[]);
        fault.join().unwrap();
    });
    assert_eq!(health(&cache), [Health::Away, Health::Up]);
    two.disk.set(Path::new("/"), Wrong::Nothing);
    until_up(&cache);
    assert_eq!((held(&cache), cache.files()), (12, 12));
}
