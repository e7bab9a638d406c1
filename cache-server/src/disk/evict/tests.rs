//! Decisions as traces, without a disk: the files held, the one wanted, those that leave.

use super::*;
use crate::disk::file::RAW_COLUMN;
use crate::disk::prefixes::PrefixLimit;
use crate::disk::quota::Quotas;
use forebay_proto::manifest::Digest;
use std::collections::BTreeMap;
use std::time::Instant;

/// Segments are letters; those that are in no table are in no plan.
#[derive(Debug, Default)]
struct Table(Mutex<BTreeMap<char, u64>>);

impl Forecast for Table {
    fn next_uses(&self, ids: &[SegmentId]) -> Vec<NextUse> {
        let table = self.0.lock();
        let next =
            |id: &SegmentId| table.get(&letter(*id)).map_or(NextUse::Unplanned, |n| NextUse::Planned(*n));
        ids.iter().map(next).collect()
    }
}

fn id(letter: char) -> SegmentId {
    SegmentId(Digest(u128::from(u32::from(letter))))
}

fn letter(id: SegmentId) -> char {
    char::from_u32(id.0.0 as u32).unwrap_or('?')
}

/// Files of ten bytes, in directories that hold `each` of them.
struct Trace {
    evictor: Evictor,
    table: Arc<Table>,
    dirs: Vec<usize>,
    lines: Vec<String>,
}

impl Trace {
    fn new(dirs: usize, each: u64) -> Self {
        Self::with_raw_share(dirs, each, 0)
    }

    fn with_raw_share(dirs: usize, each: u64, raw_share_bytes: u64) -> Self {
        let mut index = Index::default();
        index.quotas = Quotas::new((0..dirs).map(|_| each * 10));
        let (index, table) = (Arc::new(Mutex::new(index)), Arc::new(Table::default()));
        let evictor = Evictor::new(index, table.clone(), Arc::default(), raw_share_bytes);
        Self { evictor, table, dirs: (0..dirs).collect(), lines: Vec::new() }
    }

    fn plan(&mut self, next_uses: &[(char, u64)]) {
        *self.table.0.lock() = next_uses.iter().copied().collect();
    }

    /// Writes a segment as the disk cache would, and notes what came of it.
    fn write(&mut self, new: char, admit: Admit, role: Role) {
        // Raw blocks are capitals.
        let raw = new.is_uppercase();
        let wanted = Wanted { id: id(new), raw, bytes: 10, admit, role };
        let leave = Mutex::new(String::new());
        let unlink = |_, key: &FileKey| {
            leave.lock().push(letter(key.id));
            true
        };
        loop {
            let broken = self.evictor.index.lock().prefixes.broken_by(&new.to_string(), 10);
            let Some(broken) = broken else { break };
            match self.evictor.make_room_under(broken, wanted, unlink) {
                Ok(()) => {}
                Err(Refusal::NotWorthIt) => return self.note(new, "not worth it"),
                Err(Refusal::NoRoom | Refusal::Busy) => return self.note(new, "no room"),
            }
        }
        let reservation = loop {
            match self.evictor.reserve(wanted, &self.dirs, unlink) {
                Ok(Some(reservation)) => break reservation,
                Ok(None) => {}
                Err(Refusal::NotWorthIt) => return self.note(new, "not worth it"),
                Err(Refusal::NoRoom | Refusal::Busy) => return self.note(new, "no room"),
            }
        };
        let how = match leave.into_inner() {
            leave if leave.is_empty() => "free".to_owned(),
            leave => format!("{leave} leaves"),
        };
        let key = FileKey::new(id(new), &[]);
        let columns = if raw { vec![RAW_COLUMN.to_owned()] } else { Vec::new() };
        let (columns, replica) = (columns.into(), role == Role::Replica);
        let entry = Entry { object: new.to_string().into(), columns, replica, ..Entry::default() };
        self.evictor.index.lock().insert(key, entry, reservation);
        self.note(new, &format!("{how}, in {}", reservation.dir));
    }

    fn note(&mut self, new: char, what: &str) {
        let index = self.evictor.index.lock();
        let mut held: Vec<char> = index.entries().map(|(key, _)| letter(key.id)).collect();
        held.sort_unstable();
        self.lines.push(format!("{new}: {what}: {}", held.into_iter().collect::<String>()));
    }

    fn writes(&mut self, new: &str) {
        new.chars().for_each(|new| self.write(new, Admit::IfWorthIt, Role::Primary));
    }
}

/// The example at the head of the module.
#[test]
fn the_file_needed_last_leaves() {
    let mut trace = Trace::new(1, 4);
    trace.plan(&[('a', 10), ('b', 500), ('c', 900), ('d', 700), ('e', 300)]);
    trace.writes("abcxdecy");
    trace.evictor.index.lock().set_replica(&FileKey::new(id('e'), &[]), true);
    trace.evictor.forget_victims();
    trace.writes("c");
    trace.write('y', Admit::Always, Role::Primary);
    trace.write('z', Admit::IfFree, Role::Replica);
    let expected = [
        "a: free, in 0: a",
        "b: free, in 0: ab",
        "c: free, in 0: abc",
        "x: free, in 0: abcx",
        "d: x leaves, in 0: abcd",
        "e: c leaves, in 0: abde",
        "c: not worth it: abde",
        "y: not worth it: abde",
        "c: e leaves, in 0: abcd",
        "y: c leaves, in 0: abdy",
        "z: not worth it: abdy",
    ];
    assert_eq!(trace.lines, expected);
}

#[test]
fn unplanned_files_leave_by_recency_and_pinned_ones_never() {
    let mut trace = Trace::new(1, 3);
    trace.writes("abc");
    let key = |letter| FileKey::new(id(letter), &[]);
    trace.evictor.index.lock().touch(&key('a'));
    trace.writes("d");
    trace.evictor.index.lock().set_pinned(|object| object == "c");
    trace.writes("efg");
    trace.evictor.index.lock().set_pinned(|_| true);
    trace.writes("h");
    let expected = [
        "a: free, in 0: a",
        "b: free, in 0: ab",
        "c: free, in 0: abc",
        "d: b leaves, in 0: acd",
        "e: a leaves, in 0: cde",
        "f: d leaves, in 0: cef",
        "g: e leaves, in 0: cfg",
        "h: no room: cfg",
    ];
    assert_eq!(trace.lines, expected);
}

#[test]
fn raw_blocks_keep_their_share_and_use_what_is_free_beyond_it() {
    let plan = [('a', 10), ('b', 500), ('c', 900), ('d', 700), ('e', 300)];
    let mut trace = Trace::with_raw_share(1, 4, 20);
    trace.plan(&plan);
    trace.writes("abcdXYZcey");
    let expected = [
        "a: free, in 0: a",
        "b: free, in 0: ab",
        "c: free, in 0: abc",
        "d: free, in 0: abcd",
        "X: c leaves, in 0: Xabd",
        "Y: d leaves, in 0: XYab",
        "Z: X leaves, in 0: YZab",
        "c: not worth it: YZab",
        "e: b leaves, in 0: YZae",
        "y: not worth it: YZae",
    ];
    assert_eq!(trace.lines, expected);
    let mut trace = Trace::with_raw_share(1, 4, 10);
    trace.plan(&plan);
    trace.writes("XYZWabcd");
    let expected = [
        "X: free, in 0: X",
        "Y: free, in 0: XY",
        "Z: free, in 0: XYZ",
        "W: free, in 0: WXYZ",
        "a: X leaves, in 0: WYZa",
        "b: Y leaves, in 0: WZab",
        "c: Z leaves, in 0: Wabc",
        "d: c leaves, in 0: Wabd",
    ];
    assert_eq!(trace.lines, expected);
}

#[test]
fn the_share_of_raw_blocks_is_of_what_the_disk_has() {
    let mut trace = Trace::with_raw_share(1, 10, 50);
    trace.writes("XYZ");
    // The disk is full of them.
    trace.evictor.index.lock().quotas.lower(0, None);
    trace.writes("ab");
    let expected = [
        "X: free, in 0: X",
        "Y: free, in 0: XY",
        "Z: free, in 0: XYZ",
        "a: X leaves, in 0: YZa",
        "b: Y leaves, in 0: Zab",
    ];
    assert_eq!(trace.lines, expected);
}

#[test]
fn of_two_directories_the_one_whose_victim_is_needed_later_takes_the_file() {
    let mut trace = Trace::new(2, 1);
    trace.plan(&[('a', 100), ('b', 200), ('c', 50), ('d', 60)]);
    trace.writes("abcd");
    // A plan that is announced brings victims nearer: they are looked for again.
    trace.plan(&[('c', 50), ('d', 60), ('e', 55)]);
    trace.writes("e");
    trace.dirs = vec![0];
    trace.plan(&[]);
    trace.writes("f");
    let expected = [
        "a: free, in 0: a",
        "b: free, in 1: ab",
        "c: b leaves, in 1: ac",
        "d: a leaves, in 0: cd",
        "e: d leaves, in 0: ce",
        "f: e leaves, in 0: cf",
    ];
    assert_eq!(trace.lines, expected);
}

#[test]
fn of_a_prefix_at_its_limit_its_own_files_leave() {
    let mut trace = Trace::new(2, 4);
    trace.plan(&[('a', 10), ('b', 500), ('c', 900), ('d', 700), ('e', 300)]);
    let limit = |prefixes: &[&str], files: u64| PrefixLimit {
        prefixes: prefixes.iter().map(|prefix| (*prefix).to_owned()).collect(),
        limit_bytes: 10 * files,
    };
    let limits = vec![limit(&["a", "c", "d", "e", "y"], 2), limit(&["z"], 0)];
    trace.evictor.index.lock().set_prefix_limits(limits);
    trace.writes("bxacdecyz");
    trace.write('y', Admit::Always, Role::Primary);
    trace.write('c', Admit::IfFree, Role::Primary);
    trace.evictor.index.lock().set_pinned(|object| object != "x");
    trace.write('d', Admit::Always, Role::Primary);
    let expected = [
        "b: free, in 0: b",
        "x: free, in 1: bx",
        "a: free, in 0: abx",
        "c: free, in 1: abcx",
        "d: c leaves, in 1: abdx",
        "e: d leaves, in 1: abex",
        "c: not worth it: abex",
        "y: not worth it: abex",
        "z: no room: abex",
        "y: e leaves, in 1: abxy",
        "c: not worth it: abxy",
        "d: no room: abxy",
    ];
    assert_eq!(trace.lines, expected);
}

/// `cargo test --release -p forebay-server --lib how_ -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn how_long_a_scan_for_victims_takes() {
    #[derive(Debug)]
    struct Far;
    impl Forecast for Far {
        fn next_uses(&self, ids: &[SegmentId]) -> Vec<NextUse> {
            ids.iter().map(|id| NextUse::Planned((id.0.0 >> 64) as u64)).collect()
        }
    }
    let index = Arc::new(Mutex::new(Index::new([1 << 50])));
    let columns: Arc<[String]> = Arc::from(["a".to_owned()]);
    for n in 0..100_000u64 {
        let id = SegmentId(Digest(u128::from(forebay_proto::hash::xxh3_64(&n.to_le_bytes())) << 64));
        let mut index = index.lock();
        let reservation = index.quotas.reserve(0, 32 << 20);
        let object = "s3://bucket/a/dataset/with/a/path/part-00000.parquet".into();
        let columns = columns.clone();
        let entry = Entry { object, columns, ..Entry::default() };
        index.insert(FileKey::new(id, &entry.columns.clone()), entry, reservation);
    }
    let evictor = Evictor::new(index, Arc::new(Far), Arc::default(), 0);
    let mut queue = Queue::default();
    let begun = Instant::now();
    (0..10).for_each(|_| evictor.scan(&mut queue, false));
    println!("a scan for victims among 100,000: {:.1} ms", begun.elapsed().as_secs_f64() * 100.0);
}
