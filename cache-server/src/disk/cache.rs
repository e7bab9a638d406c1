//! The disk cache: segments are looked up in it, and filled segments are written to it.

use super::copies::Copies;
use super::counters::DiskCounters;
use super::dataset_counts::DatasetCounts;
use super::dirs::{Attempt, DirStatus, Dirs, Filler, Health, is_full};
use super::evict::Wanted;
use super::file::{Encoded, FileKey, Origin, Unreadable, Unsealed, is_raw};
use super::file_system::Disk;
use super::index::{Entry, RawFiles};
use super::map::pages::Pages;
use super::map::{self, KeptFiles, Mapped};
use super::pins::Pins;
use super::policy::{Admit, Forecast, Refusal, Role};
use super::prefixes::PrefixLimit;
use super::quota::Reservation;
use super::rebuild::Rebuild;
use super::scrub;
use super::segment_files::{SegmentFiles, TRIES};
use super::sidecar::Sidecar;
use forebay_dataset::{ReadySegment, SegmentBatch};
use forebay_proto::manifest::SegmentId;
use forebay_proto::{Error, Result};
use std::cell::LazyCell;
use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The columns of a segment that a look-up found.
#[derive(Debug, Default)]
pub struct Found {
    /// Segments that together hold the wanted columns, as far as the disk cache has them.
    pub parts: Vec<ReadySegment>,
    /// Wanted columns that no file holds.
    pub missing: Vec<String>,
}

impl Found {
    /// Adds columns if one of them is missing.
    pub fn add(&mut self, part: ReadySegment) {
        let has = |c: &String| part.batch.has(c);
        if self.missing.iter().any(has) {
            self.missing.retain(|c| !has(c));
            self.parts.push(part);
        }
    }
}

/// How a write ended.
#[derive(Debug, Clone)]
pub enum Written {
    /// Stored, and ready to be read from there.
    Stored(ReadySegment),
    /// Not stored, and nothing was evicted.
    Refused(Refusal),
}

/// Where segment files go, and how many.
#[derive(Debug, Clone)]
pub struct DiskCacheSettings {
    /// Directories that no other server uses.
    pub dirs: Vec<PathBuf>,
    /// Bytes that they may use together; each gets an equal share.
    pub limit_bytes: u64,
    /// The part of the limit that raw blocks keep, 0 to 1.
    pub raw_share: f64,
    /// Bytes of mapped files whose pages may be in the process's memory.
    pub maps_bytes: u64,
    /// Files that are kept open at most, for reads of small ranges.
    pub kept_files: usize,
    /// How long all directories may hang when they are opened before that is an error.
    pub start_patience: Duration,
    /// How files are reached.
    pub disk: Arc<dyn Disk>,
}

/// Segment files in some directories. All methods touch the disk but those that say that they do not: call
/// them off the async threads.
#[derive(Debug)]
pub struct DiskCache {
    pub(super) files: Arc<SegmentFiles>,
    pub(super) pages: Pages,
    pub(super) kept_files: Arc<KeptFiles>,
    pins: Arc<Pins>,
    filler: Arc<dyn Filler>,
    limit_bytes: u64,
}

impl DiskCache {
    /// Opens the directories, making them where needed, and rebuilds the index, also on a disk that is full.
    /// Those that fail or hang are set aside; only when all do it is an error: `Denied` when they cannot be
    /// written or do not answer, `Full` when there is no room for their folders, `Invalid` when another
    /// server uses them.
    pub fn open(settings: &DiskCacheSettings, forecast: Arc<dyn Forecast>) -> Result<Self> {
        if settings.dirs.is_empty() {
            return Err(Error::invalid("no cache directory: give one with --cache-dir"));
        }
        let counters = Arc::new(DiskCounters::default());
        let limits = [settings.limit_bytes, (settings.limit_bytes as f64 * settings.raw_share) as u64];
        let dirs = Arc::new(Dirs::new(&settings.dirs, &settings.disk, counters.clone()));
        let files = Arc::new(SegmentFiles::new(dirs, limits, forecast, counters));
        let pins = Arc::new(Pins::new(files.clone()));
        // The pins must be known before anything is evicted.
        pins.load(settings.start_patience);
        let filler: Arc<dyn Filler> = Arc::new(Rebuild { files: files.clone(), pins: pins.clone() });
        files.dirs.start(&filler, settings.start_patience)?;
        let pages = Pages::new(settings.maps_bytes);
        let kept_files = KeptFiles::new(settings.kept_files);
        Ok(Self { files, pages, kept_files, pins, filler, limit_bytes: settings.limit_bytes })
    }

    /// The wanted columns of a segment if one file holds them all and is mapped, its pages in use. Does not
    /// touch the disk: the reader verifies after the use that the file is still the one that was mapped.
    #[tracing::instrument(level = "trace", skip_all)]
    pub fn mapped(&self, id: SegmentId, columns: &[String]) -> Option<ReadySegment> {
        self.kept(id, columns, Mapped::is_touched)
    }

    /// The same whether its pages are in use or not: for those who read copies of a few of its bytes
    /// ([`ReadySegment::copy_now`]), and by their addresses none.
    pub fn known(&self, id: SegmentId, columns: &[String]) -> Option<ReadySegment> {
        self.kept(id, columns, Mapped::is_well)
    }

    fn kept(
        &self,
        id: SegmentId,
        columns: &[String],
        is_fit: impl Fn(&Mapped) -> bool,
    ) -> Option<ReadySegment> {
        let mut index = self.files.index();
        let is_it = |key: &FileKey| {
            let entry = index.get(key)?;
            let has_all = columns.iter().all(|c| entry.columns.contains(c));
            entry.map.as_ref().filter(|map| has_all && is_fit(map))
        };
        let key = index.files_of(id).into_iter().find(|key| is_it(key).is_some())?;
        index.touch(&key)?.map.as_ref().map(|map| map.ready())
    }

    /// Finds the wanted columns of a segment, mapping files that are not mapped yet (and checking every byte
    /// of those this process did not write, or that changed since). A file that does not verify is removed
    /// and counts as absent.
    pub fn find(&self, id: SegmentId, columns: &[String]) -> Found {
        let mut found = Found { missing: columns.to_vec(), ..Found::default() };
        let keys = self.files.index().files_of(id);
        for key in keys {
            let covers = self
                .files
                .index()
                .get(&key)
                .is_some_and(|e| found.missing.iter().any(|c| e.columns.contains(c)));
            if covers && let Some(part) = self.map(&key) {
                found.add(part);
            }
        }
        found
    }

    /// Has the kernel read the mapped files of a segment into memory, each in one go: on most disks that is
    /// faster than page by page as a reader touches them.
    pub fn populate(&self, id: SegmentId) {
        let maps: Vec<Arc<Mapped>> = {
            let index = self.files.index();
            index.files_of(id).iter().filter_map(|key| index.get(key)?.map.clone()).collect()
        };
        maps.iter().for_each(|map| map.populate());
    }

    /// Whether all these columns of a segment are held; of no columns, whether anything of it is. Touches
    /// neither disk nor recency.
    pub fn holds(&self, id: SegmentId, columns: &[String]) -> bool {
        self.files.index().holds(id, columns)
    }

    /// Writes columns of a segment and returns them ready to be read. When it does not store them, the disk
    /// cache is as before, and the bytes of the columns were not even looked at.
    #[tracing::instrument(level = "trace", skip_all)]
    pub fn write(&self, origin: &Origin, batch: &SegmentBatch, admit: Admit, role: Role) -> Result<Written> {
        let columns: Arc<[String]> = batch.schema().fields().iter().map(|f| f.name().clone()).collect();
        let key = FileKey::new(origin.id, &columns);
        let is_pinned = self.files.is_pinned(&origin.object);
        let admit = if is_pinned { Admit::Always } else { admit };
        let Some(_writing) = self.files.begin_writing(&key) else {
            self.counters().not_stored.fetch_add(1, Ordering::Relaxed);
            return Ok(Written::Refused(Refusal::Busy));
        };
        let unsealed = Unsealed::new(origin, batch)?;
        let file_bytes = unsealed.bytes();
        // Sealed only once there is room for it.
        let encoded = LazyCell::new(|| unsealed.seal());
        let raw = is_raw(&columns);
        let wanted = || Wanted { id: origin.id, raw, bytes: self.file_bytes(file_bytes), admit, role };
        let _expected = match self.files.expect(&origin.object, wanted()) {
            Ok(expected) => expected,
            Err(Refusal::NoRoom) => return Ok(self.no_room(origin, is_pinned)),
            Err(refusal) => return Ok(Written::Refused(refusal)),
        };
        // A directory that fails is set aside, so each is tried once; one whose disk is full a few times,
        // before it is left alone for a while.
        let (mut tries, mut failures) = (0, 0);
        while failures < self.files.dirs.all().len() && tries < TRIES * self.files.dirs.all().len() {
            tries += 1;
            let wanted = wanted();
            let reservation = match self.files.reserve(wanted, None) {
                Ok(reservation) => reservation,
                Err(Refusal::NoRoom) => break,
                Err(refusal) => return Ok(Written::Refused(refusal)),
            };
            match self.place(&key, &encoded, reservation) {
                Ok((mapped, reservation)) => {
                    let ready = mapped.ready();
                    self.pages.touch(&mapped);
                    let (object, replica) = (origin.object.clone(), role == Role::Replica);
                    let (checked, map) = (Some(mapped.stat.stamp.mark()), Some(mapped));
                    let entry = Entry { object, columns, replica, checked, map, ..Entry::default() };
                    self.files.add(key, entry, reservation);
                    self.counters().bytes_written.fetch_add(file_bytes, Ordering::Relaxed);
                    return Ok(Written::Stored(ready));
                }
                Err(e) => {
                    failures += usize::from(!is_full(&e));
                    self.files.index().quotas.release(reservation);
                    self.files.fault(reservation.dir, &e, Some(&reservation));
                    tracing::debug!(object = &*origin.object, error = %e, "a segment could not be written");
                }
            }
        }
        Ok(self.no_room(origin, is_pinned))
    }

    fn no_room(&self, origin: &Origin, is_pinned: bool) -> Written {
        self.counters().not_stored.fetch_add(1, Ordering::Relaxed);
        if is_pinned {
            self.pins.warn_full(&origin.object);
        }
        tracing::debug!(segment = %origin.id, "no room in the cache: served without storing");
        Written::Refused(Refusal::NoRoom)
    }

    /// Holds what lies under some prefixes to limits, in place of those of before. All beyond them leaves,
    /// but for files that are pinned or being read.
    pub fn set_prefix_limits(&self, limits: Vec<PrefixLimit>) {
        self.files.set_prefix_limits(limits);
    }

    /// Removes every segment of objects under a URI. Returns how many files and bytes went.
    pub fn free(&self, uri: &str) -> (u64, u64) {
        let keys = self.files.index().files_under(uri);
        self.remove_all(&keys)
    }

    /// Removes segments. Returns how many files and bytes went.
    pub fn free_segments(&self, ids: &[SegmentId]) -> (u64, u64) {
        let keys: Vec<_> = ids.iter().flat_map(|id| self.files.index().files_of(*id)).collect();
        self.remove_all(&keys)
    }

    fn remove_all(&self, keys: &[FileKey]) -> (u64, u64) {
        let mut gone = (0, 0);
        for key in keys {
            if let Some(bytes) = self.files.free(key) {
                gone = (gone.0 + 1, gone.1 + bytes);
            }
        }
        if gone.0 > 0 {
            self.files.dirs.wake();
        }
        gone
    }

    /// Tries directories that were set aside, looks for room on disks that are full, where that is due, and
    /// tries files that could not be removed. To be called every second or so. Waits for no directory that is
    /// tried: their attempts are returned.
    pub fn try_again(&self, now: Instant) -> Vec<Attempt<()>> {
        let begun = self.files.dirs.try_again(now, &self.filler);
        self.files.unlink_stuck(now);
        begun
    }

    /// Sets directories aside that hang, and gives their files up. Returns how many there are. To be called
    /// several times a second; does not wait for any disk.
    pub fn set_hung_aside(&self, now: Instant) -> usize {
        self.files.dirs.set_hung_aside(now, |dir| self.files.index().clear(dir))
    }

    /// Reads all files from the disk and checks them. `go_on` is told the bytes of each piece when that is
    /// read, and returns whether to go on, after a pause if need be.
    pub fn scrub(&self, go_on: impl FnMut(u64) -> bool) {
        scrub::scrub(&self.files, go_on);
    }

    /// The files as copies for other nodes.
    pub fn copies(&self) -> Copies<'_> {
        Copies(&self.files)
    }

    /// How many segments are held of each dataset that is counted.
    pub fn counts(&self) -> DatasetCounts<'_> {
        DatasetCounts(&self.files)
    }

    /// Small files beside the segments, in a folder of this name under each directory.
    pub fn sidecar(&self, area: &'static str) -> Sidecar {
        Sidecar { files: self.files.clone(), area }
    }

    /// Pins what lies under a URI, now and in future. Returns the files and bytes of it that are held.
    /// `Retry`, and nothing has changed, if no directory can keep the list.
    pub fn pin(&self, uri: &str) -> Result<(u64, u64)> {
        self.pins.pin(uri)
    }

    /// Unpins a URI; `NotFound` unless it was pinned, else as [`DiskCache::pin`].
    pub fn unpin(&self, uri: &str) -> Result<(u64, u64)> {
        self.pins.unpin(uri)
    }

    /// Pinned URIs, and the bytes of files under them. Does not touch the disk.
    pub fn pinned(&self) -> (Vec<String>, u64) {
        (self.files.pins().list(), self.files.index().pinned_bytes())
    }

    /// The directories. Does not touch the disk.
    pub fn dirs(&self) -> Vec<DirStatus> {
        let dirs: Vec<_> = self.files.dirs.all().iter().map(|dir| (dir, dir.health())).collect();
        let index = self.files.index();
        let dirs = dirs.into_iter().zip(0..).map(|((dir, health), i)| (dir, health, index.quotas.of(i)));
        dirs.map(|(dir, health, quota)| DirStatus {
            path: dir.path.clone(),
            health: match health {
                Health::Up if quota.is_lowered() => Health::Full,
                health => health,
            },
            used_bytes: quota.used_bytes,
            limit_bytes: quota.share_bytes(),
        })
        .collect()
    }

    /// How many of them have full disks.
    pub fn dirs_full(&self) -> u64 {
        self.dirs().iter().filter(|dir| dir.health == Health::Full).count() as u64
    }

    /// Bytes that can still be written without evicting anything, in all directories that can be written.
    /// Does not touch the disk.
    pub fn free_bytes(&self) -> u64 {
        self.free_of_dirs().iter().sum()
    }

    /// Whether files of these lengths can all be written without evicting anything, each where most room is:
    /// not in a directory that fails or is full, nor partly in one and partly in another, nor, where their
    /// object is known, under prefixes that may have no more. Does not touch the disk.
    pub fn has_room(&self, object: Option<&str>, files: impl IntoIterator<Item = u64>) -> bool {
        let mut free = self.free_of_dirs();
        let (growth, mut sum) = (self.files.dirs.folder_growth(), 0u64);
        let fit = files.into_iter().all(|bytes| {
            sum = sum.saturating_add(bytes).saturating_add(growth);
            let most = free.iter_mut().max();
            // The length may be one that another node made up.
            let left = most.and_then(|most| Some((most.checked_sub(bytes.checked_add(growth)?)?, most)));
            left.map(|(left, most)| *most = left).is_some()
        });
        let is_broken = |object| self.files.index().prefixes.broken_by(object, sum).is_some();
        fit && !object.is_some_and(is_broken)
    }

    /// Bytes in use on the disk: files, those being written and removed, folders. Does not touch the disk.
    pub fn used_bytes(&self) -> u64 {
        self.files.index().quotas.used_bytes()
    }

    /// Bytes that all directories may use together.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Bytes that files of objects under a URI may use together: no more than the disks turned out to have.
    pub fn limit_bytes_under(&self, uri: &str) -> u64 {
        let index = self.files.index();
        let all = index.quotas.of_disks(self.limit_bytes);
        index.prefixes.least_limit_bytes(uri).map_or(all, |least| least.min(all))
    }

    /// Number of segments of which something is held. Does not touch the disk.
    pub fn segments(&self) -> u64 {
        self.files.index().segments() as u64
    }

    /// The raw blocks among the files. Does not touch the disk.
    pub fn raw(&self) -> RawFiles {
        self.files.index().raw()
    }

    /// Bytes that raw blocks keep whatever else is read.
    pub fn raw_share_bytes(&self) -> u64 {
        self.files.evictor.raw_share_bytes()
    }

    /// Number of files held. Does not touch the disk.
    pub fn files(&self) -> u64 {
        self.files.index().len() as u64
    }

    /// Sums since start.
    pub fn counters(&self) -> &DiskCounters {
        &self.files.counters
    }

    /// Bytes to reserve for a file of this length.
    fn file_bytes(&self, bytes: u64) -> u64 {
        self.files.dirs.allocated_bytes(bytes) + self.files.dirs.folder_growth()
    }

    /// Of each directory that can be written the bytes that are free.
    fn free_of_dirs(&self) -> Vec<u64> {
        let writable = self.files.dirs.writable();
        let index = self.files.index();
        writable.into_iter().map(|dir| index.quotas.of(dir).free_bytes()).collect()
    }

    fn map(&self, key: &FileKey) -> Option<ReadySegment> {
        let (dir, kept, mut seen) =
            self.files.index().touch(key).map(|e| (e.dir(), e.map.clone(), e.seen()))?;
        let place = self.files.dirs.get(dir);
        let path = place.segment(key);
        if let Some(kept) = kept {
            if place.disk.stat_path(&path).is_ok_and(|now| kept.is_of(&now.stamp)) {
                self.pages.touch(&kept);
                return Some(kept.ready());
            }
            // Somebody changed it behind our back: only the file on the disk counts.
            self.files.index().drop_map(key, &kept);
            seen.checked = None;
        }
        let before = place.disk.stat_path(&path);
        match map::open(&place.disk, &path, seen.checked, &self.kept_files) {
            Ok(opened) => {
                let opened = Arc::new(opened);
                let (mapped, gone) = {
                    let mut index = self.files.index();
                    (index.keep_map(key, &opened), index.take_idle_maps())
                };
                drop((gone, opened));
                self.pages.touch(&mapped);
                Some(mapped.ready())
            }
            Err(e) => {
                // Unless another has taken its name meanwhile: evicted, and filled again.
                let now = place.disk.stat_path(&path);
                let is_another = now.is_ok_and(|now| match before {
                    Ok(before) => !now.stamp.is_same_file(&before.stamp),
                    Err(e) => e.kind() == io::ErrorKind::NotFound,
                });
                if !is_another {
                    self.files.discard(key, dir, &path, e, |entry| entry.seen() == seen);
                }
                None
            }
        }
    }

    /// Writes a file where space is reserved, and counts what its folders grew by.
    fn place(
        &self,
        key: &FileKey,
        encoded: &Encoded,
        mut reservation: Reservation,
    ) -> io::Result<(Arc<Mapped>, Reservation)> {
        let dir = self.files.dirs.get(reservation.dir);
        let path = dir.segment(key);
        let mut parts: Vec<IoSlice<'_>> = encoded.0.iter().map(|piece| IoSlice::new(piece)).collect();
        let stat = dir.place(&path, &mut parts, false)?;
        let placed = (|| -> io::Result<_> {
            let checked = Some(stat.stamp.mark());
            let mapped = map::open(&dir.disk, &path, checked, &self.kept_files).map_err(|e| match e {
                Unreadable::Disk(e) => e,
                other => io::Error::other(other.to_string()),
            })?;
            Ok((self.files.dirs.measure(reservation.dir)?, mapped))
        })();
        if placed.is_err() {
            dir.disk.remove(&path).ok();
        }
        let (folders, mapped) = placed?;
        let mut index = self.files.index();
        let quotas = &mut index.quotas;
        if quotas.is_valid(&reservation) {
            // It may take more than was reserved: that counts too, and the next file goes without.
            let allocated = self.files.dirs.allocated_bytes(encoded.bytes()).max(stat.allocated_bytes);
            quotas.resize(&mut reservation, allocated);
            quotas.fitted(reservation.dir);
            quotas.set_folders(reservation.dir, folders);
        }
        Ok((Arc::new(mapped), reservation))
    }
}
