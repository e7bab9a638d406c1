//! Segment files damaged from outside while the disk cache runs: what the next reader gets, what one under
//! way gets, and the scrub.

use super::faulty::{Two, Wrong};
use super::*;
use arrow::array::{AsArray, types::Int64Type};
use forebay_dataset::ReadySegment;
use std::os::unix::fs::FileExt;

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }
}

fn path(cache: &DiskCache, n: u128) -> PathBuf {
    cache.files.dirs.get(0).segment(&FileKey::new(origin(n).id, &names(&["a"])))
}

/// Flips a bit or cuts a file, in place; not in the zeros between header and body, which carry nothing.
fn damage(path: &Path, dice: &mut Dice) -> String {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let length = file.metadata().unwrap().len();
    if dice.below(3) == 0 {
        let cut = dice.below(length);
        file.set_len(cut).unwrap();
        return format!("cut to {cut} of {length}");
    }
    let mut lengths = [0; 8];
    file.read_exact_at(&mut lengths, 8).unwrap();
    let header_end = 24 + u64::from(u32::from_le_bytes(lengths[..4].try_into().unwrap()));
    let body = u64::from(u32::from_le_bytes(lengths[4..].try_into().unwrap()));
    let place = dice.below(header_end + length - body);
    let at = if place < header_end { place } else { place - header_end + body };
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    byte[0] ^= 1 << dice.below(8);
    file.write_all_at(&byte, at).unwrap();
    format!("a flipped bit in byte {at} of {length}")
}

#[test]
fn a_thousand_damages_in_a_running_store_are_all_found() {
    let (dir, seed) = (tempfile::tempdir().unwrap(), 42);
    let cache = open(dir.path(), 8 << 20).unwrap();
    let mut dice = Dice(seed);
    (0..8).for_each(|n| drop(put(&cache, n, 5000, &["a"]).unwrap()));
    for round in 1..=1000 {
        let n = u128::from(dice.below(8));
        // Mapped and checked; sometimes held by a reader all along.
        let mut reader = cache.find(origin(n).id, &names(&["a"])).parts;
        assert!(reader[0].verify());
        if dice.below(2) == 0 {
            reader.clear();
        }
        let what = damage(&path(&cache, n), &mut dice);
        let what = format!("{what}; seed {seed}, round {round}");
        for ready in &reader {
            // Reading what was cut off must not end the process. What was read does not count.
            let sum: i64 = ready
                .batch
                .columns()
                .unwrap()
                .column(0)
                .as_primitive::<Int64Type>()
                .values()
                .iter()
                .fold(0, |a, b| a ^ b);
            std::hint::black_box(sum);
            assert!(!ready.verify(), "{what}");
        }
        assert!(cache.find(origin(n).id, &names(&["a"])).parts.is_empty(), "{what}");
        assert_eq!(cache.counters().corrupt.load(Ordering::Relaxed), round, "{what}");
        reader.iter().for_each(|ready| assert!(!ready.verify(), "{what}"));
        drop(put(&cache, n, 5000, &["a"]).unwrap());
        reader.iter().for_each(|ready| assert!(!ready.verify(), "{what}, and filled again"));
    }
    for n in 0..8 {
        assert_eq!(
            cache.find(origin(n).id, &names(&["a"])).parts[0].batch.columns().unwrap(),
            batch(n, 5000, &["a"])
        );
    }
}

#[test]
fn what_cannot_be_opened_now_is_not_damaged() {
    const EMFILE: i32 = 24;
    let two = Two::new(5);
    let cache = two.open(10).unwrap();
    (0..4).for_each(|n| drop(put(&cache, n, 50, &["a"]).unwrap()));
    let file = path(&cache, (0..4).find(|&n| path(&cache, n).exists()).unwrap());
    drop(cache);
    two.disk.set(&file, Wrong::All(EMFILE));
    let cache = two.open(10).unwrap();
    assert_eq!(held(&cache), 2, "its directory is set aside");
    two.disk.set(&file, Wrong::Nothing);
    cache.heal(later());
    assert_eq!((held(&cache), cache.counters().corrupt.load(Ordering::Relaxed)), (4, 0));
}

#[test]
fn a_file_that_was_only_touched_is_checked_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), 8 << 20).unwrap();
    put(&cache, 1, 500, &["a"]).unwrap();
    let held = cache.find(origin(1).id, &names(&["a"])).parts.remove(0);
    let file = fs::OpenOptions::new().append(true).open(path(&cache, 1)).unwrap();
    file.set_times(fs::FileTimes::new().set_modified(std::time::SystemTime::UNIX_EPOCH)).unwrap();
    assert!(!held.verify(), "who read it meanwhile reads again");
    let again = cache.find(origin(1).id, &names(&["a"])).parts;
    assert!(again[0].verify());
    assert_eq!((&again[0].batch.columns().unwrap(), cache.files()), (&batch(1, 500, &["a"]), 1));
    let in_memory = ReadySegment::in_memory(Arc::new(batch(1, 500, &["a"]).into()), None);
    assert!(in_memory.verify(), "what lies in memory alone");
}

#[test]
fn the_scrub_finds_what_nobody_reads() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), 32 << 20).unwrap();
    // One and a half pieces each.
    (0..8).for_each(|n| drop(put(&cache, n, 50_000, &["a"]).unwrap()));
    let round = |mut meanwhile: Box<dyn FnMut()>| {
        let mut all = 0;
        cache.scrub(|read| {
            meanwhile();
            all += read;
            true
        });
        all
    };
    let all: u64 = (0..8).map(|n| fs::metadata(path(&cache, n)).unwrap().len()).sum();
    assert_eq!((round(Box::new(|| ())), cache.counters().corrupt.load(Ordering::Relaxed)), (all, 0));
    let mut dice = Dice(7);
    [1, 4, 5].iter().for_each(|&n| drop(damage(&path(&cache, n), &mut dice)));
    // One is evicted since the round began, others are damaged.
    let (freed, mut is_first) = (&cache, true);
    round(Box::new(move || {
        if std::mem::take(&mut is_first) {
            freed.free(&origin(4).object);
        }
    }));
    let held: Vec<u128> = (0..8).filter(|&n| cache.holds(origin(n).id, &[])).collect();
    assert!(!held.contains(&1) && !held.contains(&5), "{held:?}");
    let found = cache.counters().corrupt.load(Ordering::Relaxed);
    assert!(found >= 2, "{found} found");
    assert!(held.iter().all(|&n| cache.find(origin(n).id, &names(&["a"])).missing.is_empty()));
    assert_eq!(cache.counters().corrupt.load(Ordering::Relaxed), found, "nothing that was right went");
}

#[test]
fn a_header_longer_than_the_first_read_is_read_whole() {
    let dir = tempfile::tempdir().unwrap();
    let columns: Vec<String> = (0..300).map(|i| format!("a_column_with_a_long_name_{i}")).collect();
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let cache = open(dir.path(), 32 << 20).unwrap();
    put(&cache, 1, 5, &columns).unwrap();
    drop(cache);
    let cache = open(dir.path(), 32 << 20).unwrap();
    assert_eq!(
        cache.find(origin(1).id, &names(&columns)).parts[0].batch.columns().unwrap(),
        batch(1, 5, &columns)
    );
}

/// `cargo test --release -p forebay-server --lib how_ -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn how_fast_the_index_is_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    let count = 20_000u64;
    let cache = open(dir.path(), 4 << 30).unwrap();
    for n in 0..u128::from(count) {
        // As ids are: spread.
        let id = u128::from(forebay_proto::hash::xxh3_64(&n.to_le_bytes()));
        drop(put(&cache, id << 64 >> 64, 5, &["a", "b"]));
    }
    drop(cache);
    let begun = Instant::now();
    let cache = open(dir.path(), 4 << 30).unwrap();
    let seconds = begun.elapsed().as_secs_f64();
    println!("{} segments in {seconds:.3} s: {:.0} a second", cache.files(), cache.files() as f64 / seconds);
    assert_eq!(cache.files(), count);
}
