//! One cache directory: its paths, its health, its lock, and the probe that tells whether it works.

use super::full_disk::{FullDisk, is_full};
use crate::disk::file::FileKey;
use crate::disk::file_system::{Disk, Stat};
use crate::disk::underway::DiskOperations;
use crate::disk::watch::{PULSE_FILE, WatchedDisk};
use forebay_proto::{Backoff, Error, Kind, Result};
use parking_lot::{Mutex, MutexGuard};
use std::fs::{File, TryLockError};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Folders that segment files are spread over, by the first digit of their names.
pub const SHARDS: [&str; 16] =
    ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "a", "b", "c", "d", "e", "f"];

/// Bounds of the pauses between probes.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// How often a full disk is looked at for room.
const ROOM_EVERY: Duration = Duration::from_secs(1);

/// Bytes of the pulse.
const PULSE_BYTES: usize = 512;

/// How often one who waits for a directory's state looks whether its disk still answers.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It works.
    Up,
    /// Its disk is full though our limit is not reached, and something else takes the room that files leave:
    /// it is read, and not written for a while.
    Full,
    /// It failed: its files count as absent.
    Away,
}

/// A cache directory: whether it works, and the operations under way on its disk.
#[derive(Debug)]
pub struct Dir {
    pub path: PathBuf,
    pub disk: Arc<dyn Disk>,
    /// Changed with `state` locked, which may take long, unless it hangs: looking need not wait. Locked
    /// before the index where both are.
    health: Mutex<Health>,
    names: AtomicU64,
    state: Mutex<DirState>,
    underway: Arc<DiskOperations>,
    /// It was set aside as it hangs: the thread that holds its state may hang too.
    is_hung: AtomicBool,
    /// Whether a thread tries it, which may hang.
    is_tried: Arc<AtomicBool>,
    /// Folders of which a file here needs a name, which may not be on the medium yet.
    unsynced: Mutex<Vec<PathBuf>>,
}

/// The right of one thread to try a directory, until it is dropped.
#[derive(Debug)]
pub struct DirTurn(Arc<AtomicBool>);

impl Drop for DirTurn {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// What changes when a directory is set aside or comes back.
#[derive(Debug)]
pub struct DirState {
    /// Locked while this process uses the directory.
    lock: Option<File>,
    next_probe: Option<Instant>,
    backoff: Backoff,
    /// Its disk, if that is full before the limit is reached.
    pub full: Option<FullDisk>,
}

impl Dir {
    /// A directory that is not used yet: one that is to be tried at once.
    pub fn new(path: PathBuf, disk: Arc<dyn Disk>) -> Self {
        let backoff = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
        let state = DirState { lock: None, next_probe: Some(Instant::now()), backoff, full: None };
        let health = Mutex::new(Health::Away);
        let underway = Arc::<DiskOperations>::default();
        let disk = Arc::new(WatchedDisk { disk, underway: underway.clone() });
        let (names, state, is_hung) = (AtomicU64::new(0), Mutex::new(state), AtomicBool::new(false));
        let (is_tried, unsynced) = (Arc::default(), Mutex::default());
        Self { path, disk, health, names, state, underway, is_hung, is_tried, unsynced }
    }

    pub fn health(&self) -> Health {
        *self.health.lock()
    }

    /// Locks the directory's health: it is neither set aside nor taken back meanwhile, unless it hangs.
    pub fn state(&self) -> MutexGuard<'_, DirState> {
        self.state.lock()
    }

    /// The same; `None` where the thread that has it waits for a disk which hangs.
    pub fn state_unless_stuck(&self) -> Option<MutexGuard<'_, DirState>> {
        loop {
            match self.state.try_lock_for(LOOK_EVERY) {
                None if self.is_stuck(Instant::now()) => return None,
                None => {}
                state => return state,
            }
        }
    }

    /// The right to try the directory; `None` while another thread does.
    pub fn begin(&self) -> Option<DirTurn> {
        let was_tried = self.is_tried.swap(true, Ordering::Acquire);
        (!was_tried).then(|| DirTurn(self.is_tried.clone()))
    }

    /// The folder of segment files whose name begins so.
    pub fn shard(&self, name: &str) -> PathBuf {
        self.path.join("v1/segments").join(&name[..1])
    }

    pub fn segment(&self, key: &FileKey) -> PathBuf {
        let name = key.file_name();
        self.shard(&name).join(name)
    }

    /// A path for a file being written.
    pub fn tmp(&self) -> PathBuf {
        let n = self.names.fetch_add(1, Ordering::Relaxed);
        self.path.join("v1/tmp").join(format!("{}.{n}", std::process::id()))
    }

    /// Writes a file under a temporary name and renames it. Returns the stat of the written file. What must
    /// survive a power loss is flushed (`is_flushed`) before it takes its name, and the name after that.
    pub fn place(&self, path: &Path, parts: &mut [IoSlice<'_>], is_flushed: bool) -> io::Result<Stat> {
        let tmp = self.tmp();
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let written = (|| {
            let mut file = self.disk.create(&tmp, bytes as u64)?;
            self.disk.write(&mut file, parts)?;
            if is_flushed {
                self.disk.sync(&file)?;
            }
            self.disk.rename(&tmp, path)?;
            if is_flushed {
                self.sync_name(path)?;
            }
            self.disk.stat(&file)
        })();
        if written.is_err() {
            self.disk.remove(&tmp).ok();
        }
        written
    }

    /// Has the name of a file survive a power loss, and those of the folders that were made for it.
    fn sync_name(&self, path: &Path) -> io::Result<()> {
        let made = self.unsynced.lock().clone();
        let folders = path.parent().into_iter().chain(made.iter().map(PathBuf::as_path));
        for folder in folders {
            match self.disk.sync_dir(folder) {
                // Another's, in which we may make names, but which we may not open.
                Err(e) if is_denied(&e) && !folder.starts_with(&self.path) => {}
                synced => synced?,
            }
        }
        self.unsynced.lock().retain(|folder| !made.contains(folder));
        Ok(())
    }

    /// A small file's content.
    pub fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let file = self.disk.open(path)?;
        let mut content = vec![0; self.disk.stat(&file)?.stamp.bytes as usize];
        let got = self.disk.read(&file, &mut content, 0)?;
        content.truncate(got);
        Ok(content)
    }

    /// Whether it works: writes a small file, flushes it, reads it back and removes it. It works too where
    /// the disk is full: then it returns the error that says so.
    pub fn probe(&self) -> io::Result<Option<io::Error>> {
        let list = || self.disk.list(&self.path.join("v1/segments"));
        match self.write_and_read() {
            Err(e) if is_full(&e) => list().map(|_| Some(e)),
            Err(e) => Err(e),
            Ok(()) => list().map(|_| None),
        }
    }

    fn write_and_read(&self) -> io::Result<()> {
        const TEXT: &[u8] = b"forebay: does this disk work?";
        let path = self.tmp();
        let probed = (|| {
            let mut file = self.disk.create(&path, TEXT.len() as u64)?;
            self.disk.write(&mut file, &mut [IoSlice::new(TEXT)])?;
            self.disk.sync(&file)?;
            let mut back = [0; TEXT.len()];
            let got = self.disk.read(&self.disk.open(&path)?, &mut back, 0)?;
            match got == TEXT.len() && back == TEXT {
                true => Ok(()),
                false => Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "it reads back other bytes than were written",
                )),
            }
        })();
        let removed = self.disk.remove(&path);
        probed.and(removed)
    }

    /// Makes the directory's folders, takes its lock, checks that it can be written, empties `tmp`.
    fn prepare(&self, state: &mut DirState) -> Result<()> {
        // A lock of ours on the same file would stand in our own way.
        state.lock = None;
        let fail = |what: &str, e: io::Error| self.refusal(what, e);
        let is_new = self.expect_to_sync();
        for shard in SHARDS {
            self.disk.make_dir(&self.shard(shard)).map_err(|e| fail("cannot be made", e))?;
        }
        if is_new {
            tracing::info!(dir = %self.path.display(), "this cache directory did not exist: it is made");
        }
        let path = self.path.join("lock");
        let lock = self.disk.create(&path, 0).map_err(|e| fail("cannot be written", e))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::invalid(format!(
                    "cache directory {} is used by another server: give each its own --cache-dir",
                    self.path.display()
                )));
            }
            Err(TryLockError::Error(e)) => return Err(fail("cannot be locked", e)),
        }
        let tmp = self.path.join("v1/tmp");
        self.disk.make_dir(&tmp).map_err(|e| fail("cannot be written", e))?;
        for name in self.disk.list(&tmp).map_err(|e| fail("cannot be listed", e))? {
            self.disk.remove(&tmp.join(name)).map_err(|e| fail("cannot be cleaned", e))?;
        }
        match self.make_pulse() {
            // A full disk can be read without.
            Err(e) if !is_full(&e) => return Err(fail("cannot be written", e)),
            _ => {}
        }
        state.lock = Some(lock);
        Ok(())
    }

    /// Writes the file of the pulse, unless it is there: on a full disk there may be no room for it again.
    pub fn make_pulse(&self) -> io::Result<()> {
        let path = self.path.join(PULSE_FILE);
        let is_whole = |stat: &Stat| stat.stamp.bytes == PULSE_BYTES as u64 && stat.allocated_bytes > 0;
        if self.disk.stat_path(&path).is_ok_and(|stat| is_whole(&stat)) {
            return Ok(());
        }
        let mut pulse = self.disk.create(&path, 0)?;
        self.disk.write(&mut pulse, &mut [IoSlice::new(&[b'.'; PULSE_BYTES])])
    }

    /// Notes the folders whose names a file in the directory needs, up to the one that is there already.
    /// Returns whether the directory itself is to be made.
    fn expect_to_sync(&self) -> bool {
        let mut folders = Vec::new();
        for folder in self.path.ancestors() {
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            folders.push(folder.to_owned());
            let stat = self.disk.stat_path(folder);
            if !stat.is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
                break;
            }
        }
        let is_new = folders.len() > 1;
        let mut unsynced = self.unsynced.lock();
        folders.retain(|folder| !unsynced.contains(folder));
        unsynced.extend(folders);
        is_new
    }

    /// Whether its disk does not answer, while something is asked of it. Does not wait for the disk.
    pub fn is_stuck(&self, now: Instant) -> bool {
        let (disk, pulse) = (self.disk.clone(), self.path.join(PULSE_FILE));
        // An error is an answer.
        let look = move || drop(disk.read_medium(&pulse));
        self.underway.hangs(look, now)
    }

    /// Sets it aside without its state, as it hangs; false if it is already. `lost` is called before it may
    /// come back.
    pub fn set_hung(&self, lost: impl FnOnce()) -> bool {
        let mut health = self.health.lock();
        let is_first = *health != Health::Away;
        if is_first {
            *health = Health::Away;
            self.is_hung.store(true, Ordering::Relaxed);
            lost();
        }
        is_first
    }

    /// Sets it aside; false if it is already.
    pub fn set_aside(&self, state: &mut DirState) -> bool {
        if std::mem::replace(&mut *self.health.lock(), Health::Away) == Health::Away {
            return false;
        }
        (state.lock, state.full) = (None, None);
        state.backoff.reset();
        state.next_probe = Some(Instant::now() + state.backoff.next());
        true
    }

    /// Notes that its disk is full. False if that was known, or if it was set aside meanwhile.
    pub fn set_full(&self, state: &mut DirState, disk: FullDisk) -> bool {
        let mut health = self.health.lock();
        if *health == Health::Away {
            return false;
        }
        *health = if disk.rests() { Health::Full } else { Health::Up };
        state.next_probe = Some(Instant::now() + ROOM_EVERY);
        state.full.replace(disk).is_none()
    }

    /// Takes it into use, or leaves it full if its disk rests; false if its health is another than it `was`
    /// when that was tried.
    pub fn set_up(&self, state: &mut DirState, was: Health, now: Instant) -> bool {
        let mut health = self.health.lock();
        if *health != was {
            return false;
        }
        let rests = state.full.is_some_and(|disk| disk.rests());
        *health = if rests { Health::Full } else { Health::Up };
        self.is_hung.store(false, Ordering::Relaxed);
        state.next_probe = state.full.map(|_| now + ROOM_EVERY);
        true
    }

    /// Whether its next probe is due, or a look for room on its disk.
    pub fn is_due(&self, now: Instant) -> bool {
        if self.underway.is_looking() {
            return false;
        }
        let is_hung = self.is_hung.load(Ordering::Relaxed);
        // Who holds it tries the disk, and may hang.
        let Some(state) = self.state.try_lock() else { return false };
        state.next_probe.map_or(is_hung, |at| at <= now)
    }

    /// Puts the next probe off.
    pub fn postpone(&self, state: &mut DirState, now: Instant) {
        state.next_probe = Some(now + state.backoff.next());
    }

    /// Tries to use a directory that was away. An error says why not. Returns the error of a disk that is
    /// full: such a directory can be used.
    pub fn retry(&self, state: &mut DirState) -> Result<Option<io::Error>> {
        self.prepare(state)?;
        self.probe().map_err(|e| self.refusal("does not work", e))
    }

    /// Why the directory cannot be used of which nothing comes back.
    pub fn no_answer(&self) -> Error {
        let dir = self.path.display();
        Error::denied(format!(
            "cache directory {dir}: its disk does not answer; choose another with --cache-dir"
        ))
    }

    /// Why the directory cannot be used.
    pub fn refusal(&self, what: &str, e: io::Error) -> Error {
        let (kind, advice) = match is_full(&e) {
            true => (Kind::Full, "free room there, or choose another"),
            false => (Kind::Denied, "choose another"),
        };
        let dir = self.path.display();
        Error::new(kind, format!("cache directory {dir}: {what}: {e}; {advice} with --cache-dir"))
    }
}

fn is_denied(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::PermissionDenied
}
