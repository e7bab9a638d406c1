//! The disk cache: segment files under a byte limit, with an index rebuilt from their headers at start.
//!
//! Promises: the limit holds at every instant, as `du` sees it, temporary files and folders included; what
//! does not verify is a miss, never data; a full or failing disk costs only what it holds, and heals. What
//! will be read last leaves first; what is pinned or being read stays. The kernel's page cache is the RAM
//! tier.
//!
//! ```text
//! DIR/lock                    held while a server uses the directory
//! DIR/v1/segments/a/ID.COLUMNS    segment files: id and a hash of the column names
//! DIR/v1/tmp/                 files being written; emptied at start
//! DIR/v1/pins                 pinned URIs
//! ```

pub mod copies;
pub mod dirs;
mod evict;
pub mod file;
pub mod file_system;
mod index;
mod map;
mod pages;
pub mod pins;
pub mod policy;
mod recover;
pub mod scrub;

use arrow::array::RecordBatch;
use dirs::{Dir, DirStatus, Health};
use evict::{Room, Victims, Wanted};
use file::{Encoded, Origin, Unreadable};
use file_system::{Disk, RealDisk};
use forebay_proto::manifest::{Digest, SegmentId};
use forebay_proto::{Error, Result};
use index::{Entry, FileKey, Index, Reservation};
use map::Mapped;
use pages::Pages;
use parking_lot::{Mutex, MutexGuard};
use pins::Pins;
use policy::{Admit, Forecast, Role};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// What file systems hand out disk in, unless they say that it is more.
const BLOCK_BYTES: u64 = 4096;

/// Blocks that folders may grow by when a file is added: one each for `tmp` and the file's folder, and one
/// more where that splits.
const FOLDER_GROWTH_BLOCKS: u64 = 3;

/// What a look-up found.
#[derive(Debug, Default)]
pub struct Found {
    /// Batches that together hold the wanted columns, as far as the disk cache has them.
    pub parts: Vec<Arc<RecordBatch>>,
    /// Wanted columns that no file holds.
    pub missing: Vec<String>,
}

/// How a write ended.
#[derive(Debug, Clone)]
pub enum Written {
    /// Stored; here mapped.
    Mapped(Arc<RecordBatch>),
    /// Everything that would have to go will be read sooner: not stored, and nothing was evicted.
    NotWorthIt,
    /// No room (all is being read or pinned), or no directory works: not stored.
    NoRoom,
}

/// Where segment files go, and how many.
#[derive(Debug, Clone)]
pub struct DiskCacheSettings {
    /// Directories, this disk cache's alone.
    pub dirs: Vec<PathBuf>,
    /// Bytes that they may use together; each gets an equal share.
    pub limit_bytes: u64,
    /// Bytes of mapped files whose pages may be in the process's memory.
    pub maps_bytes: u64,
    /// How files are reached.
    pub disk: Arc<dyn Disk>,
}

impl DiskCacheSettings {
    /// One directory on the real disk.
    pub fn new(dir: impl Into<PathBuf>, limit_bytes: u64) -> Self {
        Self { dirs: vec![dir.into()], limit_bytes, maps_bytes: u64::MAX, disk: Arc::new(RealDisk) }
    }
}

/// Sums since start.
#[derive(Debug, Default)]
pub struct DiskCounters {
    /// Files evicted.
    pub evictions: AtomicU64,
    /// Files that failed their checks.
    pub corrupt: AtomicU64,
    /// Bytes written to files that took their place.
    pub bytes_written: AtomicU64,
    /// Segments not stored: no room, or the disk failed.
    pub not_stored: AtomicU64,
    /// Scans for victims.
    pub scans: AtomicU64,
    /// Bytes that the scrub has read.
    pub scrubbed_bytes: AtomicU64,
    /// Times that a directory was set aside.
    pub dir_faults: AtomicU64,
}

/// Segment files under some directories. All methods but the plain readings touch the disk: call them off the
/// async threads.
#[derive(Debug)]
pub struct DiskCache {
    dirs: Vec<Dir>,
    limit_bytes: u64,
    index: Mutex<Index>,
    pages: Pages,
    victims: Mutex<Victims>,
    /// Held while the list of pins changes and is written: the last one written must be the last one.
    pinning: Mutex<()>,
    forecast: Arc<dyn Forecast>,
    counters: DiskCounters,
    /// Whether it was said that pins do not fit, since they changed last.
    said_full_of_pins: AtomicBool,
    /// The largest block of all directories' file systems.
    block_bytes: AtomicU64,
}

impl DiskCache {
    /// Opens the directories, making them where needed, and rebuilds the index. Those that fail are set
    /// aside; only when all do it is an error: `Denied` when they cannot be written, `Invalid` when another
    /// server uses them.
    pub fn open(settings: &DiskCacheSettings, forecast: Arc<dyn Forecast>) -> Result<Self> {
        let count = settings.dirs.len() as u64;
        if count == 0 {
            return Err(Error::invalid("no cache directory: give one with --cache-dir"));
        }
        let cache = Self {
            dirs: settings.dirs.iter().map(|path| Dir::new(path.clone(), settings.disk.clone())).collect(),
            limit_bytes: settings.limit_bytes,
            pages: Pages::new(settings.maps_bytes),
            index: Mutex::new(Index::new(settings.dirs.iter().map(|_| settings.limit_bytes / count))),
            victims: Mutex::default(),
            pinning: Mutex::default(),
            forecast,
            counters: DiskCounters::default(),
            said_full_of_pins: AtomicBool::new(false),
            block_bytes: AtomicU64::new(BLOCK_BYTES),
        };
        cache.start()?;
        Ok(cache)
    }

    fn start(&self) -> Result<()> {
        let mut pins = Pins::default();
        let mut locked = Vec::new();
        for dir in &self.dirs {
            locked.push(recover::prepare(dir));
            // The pins must be known before anything is evicted.
            pins = Pins::load(dir.disk(), &dir.pins()).unwrap_or_default().later(pins);
        }
        self.index().pins = pins;
        let begin = |(dir, lock)| -> Result<()> {
            let place: &Dir = &self.dirs[dir];
            let mut state = place.state();
            let lock: Result<std::fs::File> = lock;
            let begun = lock.and_then(|lock| {
                state.lock = Some(lock);
                recover::rebuild(self, dir)
            });
            match &begun {
                Ok(()) => place.set_up(&mut state),
                Err(_) => place.set_aside(&mut state, Health::Away, 0),
            }
            begun
        };
        let begun: Vec<Result<()>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                locked.into_iter().enumerate().map(|work| scope.spawn(move || begin(work))).collect();
            let failed = |_| Err(Error::corrupt("a thread that opened a cache directory panicked"));
            threads.into_iter().map(|t| t.join().unwrap_or_else(failed)).collect()
        });
        match begun.iter().all(Result::is_err) {
            true => begun.into_iter().collect(),
            false => {
                for e in begun.into_iter().filter_map(Result::err) {
                    self.counters.dir_faults.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(error = %e, "a cache directory is set aside: the others take its place until it works");
                }
                Ok(())
            }
        }
    }

    /// Finds the wanted columns of a segment, mapping files that are not mapped yet (and checking every byte
    /// of those this process did not write, or that changed since). A file that does not verify is removed
    /// and counts as absent.
    pub fn find(&self, id: SegmentId, columns: &[String]) -> Found {
        let mut found = Found { missing: columns.to_vec(), ..Found::default() };
        let keys = self.index().files_of(id);
        for key in keys {
            if found.missing.is_empty() {
                break;
            }
            let covers =
                self.index().get(&key).is_some_and(|e| found.missing.iter().any(|c| e.columns.contains(c)));
            if covers && let Some(batch) = self.map(&key) {
                found.missing.retain(|c| batch.column_by_name(c).is_none());
                found.parts.push(batch);
            }
        }
        found
    }

    /// Whether what was found is still what was checked: to be asked after each use, before anything is made
    /// of it. A file that was changed, cut or removed since is not.
    pub fn is_sound(&self, batch: &RecordBatch) -> bool {
        map::is_sound(self.dirs[0].disk(), batch)
    }

    /// Whether all these columns of a segment are held; touches neither disk nor recency.
    pub fn holds(&self, id: SegmentId, columns: &[String]) -> bool {
        self.index().holds(id, columns)
    }

    /// Whether any column of a segment is held; touches neither disk nor recency.
    pub fn holds_any(&self, id: SegmentId) -> bool {
        self.index().holds_any(id)
    }

    /// Writes columns of a segment and answers with them mapped. When it does not store them, the disk cache
    /// is as before.
    pub fn write(&self, origin: &Origin, batch: &RecordBatch, admit: Admit, role: Role) -> Result<Written> {
        let encoded = Encoded::new(origin, batch)?;
        let columns: Arc<[String]> = batch.schema().fields().iter().map(|f| f.name().clone()).collect();
        let key = FileKey::new(origin.id, &columns);
        let (pinned, going) = {
            let index = self.index();
            (index.pins.cover(&origin.object), index.is_going(&key))
        };
        let admit = if pinned { Admit::Always } else { admit };
        // A directory that fails is set aside, so each is tried once.
        for _ in 0..self.dirs.len() {
            if going {
                break;
            }
            let bytes = self.charge(encoded.bytes()) + self.folder_growth();
            let booking = match self.make_room(Wanted { id: origin.id, bytes, admit, role, only: None }) {
                Room::Booked(booking) => booking,
                Room::NotWorthIt => return Ok(Written::NotWorthIt),
                Room::None => break,
            };
            match self.place(&key, &encoded, booking) {
                Ok((mapped, booking)) => {
                    let batch = mapped.batch.clone();
                    self.keep(key, origin, (columns, role), mapped, booking);
                    self.counters.bytes_written.fetch_add(encoded.bytes(), Ordering::Relaxed);
                    return Ok(Written::Mapped(batch));
                }
                Err(e) => {
                    self.index().release(booking);
                    self.fault(booking.dir, &e, self.charge(encoded.bytes()));
                    tracing::debug!(object = origin.object, error = %e, "a segment could not be written");
                }
            }
        }
        self.counters.not_stored.fetch_add(1, Ordering::Relaxed);
        if pinned && !self.said_full_of_pins.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                object = origin.object,
                "pinned segments do not fit any more and are served without being stored: raise --cache-bytes or unpin some"
            );
        }
        tracing::debug!(segment = %origin.id, "no room in the cache: served without storing");
        Ok(Written::NoRoom)
    }

    /// Removes every segment of objects under a URI; answers with how many files and bytes went.
    pub fn free(&self, uri: &str) -> (u64, u64) {
        let keys = self.index().files_under(uri);
        let mut gone = (0, 0);
        for key in keys {
            if let Some(bytes) = self.remove(&key) {
                gone = (gone.0 + 1, gone.1 + bytes);
            }
        }
        gone
    }

    /// Tries directories that were set aside, where their next attempt is due, and files that could not be
    /// removed. To be called every second or so.
    pub fn heal(&self, now: Instant) {
        self.unlink_stuck(now);
        for (dir, place) in self.dirs.iter().enumerate().filter(|(_, place)| place.is_due(now)) {
            let mut state = place.state();
            let was = place.health();
            let back = place.retry(&mut state, now).and_then(|()| match was {
                Health::Away => recover::rebuild(self, dir),
                _ => Ok(()),
            });
            match back {
                Ok(()) => {
                    place.set_up(&mut state);
                    drop(state);
                    self.save_pins_of(dir);
                    tracing::info!(dir = %place.path().display(), "a cache directory works again");
                }
                Err(e) => tracing::debug!(error = %e, "a cache directory is still set aside"),
            }
        }
    }

    /// The directories.
    pub fn dirs(&self) -> Vec<DirStatus> {
        let index = self.index();
        let status = |(i, dir): (usize, &Dir)| DirStatus {
            path: dir.path().to_owned(),
            health: dir.health(),
            used_bytes: index.quota(i).used_bytes,
            limit_bytes: index.quota(i).limit_bytes,
        };
        self.dirs.iter().enumerate().map(status).collect()
    }

    /// A directory that works, for what others keep beside the segments.
    pub fn home(&self) -> Result<PathBuf> {
        let up = self.dirs.iter().find(|dir| dir.health() != Health::Away);
        let none = || Error::retry("no cache directory works now");
        up.map(|dir| dir.path().to_owned()).ok_or_else(none)
    }

    /// Books room for a file that others keep in a directory beside the segments; false when there is none.
    pub fn reserve_sidecar(&self, dir: &Path, bytes: u64) -> bool {
        let only = self.dirs.iter().position(|d| d.path() == dir);
        let (id, bytes) = (SegmentId(Digest(0)), self.beside(bytes));
        let wanted = Wanted { id, bytes, admit: Admit::Always, role: Role::Primary, only };
        only.is_some() && matches!(self.make_room(wanted), Room::Booked(_))
    }

    /// Such a file is gone.
    pub fn release_sidecar(&self, dir: &Path, bytes: u64) {
        if let Some(dir) = self.dirs.iter().position(|d| d.path() == dir) {
            self.index().give_back(dir, self.beside(bytes));
        }
    }

    /// Bytes in use on the disk: files, those being written and removed, folders.
    pub fn used_bytes(&self) -> u64 {
        self.index().used_bytes()
    }

    /// The byte limit.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Number of segments of which something is held.
    pub fn segments(&self) -> u64 {
        self.index().segments() as u64
    }

    /// Number of files held.
    pub fn files(&self) -> u64 {
        self.index().len() as u64
    }

    /// Sums since start.
    pub fn counters(&self) -> &DiskCounters {
        &self.counters
    }

    /// Bytes that a file of this length takes on the disk at most: whole blocks, and one for the list of its
    /// extents.
    fn charge(&self, bytes: u64) -> u64 {
        let block = self.block_bytes.load(Ordering::Relaxed);
        let blocks = bytes.div_ceil(block);
        block * (blocks + u64::from(blocks > 4))
    }

    /// The same for a file beside the segments: a block of it is its share of the folder that it is in.
    fn beside(&self, bytes: u64) -> u64 {
        self.charge(bytes) + self.block_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that folders may grow by when a file is added.
    fn folder_growth(&self) -> u64 {
        FOLDER_GROWTH_BLOCKS * self.block_bytes.load(Ordering::Relaxed)
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock()
    }

    fn map(&self, key: &FileKey) -> Option<Arc<RecordBatch>> {
        let (dir, kept) = self.index().touch(key)?;
        let (place, path) = (&self.dirs[dir], self.dirs[dir].segment(key));
        if let Some(kept) = kept {
            if place.disk().stat_path(&path).is_ok_and(|now| kept.is_of(&now.stamp)) {
                self.pages.touch(&kept);
                return Some(kept.batch.clone());
            }
            // Somebody changed it behind our back: only what is on the disk counts.
            self.index().drop_map(key, &kept);
        }
        let before = place.disk().stat_path(&path);
        match map::open(place.disk(), &path, true) {
            Ok(opened) => {
                let opened = Arc::new(opened);
                let (mapped, gone) = {
                    let mut index = self.index();
                    (index.keep_map(key, &opened), index.take_old_maps())
                };
                drop((gone, opened));
                self.pages.touch(&mapped);
                Some(mapped.batch.clone())
            }
            Err(e) => {
                // Unless another has taken its name meanwhile: evicted, and filled again.
                let now = place.disk().stat_path(&path);
                let is_another = now.is_ok_and(|now| before.is_ok_and(|b| !now.stamp.is_same_file(&b.stamp)));
                if !is_another {
                    self.discard(key, dir, &path, e);
                }
                None
            }
        }
    }

    /// What to do about a file that gives no segment.
    fn discard(&self, key: &FileKey, dir: usize, path: &Path, why: Unreadable) {
        if let Unreadable::Disk(e) = &why {
            if dirs::is_of_process(e) {
                tracing::warn!(error = %e, path = %path.display(), "a segment file could not be opened now");
                return;
            }
            self.fault(dir, e, 0);
        }
        // If it is not known any more, it was evicted a moment ago, or its directory was set aside: nothing
        // is wrong with it.
        if self.remove(key).is_some() {
            self.counters.corrupt.fetch_add(1, Ordering::Relaxed);
            let error = format!("{}: {why}", path.display());
            tracing::warn!(error, "a segment file is damaged: removed, it will be filled again");
        }
    }

    /// Removes a file; answers with its bytes.
    fn remove(&self, key: &FileKey) -> Option<u64> {
        self.remove_if(key, |_| true)
    }

    /// Removes a file if its entry is such.
    fn remove_if(&self, key: &FileKey, such: impl FnOnce(&Entry) -> bool) -> Option<u64> {
        let (booking, entry) = self.index().take_one(key, such)?;
        drop(entry);
        self.unlink_taken(key, booking);
        Some(booking.bytes)
    }

    /// Unlinks a file that is not in the index any more, and gives its bytes back; what cannot be unlinked is
    /// tried again later, and counts until then.
    fn unlink_taken(&self, key: &FileKey, booking: Reservation) {
        let removed = self.unlink(booking.dir, key);
        let mut index = self.index();
        index.gone(&[*key]);
        match removed {
            true => index.release(booking),
            false => index.keep_stuck(*key, booking),
        }
    }

    /// Tries again to unlink what could not be.
    fn unlink_stuck(&self, now: Instant) {
        let stuck = self.index().take_stuck(now);
        for (key, booking) in stuck {
            let place = &self.dirs[booking.dir];
            // A file that was written since has its name.
            let is_replaced = self.index().get(&key).is_some_and(|e| e.dir == booking.dir);
            let is_gone = is_replaced
                || match place.disk().remove(&place.segment(&key)) {
                    Err(e) => e.kind() == io::ErrorKind::NotFound,
                    Ok(()) => true,
                };
            let mut index = self.index();
            index.gone(&[key]);
            match is_gone {
                true => index.release(booking),
                false => index.keep_stuck(key, booking),
            }
        }
    }

    /// Removes a file from its directory; false when it is still there.
    fn unlink(&self, dir: usize, key: &FileKey) -> bool {
        let path = self.dirs[dir].segment(key);
        match self.dirs[dir].disk().remove(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(error = %e, path = %path.display(), "a segment file could not be removed");
                self.fault(dir, &e, 0);
                false
            }
            _ => true,
        }
    }

    /// Writes a file where room is booked, and books what its folders grew by.
    fn place(
        &self,
        key: &FileKey,
        encoded: &Encoded,
        mut booking: Reservation,
    ) -> io::Result<(Mapped, Reservation)> {
        let dir = &self.dirs[booking.dir];
        let path = dir.segment(key);
        let stat = dir.place(&path, encoded.bytes(), &mut encoded.parts())?;
        let name = key.file_name();
        let placed = (|| -> io::Result<_> {
            let shard = dir.disk().stat_path(&dir.shard(&name))?.allocated_bytes;
            let tmp = dir.disk().stat_path(&dir.path().join("v1/tmp"))?.allocated_bytes;
            let mapped = map::open(dir.disk(), &path, false).map_err(|e| match e {
                Unreadable::Disk(e) => e,
                other => io::Error::other(other.to_string()),
            })?;
            Ok((shard, tmp, mapped))
        })();
        if placed.is_err() {
            dir.disk().remove(&path).ok();
        }
        let (shard, tmp, mapped) = placed?;
        let mut index = self.index();
        if index.is_valid(&booking) {
            // It may take more than it was charged with: that counts too, and the next file goes without.
            index.resize(&mut booking, self.charge(encoded.bytes()).max(stat.allocated_bytes));
            index.folder_is(booking.dir, &name[..1], shard);
            index.folder_is(booking.dir, "tmp", tmp);
        }
        Ok((mapped, booking))
    }

    /// Adds a file to the index.
    fn keep(
        &self,
        key: FileKey,
        origin: &Origin,
        (columns, role): (Arc<[String]>, Role),
        mapped: Mapped,
        booking: Reservation,
    ) {
        let mapped = Arc::new(mapped);
        self.pages.touch(&mapped);
        let (object, map) = (origin.object.clone(), Some(mapped));
        let (bytes, dir, replica) = (booking.bytes, booking.dir, role == Role::Replica);
        let entry = Entry { object, columns, bytes, dir, used: 0, pinned: false, replica, map };
        let (replaced, valid, gone) = {
            let mut index = self.index();
            (index.insert(key, entry, booking), index.is_valid(&booking), index.take_old_maps())
        };
        drop((gone, replaced.map));
        if let Some(old) = replaced.elsewhere {
            self.unlink_taken(&key, old);
        }
        if !valid {
            // Its directory was set aside meanwhile, and may be back without knowing of this file.
            self.dirs[booking.dir].disk().remove(&self.dirs[booking.dir].segment(&key)).ok();
        }
    }

    /// Books what a directory takes besides segment files.
    fn measure(&self, dir: usize) -> io::Result<()> {
        let place = &self.dirs[dir];
        let disk = place.disk();
        let mut folders = Vec::new();
        for shard in dirs::SHARDS {
            folders.push((shard, disk.stat_path(&place.shard(shard))?.allocated_bytes));
        }
        folders.push(("tmp", disk.stat_path(&place.path().join("v1/tmp"))?.allocated_bytes));
        let mut rest = disk.stat_path(place.path())?.allocated_bytes;
        for name in ["lock", "v1", "v1/segments", "v1/pins"] {
            rest += disk.stat_path(&place.path().join(name)).map_or(0, |s| s.allocated_bytes);
        }
        folders.push(("rest", rest));
        // For the file that a probe writes.
        folders.push(("spare", self.block_bytes.load(Ordering::Relaxed)));
        let mut index = self.index();
        folders.into_iter().for_each(|(name, bytes)| index.folder_is(dir, name, bytes));
        Ok(())
    }

    /// What to do about a directory one of whose operations failed: nothing if it works all the same, else it
    /// is set aside.
    fn fault(&self, dir: usize, e: &io::Error, wanted_bytes: u64) {
        let place = &self.dirs[dir];
        // One that is coming back is not waited for.
        if dirs::is_of_process(e) || place.health() == Health::Away {
            return;
        }
        let mut state = place.state();
        if place.health() == Health::Away {
            return;
        }
        let health = match dirs::is_full(e) {
            true => Health::Full,
            false => match place.probe() {
                Ok(()) => return,
                Err(e) if dirs::is_full(&e) => Health::Full,
                Err(_) => Health::Away,
            },
        };
        if place.health() == health {
            return;
        }
        place.set_aside(&mut state, health, wanted_bytes);
        self.counters.dir_faults.fetch_add(1, Ordering::Relaxed);
        let dir_path = place.path().display();
        if health == Health::Away {
            self.index().clear(dir);
            tracing::warn!(dir = %dir_path, error = %e, "a cache directory fails and is set aside: it is tried again until it works");
        } else {
            tracing::warn!(dir = %dir_path, error = %e, "the disk of a cache directory is full: it is read, but segments could not be stored in it until it has room");
        }
    }
}

#[cfg(test)]
mod tests;
