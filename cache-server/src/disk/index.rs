//! The files that the disk cache holds, in memory: by name, by segment, by recency. It knows no disk and no
//! plans. A caller that takes a file out of the index unlinks it, and says so when that is done.

use super::file::FileKey;
use super::map::Mapped;
use super::quota::{Quotas, Reservation};
use forebay_dataset::source::is_under;
use forebay_proto::manifest::SegmentId;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maps kept open at most: well under the kernel's limit on a process (65,530 by default).
const MAPS_MAX: usize = 16 << 10;

/// How long files that could not be unlinked are left alone.
const STUCK_PAUSE: Duration = Duration::from_secs(10);

/// A file that the index knows.
#[derive(Debug)]
pub struct Entry {
    /// URI of the object it was made from.
    pub object: String,
    /// Names of its columns.
    pub columns: Arc<[String]>,
    /// Bytes that it takes on the disk.
    pub bytes: u64,
    pub dir: usize,
    /// When it was used last, by the index's clock.
    pub used: u64,
    /// Whether it may not be evicted.
    pub pinned: bool,
    /// Whether it leaves before all that are not.
    pub replica: bool,
    /// Its map, kept for the next reader.
    pub map: Option<Arc<Mapped>>,
}

impl Entry {
    /// Whether anybody reads it.
    pub fn is_in_use(&self) -> bool {
        self.map.as_ref().is_some_and(|m| Arc::strong_count(m) > 1 || m.is_in_use())
    }

    /// Whether it may leave: it is neither pinned nor being read.
    pub fn may_leave(&self) -> bool {
        !self.pinned && !self.is_in_use()
    }
}

/// A file that another one took the name of.
#[derive(Debug, Default)]
pub struct Replaced {
    /// Its map, to be dropped without the index's lock held.
    pub map: Option<Arc<Mapped>>,
    /// It is still there, in another directory.
    pub elsewhere: Option<Reservation>,
}

/// The index. Every change of bytes in use happens under its lock.
#[derive(Debug, Default)]
pub struct Index {
    pub quotas: Quotas,
    entries: HashMap<FileKey, Entry>,
    by_segment: HashMap<SegmentId, Vec<FileKey>>,
    /// Files being unlinked: nothing may take their names yet.
    going: HashSet<FileKey>,
    /// Files that could not be unlinked, whose bytes stay reserved, and when they are tried again.
    stuck: Vec<(FileKey, Reservation)>,
    stuck_due: Option<Instant>,
    clock: u64,
    /// The clock at the last scan for victims, and how many entries are new or were used for the first time
    /// since.
    scanned_at: u64,
    changes: u64,
    maps: MapCount,
}

impl Index {
    /// An empty index of directories with these limits.
    pub fn new(limits: impl IntoIterator<Item = u64>) -> Self {
        Self { quotas: Quotas::new(limits), ..Self::default() }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Number of segments of which a file is held.
    pub fn segments(&self) -> usize {
        self.by_segment.len()
    }

    pub fn entries(&self) -> impl Iterator<Item = (&FileKey, &Entry)> {
        self.entries.iter()
    }

    pub fn get(&self, key: &FileKey) -> Option<&Entry> {
        self.entries.get(key)
    }

    pub fn files_of(&self, id: SegmentId) -> Vec<FileKey> {
        self.by_segment.get(&id).cloned().unwrap_or_default()
    }

    /// The files of objects under a URI.
    pub fn files_under(&self, uri: &str) -> Vec<FileKey> {
        self.entries.iter().filter(|(_, e)| is_under(&e.object, uri)).map(|(k, _)| *k).collect()
    }

    /// Whether the segment's files together hold all these columns.
    pub fn holds(&self, id: SegmentId, columns: &[String]) -> bool {
        let Some(files) = self.by_segment.get(&id) else { return false };
        let has = |key, column| self.entries.get(key).is_some_and(|e: &Entry| e.columns.contains(column));
        columns.iter().all(|column| files.iter().any(|key| has(key, column)))
    }

    pub fn holds_any(&self, id: SegmentId) -> bool {
        self.by_segment.contains_key(&id)
    }

    /// Bytes of files that are pinned.
    pub fn pinned_bytes(&self) -> u64 {
        self.entries.values().filter(|e| e.pinned).map(|e| e.bytes).sum()
    }

    /// Says of every file whether it is pinned, by its object.
    pub fn set_pinned(&mut self, is_pinned: impl Fn(&str) -> bool) {
        self.entries.values_mut().for_each(|e| e.pinned = is_pinned(&e.object));
    }

    /// Says whether a file leaves before those that are not replicas.
    pub fn set_replica(&mut self, key: &FileKey, replica: bool) {
        if let Some(e) = self.entries.get_mut(key) {
            e.replica = replica;
        }
    }

    /// Marks a file as used now. Returns its directory and its map, where one is kept.
    pub fn touch(&mut self, key: &FileKey) -> Option<(usize, Option<Arc<Mapped>>)> {
        let entry = self.entries.get_mut(key)?;
        self.changes += u64::from(entry.used <= self.scanned_at);
        self.clock += 1;
        entry.used = self.clock;
        Some((entry.dir, entry.map.clone()))
    }

    /// Notes that all entries are looked at for victims.
    pub fn scanned(&mut self) {
        (self.scanned_at, self.changes) = (self.clock, 0);
    }

    /// Entries that are new or were used since the last scan: each counts once, however often it is read.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Keeps a file's map for the next reader. Returns the one that is to be read: where another reader has
    /// opened the same file that is its map, since the entry knows only one, and the file must not go while
    /// any is being read.
    pub fn keep_map(&mut self, key: &FileKey, map: &Arc<Mapped>) -> Arc<Mapped> {
        let Some(e) = self.entries.get_mut(key) else { return map.clone() };
        if let Some(kept) = e.map.as_ref().filter(|kept| kept.is_of(&map.stat.stamp)) {
            return kept.clone();
        }
        self.maps.kept += usize::from(e.map.replace(map.clone()).is_none());
        map.clone()
    }

    /// Forgets a file's map, if it is still this one: the next reader opens the file again.
    pub fn drop_map(&mut self, key: &FileKey, map: &Arc<Mapped>) {
        if let Some(e) = self.entries.get_mut(key)
            && e.map.as_ref().is_some_and(|m| Arc::ptr_eq(m, map))
        {
            e.map = None;
            self.maps.kept -= 1;
        }
    }

    /// Where there are too many maps: takes those used longest ago, to be dropped without the index's lock
    /// held.
    pub fn take_old_maps(&mut self) -> Vec<Arc<Mapped>> {
        match self.maps.is_over() {
            true => self.maps.take_old(&mut self.entries),
            false => Vec::new(),
        }
    }

    /// Adds a file; its bytes are those of the reservation. A file of the same name in the same directory is
    /// replaced; in another directory it is returned, still reserved, to be unlinked.
    pub fn insert(&mut self, key: FileKey, mut entry: Entry, reservation: Reservation) -> Replaced {
        if !self.quotas.is_valid(&reservation) {
            return Replaced::default();
        }
        let mut replaced = Replaced::default();
        if let Some(old) = self.forget(&key) {
            let theirs = self.quotas.in_use(old.dir, old.bytes);
            match theirs.dir == reservation.dir {
                true => self.quotas.release(theirs),
                false => {
                    self.going.insert(key);
                    replaced.elsewhere = Some(theirs);
                }
            }
            replaced.map = old.map;
        }
        // What could not be unlinked was replaced by its successor.
        let is_this = |(k, r): &mut (FileKey, Reservation)| *k == key && r.dir == reservation.dir;
        let unstuck: Vec<_> = self.stuck.extract_if(.., is_this).collect();
        unstuck.into_iter().for_each(|(_, theirs)| self.quotas.release(theirs));
        self.changes += 1;
        self.clock += 1;
        self.maps.kept += usize::from(entry.map.is_some());
        entry.used = self.clock;
        entry.bytes = reservation.bytes;
        entry.dir = reservation.dir;
        self.by_segment.entry(key.id).or_default().push(key);
        self.entries.insert(key, entry);
        replaced
    }

    /// Takes files of one directory out so that `bytes` can be written in their place. Returns their bytes,
    /// or as many as are wanted, reserved, and their entries, whose maps are to be dropped without the
    /// index's lock held. `None`, and nothing has happened, if one of them is gone, pinned or in use, or they
    /// are not enough any more.
    pub fn take(&mut self, dir: usize, keys: &[FileKey], bytes: u64) -> Option<(Reservation, Vec<Entry>)> {
        let mut theirs = 0;
        for key in keys {
            theirs += self.entries.get(key).filter(|e| e.dir == dir && e.may_leave())?.bytes;
        }
        if self.quotas.of(dir).short_bytes(bytes) > theirs {
            return None;
        }
        let entries = keys.iter().filter_map(|key| self.forget(key)).collect();
        self.going.extend(keys);
        self.quotas.reserve(dir, bytes.saturating_sub(theirs));
        Some((self.quotas.in_use(dir, theirs.max(bytes)), entries))
    }

    /// Takes a file out if its entry is `such`; its bytes stay reserved until it is unlinked.
    pub fn take_one(
        &mut self,
        key: &FileKey,
        such: impl FnOnce(&Entry) -> bool,
    ) -> Option<(Reservation, Entry)> {
        self.entries.get(key).filter(|e| such(e))?;
        let e = self.forget(key)?;
        self.going.insert(*key);
        Some((self.quotas.in_use(e.dir, e.bytes), e))
    }

    /// Whether a file of this name is being removed.
    pub fn is_going(&self, key: &FileKey) -> bool {
        self.going.contains(key)
    }

    /// A file that was taken out is unlinked, or, if it could not be, its bytes stay reserved.
    pub fn gone(&mut self, key: &FileKey, reservation: Reservation, is_unlinked: bool) {
        self.going.remove(key);
        match is_unlinked {
            true => self.quotas.release(reservation),
            false if self.quotas.is_valid(&reservation) => self.stuck.push((*key, reservation)),
            false => {}
        }
    }

    /// Victims that were taken out together are unlinked, but for those that are `stuck`. Returns `bytes`
    /// reserved in their place; `None` if some are stuck: what those take stays reserved until they can be
    /// unlinked.
    pub fn victims_gone(
        &mut self,
        keys: &[FileKey],
        stuck: &[(FileKey, u64)],
        mut reservation: Reservation,
        bytes: u64,
    ) -> Option<Reservation> {
        self.going.retain(|key| !keys.contains(key));
        if stuck.is_empty() {
            self.quotas.resize(&mut reservation, bytes);
            return Some(reservation);
        }
        self.quotas.resize(&mut reservation, stuck.iter().map(|(_, bytes)| bytes).sum());
        if self.quotas.is_valid(&reservation) {
            self.stuck.extend(stuck.iter().map(|(key, bytes)| (*key, reservation.part(*bytes))));
        }
        None
    }

    /// Takes the files that could not be unlinked, if it is time to try again; nothing may take their names
    /// meanwhile.
    pub fn take_stuck(&mut self, now: Instant) -> Vec<(FileKey, Reservation)> {
        if self.stuck.is_empty() || self.stuck_due.is_some_and(|due| now < due) {
            return Vec::new();
        }
        self.stuck_due = Some(now + STUCK_PAUSE);
        let stuck = std::mem::take(&mut self.stuck);
        self.going.extend(stuck.iter().map(|(key, _)| key));
        stuck
    }

    /// Forgets everything in a directory, reservations included.
    pub fn clear(&mut self, dir: usize) {
        let keys: Vec<_> = self.entries.iter().filter(|(_, e)| e.dir == dir).map(|(k, _)| *k).collect();
        keys.iter().for_each(|key| drop(self.forget(key)));
        self.stuck.retain(|(_, reservation)| reservation.dir != dir);
        self.quotas.clear(dir);
    }

    fn forget(&mut self, key: &FileKey) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        self.maps.kept -= usize::from(entry.map.is_some());
        if let Some(files) = self.by_segment.get_mut(&key.id) {
            files.retain(|k| k != key);
            if files.is_empty() {
                self.by_segment.remove(&key.id);
            }
        }
        Some(entry)
    }
}

/// How many maps are kept, and how many may be.
#[derive(Debug)]
struct MapCount {
    kept: usize,
    kept_max: usize,
    /// At how many the next are dropped: more than may be kept while that many are being read.
    bound: usize,
}

impl Default for MapCount {
    fn default() -> Self {
        Self { kept: 0, kept_max: MAPS_MAX, bound: MAPS_MAX }
    }
}

impl MapCount {
    fn is_over(&self) -> bool {
        self.kept > self.bound
    }

    /// Takes those used longest ago, a sixteenth of all. A file that is being read keeps its map: dropping it
    /// would free nothing, and the file would be taken for one that may be evicted.
    fn take_old(&mut self, entries: &mut HashMap<FileKey, Entry>) -> Vec<Arc<Mapped>> {
        let idle = |e: &&mut Entry| e.map.is_some() && !e.is_in_use();
        let mut idle: Vec<&mut Entry> = entries.values_mut().filter(idle).collect();
        let (over, in_use) = (self.kept - self.kept_max, self.kept - idle.len());
        let count = (over + self.kept_max / 16).min(idle.len());
        if count < idle.len() {
            idle.select_nth_unstable_by_key(count, |e| e.used);
        }
        let gone: Vec<_> = idle.into_iter().take(count).filter_map(|e| e.map.take()).collect();
        self.kept -= gone.len();
        self.bound = self.kept_max.max(in_use + in_use / 16);
        gone
    }
}

#[cfg(test)]
mod tests;
