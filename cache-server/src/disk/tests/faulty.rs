//! A disk that fails on purpose: a wrapper around the real one, with a seed.

use super::*;
use file_system::{Disk, Stat};
use parking_lot::Condvar;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize};

/// What goes wrong in a directory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Wrong {
    Nothing,
    /// Every operation.
    All(i32),
    /// Writing only.
    Writes(i32),
    /// This share of all operations, in 1/1000.
    Some(u32, i32),
    /// Everything from this operation on, as if the process had been killed there.
    From(u64),
}

pub const EIO: i32 = 5;
pub const EACCES: i32 = 13;
pub const ENOSPC: i32 = 28;
pub const EDQUOT: i32 = 122;

/// A disk, or the quota of a user, that has this number of bytes for a directory.
#[derive(Debug, Clone)]
pub struct DiskRoom {
    pub dir: PathBuf,
    pub bytes: u64,
    /// What a write beyond them fails with. Of a quota the file system calls free what it has in all.
    pub code: i32,
    /// Whether room can be had before a file is written.
    pub allocates: bool,
    /// Whether somebody else takes at once what a removed file leaves.
    pub is_taken: bool,
}

/// Something that somebody else does, once, at a certain moment.
#[derive(Default)]
pub struct Meanwhile(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Meanwhile {
    pub fn set(&self, happens: impl FnOnce() + Send + 'static) {
        *self.0.lock() = Some(Box::new(happens));
    }

    fn happens(&self) {
        let happens = self.0.lock().take();
        happens.into_iter().for_each(|happens| happens());
    }
}

impl std::fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meanwhile")
    }
}

/// Directories whose disks do not answer.
#[derive(Debug, Default)]
pub struct Hanging {
    dirs: Mutex<Vec<PathBuf>>,
    answers: Condvar,
    waiting: AtomicUsize,
}

impl Hanging {
    /// From now on these hang, and no others.
    pub fn set(&self, dirs: &[&Path]) {
        *self.dirs.lock() = dirs.iter().map(|dir| dir.to_path_buf()).collect();
        self.answers.notify_all();
    }

    /// How many operations wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    fn pass(&self, path: &Path) {
        let mut dirs = self.dirs.lock();
        while dirs.iter().any(|dir| path.starts_with(dir)) {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            self.answers.wait(&mut dirs);
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn pass_file(&self, file: &File) {
        if !self.dirs.lock().is_empty() {
            self.pass(&fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap());
        }
    }
}

/// What a loss of power may take: files that had their names before their content was on the medium, and
/// names that are not on the medium since their folder was not synced.
#[derive(Debug, Default)]
pub struct Unflushed {
    inodes: Mutex<HashSet<u64>>,
    named: Mutex<Vec<PathBuf>>,
    names: Mutex<HashSet<PathBuf>>,
}

impl Unflushed {
    pub fn has(&self, path: &Path) -> bool {
        let is_empty = self.named.lock().iter().any(|named| named == path);
        is_empty || self.names.lock().iter().any(|name| path.starts_with(name))
    }

    /// The power is lost.
    pub fn lose(&self) {
        let files = std::mem::take(&mut *self.named.lock());
        let names = std::mem::take(&mut *self.names.lock());
        for lost in files.into_iter().chain(names) {
            fs::remove_file(&lost).or_else(|_| fs::remove_dir_all(&lost)).ok();
        }
    }

    fn made(&self, folders: Vec<PathBuf>) {
        self.names.lock().extend(folders);
    }

    fn synced_dir(&self, folder: &Path) {
        self.names.lock().retain(|name| name.parent() != Some(folder));
    }

    fn created(&self, file: File) -> io::Result<File> {
        self.inodes.lock().insert(file.metadata()?.ino());
        Ok(file)
    }

    fn synced(&self, file: &File) -> io::Result<()> {
        self.inodes.lock().remove(&file.metadata()?.ino());
        Ok(())
    }

    fn renamed(&self, to: &Path) {
        // It may be gone again.
        let inode = std::fs::metadata(to).map(|file| file.ino());
        let is_unflushed = inode.is_ok_and(|inode| self.inodes.lock().contains(&inode));
        let mut named = self.named.lock();
        named.retain(|path| path != to);
        named.extend(is_unflushed.then(|| to.to_owned()));
        self.names.lock().insert(to.to_owned());
    }
}

/// The real disk, with something wrong in the directory that it is told.
#[derive(Debug)]
pub struct Faulty {
    wrong: Mutex<(PathBuf, Wrong)>,
    pub room: Mutex<Option<DiskRoom>>,
    seed: AtomicU64,
    pub operations: AtomicU64,
    /// Bytes of the blocks in which it hands out disk, and of those that it says it does.
    pub blocks: AtomicU64,
    pub said_blocks: AtomicU64,
    /// After a file was to be opened, before one is read, before one is on the medium, and before one is
    /// removed.
    pub after_open: Meanwhile,
    pub before_read: Meanwhile,
    pub before_sync: Meanwhile,
    pub before_remove: Meanwhile,
    pub unflushed: Unflushed,
    pub hanging: Hanging,
}

impl Faulty {
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            wrong: Mutex::new((PathBuf::new(), Wrong::Nothing)),
            room: Mutex::default(),
            seed: AtomicU64::new(seed),
            operations: AtomicU64::new(0),
            blocks: AtomicU64::new(BLOCK_BYTES),
            said_blocks: AtomicU64::new(BLOCK_BYTES),
            after_open: Meanwhile::default(),
            before_read: Meanwhile::default(),
            before_sync: Meanwhile::default(),
            before_remove: Meanwhile::default(),
            unflushed: Unflushed::default(),
            hanging: Hanging::default(),
        })
    }

    pub fn set(&self, dir: &Path, wrong: Wrong) {
        *self.wrong.lock() = (dir.to_owned(), wrong);
    }

    /// The room of the directory that a path lies in, and the bytes in use there.
    fn room_of(&self, path: &Path) -> Option<(DiskRoom, u64)> {
        let room = self.room.lock().clone().filter(|room| path.starts_with(&room.dir))?;
        let used = disk_bytes(&room.dir);
        Some((room, used))
    }

    /// Has a file of a directory take bytes, of which it may have some.
    fn take(&self, path: &Path, bytes: u64) -> io::Result<()> {
        let Some((room, used)) = self.room_of(path).filter(|_| bytes > 0) else { return Ok(()) };
        let own = fs::metadata(path).map_or(0, |file| file.blocks() * 512);
        match used - own.min(used) + bytes.next_multiple_of(BLOCK_BYTES).max(own) > room.bytes {
            true => Err(io::Error::from_raw_os_error(room.code)),
            false => Ok(()),
        }
    }

    /// With files in its blocks.
    fn swollen(&self, mut stat: Stat) -> Stat {
        if !stat.is_dir {
            stat.allocated_bytes = stat.allocated_bytes.next_multiple_of(self.blocks.load(Ordering::Relaxed));
        }
        stat
    }

    /// Weyl's sequence, hashed: a number for each operation.
    fn roll(&self) -> u32 {
        let n = self.seed.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        (forebay_proto::hash::xxh3_64(&n.to_le_bytes()) % 1000) as u32
    }

    fn check(&self, path: Option<&Path>, writes: bool) -> io::Result<()> {
        path.into_iter().for_each(|path| self.hanging.pass(path));
        let (dir, wrong) = self.wrong.lock().clone();
        let done = self.operations.fetch_add(1, Ordering::Relaxed);
        // What has no path is an open file: of a directory that fails as a whole, or not.
        if path.is_some_and(|p| !p.starts_with(&dir)) {
            return Ok(());
        }
        match wrong {
            Wrong::All(code) if path.is_some() => Err(io::Error::from_raw_os_error(code)),
            Wrong::Writes(code) if writes && path.is_some() => Err(io::Error::from_raw_os_error(code)),
            Wrong::From(operation) if done >= operation => Err(io::Error::from_raw_os_error(EIO)),
            Wrong::Some(share, code) if self.roll() < share => Err(io::Error::from_raw_os_error(code)),
            _ => Ok(()),
        }
    }
}

impl Disk for Faulty {
    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.check(Some(path), true)?;
        let new: Vec<_> = path.ancestors().take_while(|path| !path.exists()).map(Path::to_owned).collect();
        RealDisk.make_dir(path)?;
        self.unflushed.made(new);
        Ok(())
    }
    fn create(&self, path: &Path, bytes: u64) -> io::Result<File> {
        self.check(Some(path), true)?;
        let is_early = self.room.lock().as_ref().is_none_or(|room| room.allocates);
        let bytes = if is_early { bytes } else { 0 };
        // A file that finds no room is there all the same, without any.
        RealDisk.create(path, 0)?;
        self.take(path, bytes)?;
        RealDisk.create(path, bytes).and_then(|file| self.unflushed.created(file))
    }
    fn write(&self, file: &mut File, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        self.hanging.pass_file(file);
        if let Err(e) = self.check(None, true) {
            // Half of it is written all the same.
            let half = parts.len() / 2;
            RealDisk.write(file, &mut parts[..half]).ok();
            return Err(e);
        }
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        self.take(&path, bytes as u64)?;
        RealDisk.write(file, parts)
    }
    fn sync(&self, file: &File) -> io::Result<()> {
        self.before_sync.happens();
        self.hanging.pass_file(file);
        self.check(None, true).and_then(|()| RealDisk.sync(file)).and_then(|()| self.unflushed.synced(file))
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.check(Some(path), true).and_then(|()| RealDisk.sync_dir(path))?;
        self.unflushed.synced_dir(path);
        Ok(())
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check(Some(from), true).and_then(|()| RealDisk.rename(from, to))?;
        self.unflushed.renamed(to);
        Ok(())
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.before_remove.happens();
        self.check(Some(path), true).and_then(|()| RealDisk.remove(path))?;
        if let Some(room) = self.room.lock().as_mut().filter(|room| room.is_taken) {
            room.bytes = room.bytes.min(disk_bytes(&room.dir));
        }
        Ok(())
    }
    fn open(&self, path: &Path) -> io::Result<File> {
        let opened = self.check(Some(path), false).and_then(|()| RealDisk.open(path));
        self.after_open.happens();
        opened
    }
    fn open_direct(&self, path: &Path) -> io::Result<File> {
        self.check(Some(path), false).and_then(|()| RealDisk.open_direct(path))
    }
    fn read(&self, file: &File, into: &mut [u8], at: u64) -> io::Result<usize> {
        self.before_read.happens();
        self.hanging.pass_file(file);
        self.check(None, false).and_then(|()| RealDisk.read(file, into, at))
    }
    fn stat(&self, file: &File) -> io::Result<Stat> {
        self.hanging.pass_file(file);
        self.check(None, false).and_then(|()| RealDisk.stat(file)).map(|stat| self.swollen(stat))
    }
    fn stat_path(&self, path: &Path) -> io::Result<Stat> {
        let stat = self.check(Some(path), false).and_then(|()| RealDisk.stat_path(path));
        stat.map(|stat| self.swollen(stat))
    }
    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.check(Some(path), false).and_then(|()| RealDisk.list(path))
    }
    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        self.check(Some(path), false)?;
        match self.room_of(path) {
            Some((room, used)) if room.code == ENOSPC => Ok(room.bytes.saturating_sub(used)),
            _ => RealDisk.free_bytes(path),
        }
    }
    fn read_medium(&self, path: &Path) -> io::Result<()> {
        self.hanging.pass(path);
        RealDisk.read_medium(path)
    }
    fn block_bytes(&self, _: &Path) -> io::Result<u64> {
        Ok(self.said_blocks.load(Ordering::Relaxed))
    }
}

/// Two directories on a disk that may fail.
pub struct Two {
    pub one: tempfile::TempDir,
    pub two: tempfile::TempDir,
    pub disk: Arc<Faulty>,
}

impl Two {
    pub fn new(seed: u64) -> Self {
        let dir = || tempfile::tempdir().unwrap();
        Self { one: dir(), two: dir(), disk: Faulty::new(seed) }
    }

    pub fn open(&self, files: u64) -> Result<DiskCache> {
        let dirs = vec![self.one.path().to_owned(), self.two.path().to_owned()];
        let limit_bytes = 2 * limit_for(files, file_bytes(50, &["a"]));
        let settings = DiskCacheSettings {
            dirs,
            limit_bytes,
            raw_share: 0.25,
            maps_bytes: u64::MAX,
            kept_files: 4,
            start_patience: Duration::from_millis(200),
            disk: self.disk.clone(),
        };
        DiskCache::open(&settings, Arc::new(NoForecast))
    }
}
