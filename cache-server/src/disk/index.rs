//! The files that the disk cache holds, in memory: by name, by segment, by recency. It knows no disk and no
//! plans. A caller that takes a file out of the index unlinks it, and says so when that is done.

use super::file::{FileKey, is_raw};
use super::file_system::StampMark;
use super::holdings::{Holdings, Occurrence};
use super::map::Mapped;
use super::prefixes::{PrefixLimit, PrefixQuotas};
use super::quota::{Quotas, Reservation};
use forebay_dataset::source::is_under;
use forebay_proto::manifest::{DatasetId, SegmentId};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maps kept open at most: well under the kernel's limit on a process (65,530 by default). A file whose map
/// was dropped is opened again, but not checked again.
const MAPS_MAX: usize = 16 << 10;

/// How long files that could not be unlinked are left alone.
const STUCK_PAUSE: Duration = Duration::from_secs(10);

/// A file that the index knows. Its bytes, its directory, its kind and when it was used are set as it is
/// inserted. There may be millions.
#[derive(Debug, Default)]
pub struct Entry {
    /// URI of the object it was made from, shared with the object's other files.
    pub object: Arc<str>,
    /// Names of its columns.
    pub columns: Arc<[String]>,
    /// Bytes that it takes on the disk.
    pub bytes: u64,
    /// The number of its directory.
    pub(super) dir: u16,
    /// Which insertion it came by, to tell it from those of the same name just before and after it.
    pub(super) insertion: u16,
    /// When it was used last, by the index's clock.
    pub used: u64,
    /// Whether it may not be evicted.
    pub pinned: bool,
    /// Whether it leaves before all that are not.
    pub replica: bool,
    /// Whether it is a raw block.
    pub raw: bool,
    /// Its map, kept for the next reader.
    pub map: Option<Arc<Mapped>>,
    /// The file as it was when this process wrote it, or checked every byte of it last.
    pub checked: Option<StampMark>,
}

impl Entry {
    /// The directory that it lies in, by number.
    pub fn dir(&self) -> usize {
        self.dir as usize
    }

    /// What a later look is compared with: whether it is still this entry, and unchecked since.
    pub fn seen(&self) -> SeenEntry {
        SeenEntry { insertion: self.insertion, checked: self.checked }
    }

    /// Whether anybody reads it.
    pub fn is_in_use(&self) -> bool {
        self.map.as_ref().is_some_and(|m| Arc::strong_count(m) > 1 || m.is_in_use())
    }

    /// What it adds to the bytes that are pinned.
    fn pinned_bytes(&self) -> u64 {
        if self.pinned { self.bytes } else { 0 }
    }

    /// Whether it may leave: it is neither pinned nor being read.
    pub fn may_leave(&self) -> bool {
        !self.pinned && !self.is_in_use()
    }
}

/// An entry as somebody saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenEntry {
    insertion: u16,
    /// The file that was checked last.
    pub checked: Option<StampMark>,
}

/// A file that another one took the name of.
#[derive(Debug, Default)]
pub struct Replaced {
    /// Its map, to be dropped without the index's lock held.
    pub map: Option<Arc<Mapped>>,
    /// It is still there, in another directory.
    pub elsewhere: Option<Reservation>,
}

/// A file that was taken out of the index, and is to be unlinked.
#[derive(Debug)]
pub struct Taken {
    pub key: FileKey,
    /// Its bytes, which count as used until it is unlinked.
    pub reservation: Reservation,
    /// Its map, to be dropped without the index's lock held.
    pub map: Option<Arc<Mapped>>,
}

/// Raw blocks, in all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RawFiles {
    pub files: u64,
    /// Bytes that they take on the disk.
    pub bytes: u64,
}

/// The index. Every change of bytes in use happens under its lock.
#[derive(Debug, Default)]
pub struct Index {
    pub quotas: Quotas,
    pub prefixes: PrefixQuotas,
    pub holdings: Holdings,
    /// The files of a segment lie side by side. In boxes, as a third of a map's places are empty.
    entries: BTreeMap<FileKey, Box<Entry>>,
    /// Of how many segments there are files.
    segments: usize,
    pinned_bytes: u64,
    raw: RawFiles,
    /// Files being unlinked: nothing may take their names yet.
    going: HashSet<FileKey>,
    /// Files being written, each by one: their names may not be unlinked, which would remove the new file.
    writing: HashSet<FileKey>,
    /// Files that could not be unlinked, whose bytes stay reserved, and when those of each directory are
    /// tried again.
    stuck: Vec<(FileKey, Reservation)>,
    stuck_due: BTreeMap<usize, Instant>,
    clock: u64,
    /// The clock at the last scan for victims, and how often entries were new or used for the first time
    /// since a scan.
    scanned_at: u64,
    changes: u64,
    /// Maps that are kept, how many may be, and at how many the idle ones are dropped: at more while that
    /// many are being read.
    maps: usize,
    maps_max: usize,
    maps_bound: usize,
}

impl Index {
    /// An empty index of directories with these limits.
    pub fn new(limits: impl IntoIterator<Item = u64>) -> Self {
        let quotas = Quotas::new(limits);
        Self { quotas, maps_max: MAPS_MAX, maps_bound: MAPS_MAX, ..Self::default() }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Number of segments of which a file is held.
    pub fn segments(&self) -> usize {
        self.segments
    }

    /// The raw blocks among the files.
    pub fn raw(&self) -> RawFiles {
        self.raw
    }

    pub fn entries(&self) -> impl Iterator<Item = (&FileKey, &Entry)> {
        self.entries.iter().map(|(key, entry)| (key, &**entry))
    }

    pub fn get(&self, key: &FileKey) -> Option<&Entry> {
        self.entries.get(key).map(|entry| &**entry)
    }

    pub fn files_of(&self, id: SegmentId) -> Vec<FileKey> {
        self.entries.range(FileKey::all(id)).map(|(key, _)| *key).collect()
    }

    /// The files of objects under a URI.
    pub fn files_under(&self, uri: &str) -> Vec<FileKey> {
        self.entries.iter().filter(|(_, e)| is_under(&e.object, uri)).map(|(k, _)| *k).collect()
    }

    /// Whether the segment's files together hold all these columns; of no columns, whether there is any file.
    pub fn holds(&self, id: SegmentId, columns: &[String]) -> bool {
        let files = || self.entries.range(FileKey::all(id)).map(|(_, entry)| entry);
        files().next().is_some() && columns.iter().all(|column| files().any(|e| e.columns.contains(column)))
    }

    /// What all files that are pinned take on the disk.
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes
    }

    /// Says of every file whether it is pinned, by its object.
    pub fn set_pinned(&mut self, is_pinned: impl Fn(&str) -> bool) {
        self.pinned_bytes = 0;
        for entry in self.entries.values_mut() {
            entry.pinned = is_pinned(&entry.object);
            self.pinned_bytes += entry.pinned_bytes();
        }
    }

    /// Says how a segment occurs in a dataset whose segments are counted; `None`: it does so no more.
    pub fn count(&mut self, dataset: DatasetId, id: SegmentId, occurrence: Option<Occurrence>) {
        let is_held = self.holds(id, &[]);
        self.holdings.set(dataset, id, occurrence, is_held);
    }

    /// Says whether a file leaves before those that are not replicas.
    pub fn set_replica(&mut self, key: &FileKey, replica: bool) {
        if let Some(e) = self.entries.get_mut(key) {
            e.replica = replica;
        }
    }

    /// Other limits of prefixes from now on.
    pub fn set_prefix_limits(&mut self, limits: Vec<PrefixLimit>) {
        let held = self.entries.values().map(|entry| (&*entry.object, entry.bytes));
        self.prefixes.set(limits, held);
    }

    /// Marks a file as used now. Returns its entry.
    pub fn touch(&mut self, key: &FileKey) -> Option<&Entry> {
        let entry = self.entries.get_mut(key)?;
        self.changes += u64::from(entry.used <= self.scanned_at);
        self.clock += 1;
        entry.used = self.clock;
        Some(&**entry)
    }

    /// Notes that all entries are looked at for victims. Returns the changes so far.
    pub fn scanned(&mut self) -> u64 {
        self.scanned_at = self.clock;
        self.changes
    }

    /// How often entries were new, or used for the first time since a scan: between two scans each counts
    /// once, however often it is read.
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
        e.checked = Some(map.stat.stamp.mark());
        self.maps += usize::from(e.map.replace(map.clone()).is_none());
        map.clone()
    }

    /// Forgets a file's map, if it is still this one: the next reader opens the file again, and checks it.
    pub fn drop_map(&mut self, key: &FileKey, map: &Arc<Mapped>) {
        if let Some(e) = self.entries.get_mut(key)
            && e.map.take_if(|kept| Arc::ptr_eq(kept, map)).is_some()
        {
            e.checked = None;
            self.maps -= 1;
        }
    }

    /// Where there are too many maps: takes all of files that nobody reads, to be dropped without the index's
    /// lock held. One that is being read keeps its map: dropping it would free nothing, and the file would be
    /// taken for one that may be evicted.
    pub fn take_idle_maps(&mut self) -> Vec<Arc<Mapped>> {
        if self.maps <= self.maps_bound {
            return Vec::new();
        }
        let idle = self.entries.values_mut().filter(|e| !e.is_in_use());
        let gone: Vec<_> = idle.filter_map(|e| e.map.take()).collect();
        self.maps -= gone.len();
        self.maps_bound = self.maps_max.max(self.maps + self.maps / 16);
        gone
    }

    /// Adds a file; its bytes are those of the reservation. A file of the same name in the same directory is
    /// replaced; in another directory it is returned, still reserved, to be unlinked.
    pub fn insert(&mut self, key: FileKey, mut entry: Entry, reservation: Reservation) -> Replaced {
        if !self.quotas.is_valid(&reservation) {
            return Replaced::default();
        }
        let mut replaced = Replaced::default();
        if let Some(old) = self.forget(&key) {
            let theirs = self.quotas.in_use(old.dir(), old.bytes);
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
        self.maps += usize::from(entry.map.is_some());
        entry.used = self.clock;
        entry.bytes = reservation.bytes;
        entry.dir = reservation.dir as u16;
        entry.insertion = self.clock as u16;
        entry.raw = is_raw(&entry.columns);
        if entry.raw {
            self.raw.files += 1;
            self.raw.bytes += entry.bytes;
        }
        self.prefixes.add(&entry.object, entry.bytes);
        if !self.holds(key.id, &[]) {
            self.segments += 1;
            self.holdings.changed(key.id, true);
        }
        self.pinned_bytes += entry.pinned_bytes();
        self.entries.insert(key, Box::new(entry));
        replaced
    }

    /// Takes files of one directory out so that `bytes` can be written in their place. Returns them,
    /// and the bytes that are reserved besides theirs. `None`, and nothing has happened, if one of them is
    /// gone, pinned, in use or being written, or they are not enough any more.
    pub fn take(&mut self, dir: usize, keys: &[FileKey], bytes: u64) -> Option<(Reservation, Vec<Taken>)> {
        let mut theirs = 0;
        for key in keys {
            theirs += self.entries.get(key).filter(|e| e.dir() == dir && self.may_leave(key, e))?.bytes;
        }
        if self.quotas.of(dir).short_bytes(bytes) > theirs {
            return None;
        }
        let more = self.quotas.reserve(dir, bytes.saturating_sub(theirs));
        Some((more, keys.iter().filter_map(|key| self.take_one(key, |_| true)).collect()))
    }

    /// Takes a file out if its entry is `such`, unless it is being written again; its bytes stay reserved
    /// until it is unlinked.
    pub fn take_one(&mut self, key: &FileKey, such: impl FnOnce(&Entry) -> bool) -> Option<Taken> {
        self.entries.get(key).filter(|e| !self.writing.contains(key) && such(e))?;
        let entry = self.forget(key)?;
        self.going.insert(*key);
        Some(Taken { key: *key, reservation: self.quotas.in_use(entry.dir(), entry.bytes), map: entry.map })
    }

    /// Whether the file of an entry may leave: nobody reads, pins or writes it.
    pub fn may_leave(&self, key: &FileKey, entry: &Entry) -> bool {
        entry.may_leave() && !self.writing.contains(key)
    }

    /// Has a file of this name keep its place until [`Index::written`]; false while another writes it, or an
    /// old one is being removed.
    pub fn begin_writing(&mut self, key: &FileKey) -> bool {
        !self.going.contains(key) && self.writing.insert(*key)
    }

    /// The writer of this name is done, whether there is a file or not.
    pub fn written(&mut self, key: &FileKey) {
        self.writing.remove(key);
    }

    /// A file that was taken out is unlinked, or, if it could not be, its bytes stay reserved until it can.
    pub fn gone(&mut self, key: &FileKey, reservation: Reservation, is_unlinked: bool) {
        self.going.remove(key);
        match is_unlinked {
            true => self.quotas.release(reservation),
            false if self.quotas.is_valid(&reservation) => self.stuck.push((*key, reservation)),
            false => {}
        }
    }

    /// Takes the files of a directory that could not be unlinked, if it is time to try again; nothing may
    /// take their names meanwhile.
    pub fn take_stuck(&mut self, dir: usize, now: Instant) -> Vec<(FileKey, Reservation)> {
        if self.stuck_due.get(&dir).is_some_and(|due| now < *due) {
            return Vec::new();
        }
        let is_there = |(_, reservation): &mut (FileKey, Reservation)| reservation.dir == dir;
        let stuck: Vec<_> = self.stuck.extract_if(.., is_there).collect();
        if !stuck.is_empty() {
            self.stuck_due.insert(dir, now + STUCK_PAUSE);
        }
        self.going.extend(stuck.iter().map(|(key, _)| key));
        stuck
    }

    /// Forgets everything in a directory, reservations included.
    pub fn clear(&mut self, dir: usize) {
        let keys: Vec<_> = self.entries.iter().filter(|(_, e)| e.dir() == dir).map(|(k, _)| *k).collect();
        keys.iter().for_each(|key| drop(self.forget(key)));
        self.stuck.retain(|(_, reservation)| reservation.dir != dir);
        self.quotas.clear(dir);
    }

    fn forget(&mut self, key: &FileKey) -> Option<Entry> {
        let entry = *self.entries.remove(key)?;
        self.prefixes.remove(&entry.object, entry.bytes);
        self.maps -= usize::from(entry.map.is_some());
        if !self.holds(key.id, &[]) {
            self.segments -= 1;
            self.holdings.changed(key.id, false);
        }
        self.pinned_bytes -= entry.pinned_bytes();
        if entry.raw {
            self.raw.files -= 1;
            self.raw.bytes -= entry.bytes;
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests;
