//! What the disk cache holds, in memory: files by segment, bytes in use by directory, recency, kept maps.

use super::map::Mapped;
use super::pins;
use forebay_dataset::source::is_under;
use forebay_proto::manifest::SegmentId;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::Xxh3;

/// Maps kept open at most: well under the kernel's limit on a process (65,530 by default).
const MAPS_MAX: usize = 16 << 10;

/// How long files that could not be unlinked are left alone.
const STUCK_PAUSE: Duration = Duration::from_secs(10);

/// A file: some columns of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileKey {
    /// The segment.
    pub id: SegmentId,
    columns: u64,
}

impl FileKey {
    /// The file that holds these columns of a segment.
    pub fn new(id: SegmentId, columns: &[String]) -> Self {
        let mut h = Xxh3::new();
        for c in columns {
            h.update(&(c.len() as u64).to_le_bytes());
            h.update(c.as_bytes());
        }
        Self { id, columns: h.digest() }
    }

    /// The file's name: both in hex.
    pub fn file_name(&self) -> String {
        format!("{}.{:016x}", self.id, self.columns)
    }
}

/// A file that the index knows.
#[derive(Debug)]
pub struct Entry {
    /// URI of the object it was made from.
    pub object: String,
    /// Names of its columns.
    pub columns: Arc<[String]>,
    /// Bytes that it takes on the disk.
    pub bytes: u64,
    /// Its directory.
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
}

/// The books of a directory.
#[derive(Debug, Default)]
pub struct Quota {
    /// Bytes that it may use.
    pub limit_bytes: u64,
    /// Bytes in use: files, those being written and those being removed, folders.
    pub used_bytes: u64,
    /// Bytes of the folders that files go to, as last seen.
    folders: HashMap<String, u64>,
    /// Counts how often it was set aside: what was booked before is void.
    era: u64,
}

/// Bytes booked in a directory for a file to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    /// The directory.
    pub dir: usize,
    /// How many.
    pub bytes: u64,
    era: u64,
}

/// A file that another one took the name of.
#[derive(Debug, Default)]
pub struct Replaced {
    /// Its map, to be let go without the index's lock held.
    pub map: Option<Arc<Mapped>>,
    /// It is still there, in another directory.
    pub elsewhere: Option<Reservation>,
}

impl Reservation {
    /// So many bytes of it.
    pub fn part(self, bytes: u64) -> Self {
        Self { bytes, ..self }
    }
}

/// The index. Every change of bytes in use happens here.
#[derive(Debug, Default)]
pub struct Index {
    entries: HashMap<FileKey, Entry>,
    by_segment: HashMap<SegmentId, Vec<FileKey>>,
    /// Files being unlinked: nothing may take their names yet.
    going: HashSet<FileKey>,
    /// Files that could not be unlinked, whose bytes stay booked, and when they are tried again.
    stuck: Vec<(FileKey, Reservation)>,
    stuck_due: Option<Instant>,
    quotas: Vec<Quota>,
    /// URIs whose objects' files stay.
    pub pins: pins::Pins,
    clock: u64,
    /// The clock at the last scan for victims, and how many entries are new or were used for the first time
    /// since.
    scanned_at: u64,
    changes: u64,
    maps: usize,
    /// Maps that may be kept, and how many there are when those used longest ago are dropped next: more while
    /// so many are being read.
    maps_max: usize,
    maps_bound: usize,
}

impl Index {
    /// An empty index of directories with these limits.
    pub fn new(limits: impl IntoIterator<Item = u64>) -> Self {
        let quotas =
            limits.into_iter().map(|limit_bytes| Quota { limit_bytes, ..Quota::default() }).collect();
        Self { quotas, maps_max: MAPS_MAX, maps_bound: MAPS_MAX, ..Self::default() }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Notes that all entries are looked at for victims.
    pub fn scanned(&mut self) {
        (self.scanned_at, self.changes) = (self.clock, 0);
    }

    /// Entries that are new or were used since: each counts once, however often it is read.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    pub fn quota(&self, dir: usize) -> &Quota {
        &self.quotas[dir]
    }

    pub fn used_bytes(&self) -> u64 {
        self.quotas.iter().map(|a| a.used_bytes).sum()
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

    /// Number of segments of which a file is held.
    pub fn segments(&self) -> usize {
        self.by_segment.len()
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

    /// Marks a file as used now; answers with its directory and its map, where one is kept.
    pub fn touch(&mut self, key: &FileKey) -> Option<(usize, Option<Arc<Mapped>>)> {
        let entry = self.entries.get_mut(key)?;
        self.changes += u64::from(entry.used <= self.scanned_at);
        self.clock += 1;
        entry.used = self.clock;
        Some((entry.dir, entry.map.clone()))
    }

    /// Keeps a file's map for the next reader; answers with the one that is to be read. Where another reader
    /// has opened the same file that is its map: the entry knows only one, and the file must not go while any
    /// is being read.
    pub fn keep_map(&mut self, key: &FileKey, map: &Arc<Mapped>) -> Arc<Mapped> {
        let Some(e) = self.entries.get_mut(key) else { return map.clone() };
        if let Some(kept) = e.map.as_ref().filter(|kept| kept.is_of(&map.stat.stamp)) {
            return kept.clone();
        }
        self.maps += usize::from(e.map.replace(map.clone()).is_none());
        map.clone()
    }

    /// Forgets a file's map, if it is still this one: the next reader opens the file anew.
    pub fn drop_map(&mut self, key: &FileKey, map: &Arc<Mapped>) {
        if let Some(e) = self.entries.get_mut(key)
            && e.map.as_ref().is_some_and(|m| Arc::ptr_eq(m, map))
        {
            e.map = None;
            self.maps -= 1;
        }
    }

    /// Where there are too many maps: takes those used longest ago, a sixteenth of all, to be dropped without
    /// the index's lock held. What is being read keeps its map: dropping it would free nothing, and the file
    /// would be taken for one that may be evicted.
    pub fn take_old_maps(&mut self) -> Vec<Arc<Mapped>> {
        if self.maps <= self.maps_bound {
            return Vec::new();
        }
        let idle = |e: &&mut Entry| e.map.is_some() && !e.is_in_use();
        let mut idle: Vec<&mut Entry> = self.entries.values_mut().filter(idle).collect();
        let (over, in_use) = (self.maps - self.maps_max, self.maps - idle.len());
        let count = (over + self.maps_max / 16).min(idle.len());
        if count < idle.len() {
            idle.select_nth_unstable_by_key(count, |e| e.used);
        }
        let gone: Vec<_> = idle.into_iter().take(count).filter_map(|e| e.map.take()).collect();
        self.maps -= gone.len();
        self.maps_bound = self.maps_max.max(in_use + in_use / 16);
        gone
    }

    /// Says whether a file leaves before those that are not replicas.
    pub fn set_replica(&mut self, key: &FileKey, replica: bool) {
        if let Some(e) = self.entries.get_mut(key) {
            e.replica = replica;
        }
    }

    /// Books bytes whether they fit or not.
    pub fn book(&mut self, dir: usize, bytes: u64) -> Reservation {
        let a = &mut self.quotas[dir];
        a.used_bytes += bytes;
        Reservation { dir, bytes, era: a.era }
    }

    /// Gives booked bytes back.
    pub fn release(&mut self, booking: Reservation) {
        let a = &mut self.quotas[booking.dir];
        if a.era == booking.era {
            a.used_bytes = a.used_bytes.saturating_sub(booking.bytes);
        }
    }

    /// Gives bytes back that were booked for good.
    pub fn give_back(&mut self, dir: usize, bytes: u64) {
        let a = &mut self.quotas[dir];
        a.used_bytes = a.used_bytes.saturating_sub(bytes);
    }

    /// Makes booked bytes so many, whether they fit or not.
    pub fn resize(&mut self, booking: &mut Reservation, bytes: u64) {
        self.release(*booking);
        booking.bytes = bytes;
        if self.is_valid(booking) {
            self.quotas[booking.dir].used_bytes += bytes;
        }
    }

    /// Whether a booking still counts: its directory was not set aside since.
    pub fn is_valid(&self, booking: &Reservation) -> bool {
        self.quotas[booking.dir].era == booking.era
    }

    /// Whether a file of this name is being removed.
    pub fn is_going(&self, key: &FileKey) -> bool {
        self.going.contains(key)
    }

    /// Takes files of one directory out so that `bytes` can be written where they were. Their bytes stay
    /// booked until [`Index::gone`]. `None`, and nothing has happened, if one of them is not there, pinned or
    /// in use by now, or they are not enough any more. The entries are answered so that their maps end
    /// without the index's lock held.
    pub fn take(&mut self, dir: usize, keys: &[FileKey], bytes: u64) -> Option<(Reservation, Vec<Entry>)> {
        let mut theirs = 0;
        for key in keys {
            let e = self.entries.get(key).filter(|e| e.dir == dir && !e.pinned && !e.is_in_use())?;
            theirs += e.bytes;
        }
        let a = &self.quotas[dir];
        if a.used_bytes + bytes > a.limit_bytes + theirs {
            return None;
        }
        let era = a.era;
        let entries = keys.iter().filter_map(|key| self.forget(key)).collect();
        self.going.extend(keys);
        self.book(dir, bytes.saturating_sub(theirs));
        Some((Reservation { dir, bytes: theirs.max(bytes), era }, entries))
    }

    /// Takes a file out if its entry is `such`; its bytes stay booked until [`Index::gone`].
    pub fn take_one(
        &mut self,
        key: &FileKey,
        such: impl FnOnce(&Entry) -> bool,
    ) -> Option<(Reservation, Entry)> {
        self.entries.get(key).filter(|e| such(e))?;
        let e = self.forget(key)?;
        self.going.insert(*key);
        Some((Reservation { dir: e.dir, bytes: e.bytes, era: self.quotas[e.dir].era }, e))
    }

    /// The files that were taken out are unlinked.
    pub fn gone(&mut self, keys: &[FileKey]) {
        for key in keys {
            self.going.remove(key);
        }
    }

    /// A file that was taken out could not be unlinked: its bytes stay booked.
    pub fn keep_stuck(&mut self, key: FileKey, booking: Reservation) {
        if self.is_valid(&booking) {
            self.stuck.push((key, booking));
        }
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

    /// Adds a file; its bytes are those of the booking. One of the same name is replaced: in another
    /// directory it is answered with its map and still booked, until it is unlinked and [`Index::gone`].
    pub fn insert(&mut self, key: FileKey, mut entry: Entry, booking: Reservation) -> Replaced {
        if !self.is_valid(&booking) {
            return Replaced::default();
        }
        let mut replaced = Replaced::default();
        if let Some(old) = self.forget(&key) {
            let theirs = Reservation { dir: old.dir, bytes: old.bytes, era: self.quotas[old.dir].era };
            match theirs.dir == booking.dir {
                true => self.release(theirs),
                false => {
                    self.going.insert(key);
                    replaced.elsewhere = Some(theirs);
                }
            }
            replaced.map = old.map;
        }
        // What could not be unlinked was replaced by its successor.
        let is_this = |(k, b): &mut (FileKey, Reservation)| *k == key && b.dir == booking.dir;
        let unstuck: Vec<_> = self.stuck.extract_if(.., is_this).collect();
        unstuck.into_iter().for_each(|(_, theirs)| self.release(theirs));
        self.changes += 1;
        self.clock += 1;
        self.maps += usize::from(entry.map.is_some());
        entry.used = self.clock;
        entry.bytes = booking.bytes;
        entry.pinned = self.pins.cover(&entry.object);
        self.by_segment.entry(key.id).or_default().push(key);
        self.entries.insert(key, entry);
        replaced
    }

    /// Books what a folder takes by now. Folders do not shrink.
    pub fn folder_is(&mut self, dir: usize, name: &str, bytes: u64) {
        let a = &mut self.quotas[dir];
        let seen = a.folders.entry(name.to_owned()).or_default();
        a.used_bytes += bytes.saturating_sub(*seen);
        *seen = bytes.max(*seen);
    }

    /// Forgets everything in a directory, bookings included.
    pub fn clear(&mut self, dir: usize) {
        let keys: Vec<_> = self.entries.iter().filter(|(_, e)| e.dir == dir).map(|(k, _)| *k).collect();
        keys.iter().for_each(|key| drop(self.forget(key)));
        self.stuck.retain(|(_, booking)| booking.dir != dir);
        let a = &mut self.quotas[dir];
        a.era += 1;
        a.used_bytes = 0;
        a.folders.clear();
    }

    fn forget(&mut self, key: &FileKey) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        self.maps -= usize::from(entry.map.is_some());
        if let Some(files) = self.by_segment.get_mut(&key.id) {
            files.retain(|k| k != key);
            if files.is_empty() {
                self.by_segment.remove(&key.id);
            }
        }
        Some(entry)
    }

    /// The files of objects under a URI.
    pub fn files_under(&self, uri: &str) -> Vec<FileKey> {
        self.entries.iter().filter(|(_, e)| is_under(&e.object, uri)).map(|(k, _)| *k).collect()
    }

    /// Marks files anew after the pins changed.
    pub fn pins_changed(&mut self) {
        let pins = &self.pins;
        self.entries.values_mut().for_each(|e| e.pinned = pins.cover(&e.object));
    }

    /// Bytes of files that may not be evicted.
    pub fn pinned_bytes(&self) -> u64 {
        self.entries.values().filter(|e| e.pinned).map(|e| e.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use crate::disk::file::Origin;
    use crate::disk::map;
    use crate::disk::policy::{Admit, NoForecast, Role};
    use crate::disk::{DiskCache, DiskCacheSettings};
    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use forebay_proto::manifest::{Digest, SegmentId};
    use std::sync::Arc;

    #[test]
    fn maps_of_idle_files_go_and_those_being_read_stay() {
        let dir = tempfile::tempdir().unwrap();
        let open =
            || DiskCache::open(&DiskCacheSettings::new(dir.path(), 1 << 30), Arc::new(NoForecast)).unwrap();
        let cache = open();
        for i in 0..40 {
            let values = Arc::new(Int64Array::from_iter_values(0..100)) as ArrayRef;
            let batch = RecordBatch::try_from_iter([("id", values)]).unwrap();
            let origin = Origin { id: SegmentId(Digest(i)), object: "file:///o".into(), etag: "e".into() };
            cache.write(&origin, &batch, Admit::Always, Role::Primary).unwrap();
        }
        drop(cache);
        let cache = open();
        {
            let mut index = cache.index();
            (index.maps_max, index.maps_bound) = (8, 8);
        }
        let find = |i| cache.find(SegmentId(Digest(i)), &["id".into()]);
        let kept = || {
            let index = cache.index();
            let kept = index.entries.values().filter(|e| e.map.is_some()).count();
            assert_eq!(kept, index.maps);
            kept
        };
        let read: Vec<_> = (0..20).map(find).collect();
        assert_eq!(kept(), 20, "all of them are being read");
        (20..40).for_each(|i| drop(find(i)));
        assert!(kept() < 24, "{}", kept());
        assert_eq!(cache.index().entries.values().filter(|e| e.is_in_use()).count(), 20);
        drop(read);
        (20..40).for_each(|i| drop(find(i)));
        (20..40).for_each(|i| drop(find(i)));
        assert!(kept() <= 8, "{}", kept());
    }

    #[test]
    fn a_file_that_two_open_at_once_has_one_map() {
        let dir = tempfile::tempdir().unwrap();
        let cache =
            DiskCache::open(&DiskCacheSettings::new(dir.path(), 1 << 30), Arc::new(NoForecast)).unwrap();
        let values = Arc::new(Int64Array::from_iter_values(0..100)) as ArrayRef;
        let batch = RecordBatch::try_from_iter([("id", values)]).unwrap();
        let origin = Origin { id: SegmentId(Digest(1)), object: "file:///o".into(), etag: "e".into() };
        drop(cache.write(&origin, &batch, Admit::Always, Role::Primary).unwrap());
        let mut index = cache.index();
        let key = index.files_of(origin.id)[0];
        let open = || {
            let place = &cache.dirs[0];
            Arc::new(map::open(place.disk(), &place.segment(&key), true).unwrap())
        };
        let written = index.get(&key).unwrap().map.clone().unwrap();
        index.drop_map(&key, &written);
        let first = index.keep_map(&key, &open());
        let read = first.batch.clone();
        drop((written, first));
        assert!(Arc::ptr_eq(&index.keep_map(&key, &open()).batch, &read));
        assert!(index.get(&key).unwrap().is_in_use(), "the first still reads it");
        drop(read);
        assert!(!index.get(&key).unwrap().is_in_use());
        assert_eq!(index.maps, 1);
    }
}
