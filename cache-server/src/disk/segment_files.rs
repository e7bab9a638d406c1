//! The space of the disk cache: reserved for new files by letting others leave, and given back when files are
//! gone. Every change of the index that a file on the disk stands behind goes through here.

use super::counters::DiskCounters;
use super::dirs::{self, Dirs};
use super::evict::{Evictor, Wanted};
use super::file::{FileKey, Unreadable};
use super::index::{Entry, Index, Taken};
use super::pin_set::PinSet;
use super::policy::{Forecast, Refusal};
use super::prefixes::PrefixLimit;
use super::quota::Reservation;
use parking_lot::{Mutex, MutexGuard};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Decisions about victims for one file at most: other callers may take them, or they may be read, in
/// between.
const ATTEMPTS: usize = 8;

/// How often a file is tried in a directory whose disk is full: other files leave for it after the first
/// time, and something else may take the room that they leave.
pub const TRIES: usize = 3;

/// The segment files of all directories, and the space that they take.
#[derive(Debug)]
pub struct SegmentFiles {
    pub dirs: Arc<Dirs>,
    index: Arc<Mutex<Index>>,
    pub evictor: Evictor,
    /// Locked after the index where both are.
    pins: Mutex<PinSet>,
    pub counters: Arc<DiskCounters>,
}

impl SegmentFiles {
    /// Of directories that each have an equal share of `limit_bytes`; raw blocks keep `raw_share_bytes`.
    pub fn new(
        dirs: Arc<Dirs>,
        [limit_bytes, raw_share_bytes]: [u64; 2],
        forecast: Arc<dyn Forecast>,
        counters: Arc<DiskCounters>,
    ) -> Self {
        let share = limit_bytes / dirs.all().len().max(1) as u64;
        let index = Arc::new(Mutex::new(Index::new(dirs.all().iter().map(|_| share))));
        let evictor = Evictor::new(index.clone(), forecast, counters.clone(), raw_share_bytes);
        Self { dirs, index, evictor, pins: Mutex::default(), counters }
    }

    pub fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock()
    }

    pub fn pins(&self) -> PinSet {
        self.pins.lock().clone()
    }

    /// From now on these URIs are pinned, and no others.
    pub fn set_pins(&self, pins: PinSet) {
        *self.pins.lock() = pins;
        // A file that is added meanwhile is asked about under the index's lock: by the old pins only before
        // this.
        let mut index = self.index();
        let pins = self.pins.lock();
        index.set_pinned(|object| pins.cover(object));
    }

    pub fn is_pinned(&self, object: &str) -> bool {
        self.pins.lock().cover(object)
    }

    /// Reserves space for a file, in any directory that can be written or in one of them alone. Victims are
    /// unlinked first.
    pub fn reserve(&self, wanted: Wanted, only: Option<usize>) -> Result<Reservation, Refusal> {
        for _ in 0..ATTEMPTS {
            let mut dirs = self.dirs.writable();
            dirs.retain(|dir| only.is_none_or(|only| only == *dir));
            let reserved = self.evictor.reserve(wanted, &dirs, |dir, key| self.unlink(dir, key))?;
            if let Some(reservation) = reserved {
                return Ok(reservation);
            }
        }
        Err(Refusal::NoRoom)
    }

    /// Has files leave that stand in the way of the limits of prefixes, and counts one that is to be written
    /// until the result is dropped.
    pub fn expect(&self, object: &Arc<str>, wanted: Wanted) -> Result<Expected<'_>, Refusal> {
        for _ in 0..ATTEMPTS {
            let broken = {
                let mut index = self.index();
                let Some(broken) = index.prefixes.broken_by(object, wanted.bytes) else {
                    let number = index.prefixes.expect(object, wanted.bytes);
                    return Ok(Expected { files: self, number });
                };
                broken
            };
            self.evictor.make_room_under(broken, wanted, |dir, key| self.unlink(dir, key))?;
        }
        Err(Refusal::NoRoom)
    }

    /// Other limits of prefixes from now on: all beyond them leaves, as far as it may.
    pub fn set_prefix_limits(&self, limits: Vec<PrefixLimit>) {
        let count = limits.len();
        self.index().set_prefix_limits(limits);
        self.evictor.forget_victims();
        let wanted = Wanted::sidecar(0);
        for limit in 0..count {
            for _ in 0..ATTEMPTS {
                let short = self.index().prefixes.short_bytes(limit, 0);
                let is_well = short == 0
                    || self
                        .evictor
                        .make_room_under((limit, short), wanted, |dir, key| self.unlink(dir, key))
                        .is_err();
                if is_well {
                    break;
                }
            }
        }
    }

    /// Reserves space for a small file in one directory, whatever has to leave for it.
    pub fn reserve_sidecar(&self, dir: usize, bytes: u64) -> Option<Reservation> {
        self.reserve(Wanted::sidecar(bytes), Some(dir)).ok()
    }

    /// To be held while a file is written and added; `None` while another writes it, or an old one of its
    /// name is being removed.
    pub fn begin_writing(&self, key: &FileKey) -> Option<Writing<'_>> {
        let may_write = self.index().begin_writing(key);
        may_write.then(|| Writing { files: self, key: *key })
    }

    /// Adds a file that was written where space is reserved.
    pub fn add(&self, key: FileKey, mut entry: Entry, reservation: Reservation) {
        let (replaced, is_valid, old_maps) = {
            let mut index = self.index();
            entry.pinned = self.is_pinned(&entry.object);
            let replaced = index.insert(key, entry, reservation);
            (replaced, index.quotas.is_valid(&reservation), index.take_idle_maps())
        };
        drop((old_maps, replaced.map));
        if let Some(old) = replaced.elsewhere {
            self.unlink_taken(&key, old);
        }
        if !is_valid {
            self.remove_unknown(&key, reservation.dir);
        }
    }

    /// Removes a file if its entry is `such`. Returns its bytes.
    pub fn remove(&self, key: &FileKey, such: impl FnOnce(&Entry) -> bool) -> Option<u64> {
        let Taken { reservation, map, .. } = self.index().take_one(key, such)?;
        drop(map);
        self.unlink_taken(key, reservation);
        Some(reservation.bytes)
    }

    /// Removes a sound file that nobody wants any more. Who reads it may go on. Returns its bytes.
    pub fn free(&self, key: &FileKey) -> Option<u64> {
        let Taken { reservation, map, .. } = self.index().take_one(key, |_| true)?;
        if let Some(map) = &map {
            map.retire();
        }
        drop(map);
        self.unlink_taken(key, reservation);
        Some(reservation.bytes)
    }

    /// Unlinks a file that was taken out of the index. One that cannot be unlinked is tried again later, and
    /// counts until it is.
    pub fn unlink_taken(&self, key: &FileKey, reservation: Reservation) {
        let is_unlinked = self.unlink(reservation.dir, key);
        self.index().gone(key, reservation, is_unlinked);
    }

    /// Tries again to unlink files that could not be. If a directory hangs, those of the next ones are left
    /// for another thread.
    pub fn unlink_stuck(&self, now: Instant) {
        for (i, dir) in self.dirs.all().iter().enumerate() {
            let stuck = self.index().take_stuck(i, now);
            for (key, reservation) in stuck {
                // A file that was written since has its name.
                let is_replaced = self.index().get(&key).is_some_and(|e| e.dir() == i);
                let is_gone = is_replaced
                    || match dir.disk.remove(&dir.segment(&key)) {
                        Err(e) => e.kind() == io::ErrorKind::NotFound,
                        Ok(()) => true,
                    };
                self.index().gone(&key, reservation, is_gone);
            }
        }
    }

    /// Decides about a file that gives no segment: it is removed and counts as damaged, unless it was the
    /// process that failed to read it. `such` says whether an entry is still that file's.
    pub fn discard(
        &self,
        key: &FileKey,
        dir: usize,
        path: &Path,
        why: Unreadable,
        such: impl FnOnce(&Entry) -> bool,
    ) {
        if let Unreadable::Disk(e) = &why {
            if dirs::is_of_process(e) {
                tracing::warn!(error = %e, path = %path.display(), "a segment file could not be opened now");
                return;
            }
            self.fault(dir, e, None);
        }
        // One that the index does not know was evicted a moment ago, or its directory was set aside: nothing
        // is wrong.
        if self.remove(key, such).is_some() {
            self.note_damaged(path, &why);
        }
    }

    /// Counts a damaged file, and says so.
    pub fn note_damaged(&self, path: &Path, why: &Unreadable) {
        self.counters.corrupt.fetch_add(1, Ordering::Relaxed);
        let error = format!("{}: {why}", path.display());
        tracing::warn!(error, "a segment file is damaged: removed, it will be filled again");
    }

    /// Reports that an operation failed, where there is one with the reservation of its file, which is
    /// released already. A directory that does not work is set aside, and its files count as absent; one
    /// whose disk is full has no more room than it uses.
    pub fn fault(&self, dir: usize, e: &io::Error, failed: Option<&Reservation>) {
        let lower = || self.index().quotas.lower(dir, failed);
        let wanted_bytes = failed.map_or(0, |failed| failed.bytes);
        self.dirs.fault(dir, e, wanted_bytes, lower, || self.index().clear(dir));
    }

    /// Counts what a directory takes now besides its files.
    pub fn measure(&self, dir: usize) -> io::Result<()> {
        let bytes = self.dirs.measure(dir)?;
        self.index().quotas.set_folders(dir, bytes);
        Ok(())
    }

    /// Removes a file whose directory was set aside while it was written. The directory may be back: then it
    /// may have been indexed there with the others, and stays. As long as the directory is away, so does the
    /// file.
    fn remove_unknown(&self, key: &FileKey, dir: usize) {
        let place = self.dirs.get(dir);
        let Some(_no_change) = place.state_unless_stuck() else { return };
        let is_known = self.index().get(key).is_some_and(|e| e.dir() == dir);
        if place.health() != dirs::Health::Away && !is_known {
            place.disk.remove(&place.segment(key)).ok();
        }
    }

    /// Removes a file from its directory; false when it is still there.
    fn unlink(&self, dir: usize, key: &FileKey) -> bool {
        let place = self.dirs.get(dir);
        let path = place.segment(key);
        match place.disk.remove(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(error = %e, path = %path.display(), "a segment file could not be removed");
                self.fault(dir, &e, None);
                false
            }
            _ => true,
        }
    }
}

/// A file that counts for the limits of prefixes, until it does so by itself.
#[derive(Debug)]
pub struct Expected<'a> {
    files: &'a SegmentFiles,
    number: u64,
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        self.files.index().prefixes.arrived(self.number);
    }
}

/// A file that is being written: nobody unlinks its name until this is dropped.
#[derive(Debug)]
pub struct Writing<'a> {
    files: &'a SegmentFiles,
    key: FileKey,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.files.index().written(&self.key);
    }
}
