//! The cache directories: which work, which are set aside, how those come back, and what files take up in
//! them.
//!
//! A directory whose operations fail is probed at once (write, flush, read back, remove a small file). If
//! that works, only the one file was at fault; if not, the directory is set aside: its files count as absent,
//! and it is probed again and again, at growing intervals, until it works. One whose disk is full is used
//! with what it holds: its limit is lowered to that, and rises as room comes back.
//!
//! A directory is tried by a thread of its own, one at a time: its disk may hang, and then the thread is left
//! to itself, and nothing else waits for it.

mod attempt;
mod dir;
mod full_disk;

use super::counters::DiskCounters;
use super::file_system::Disk;
use super::watch::PULSE_FILE;
pub use attempt::Attempt;
use dir::DirState;
pub use dir::{Dir, Health, SHARDS};
use forebay_proto::{Error, Kind, Result};
use full_disk::FullDisk;
pub use full_disk::is_full;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The blocks that file systems hand out, unless they say that theirs are larger.
pub const BLOCK_BYTES: u64 = 4096;

/// Blocks that folders may grow by when a file is added: one each for `tmp` and the file's folder, and one
/// more where that splits.
pub const FOLDER_GROWTH_BLOCKS: u64 = 3;

/// A directory, as others are told of it.
#[derive(Debug, Clone)]
pub struct DirStatus {
    pub path: PathBuf,
    pub health: Health,
    pub used_bytes: u64,
    /// Its share of the limit, of which its disk may have less.
    pub limit_bytes: u64,
}

/// Work that is left for when a directory is in use.
pub type Settle = Box<dyn FnOnce() + Send>;

/// Knows the files of directories, and hears of those that were tried.
pub trait Filler: std::fmt::Debug + Send + Sync {
    /// Takes the files of a directory into the index, last of all, as readers find them there at once. Work
    /// that is left then may wait for the disk; it is returned.
    fn fill(&self, dir: usize) -> Result<Settle>;

    /// Has a directory use no more than it does, as its disk is full. Returns as
    /// [`Quotas::lower`](super::quota::Quotas::lower) does.
    fn lower(&self, dir: usize) -> u32;

    /// Has it use more again, if that matters and the disk `has_room`. Returns whether its limit is whole.
    fn raise(&self, dir: usize, more_bytes: u64, has_room: &dyn Fn() -> bool) -> bool;

    /// Hears what came of an attempt at a directory that was set aside.
    fn tried(&self, dir: usize, tried: Result<()>);
}

/// The cache directories, by number.
#[derive(Debug)]
pub struct Dirs {
    dirs: Vec<Dir>,
    /// The largest block of all directories' file systems.
    block_bytes: AtomicU64,
    counters: Arc<DiskCounters>,
}

impl Dirs {
    pub fn new(paths: &[PathBuf], disk: &Arc<dyn Disk>, counters: Arc<DiskCounters>) -> Self {
        let dirs = paths.iter().map(|path| Dir::new(path.clone(), disk.clone())).collect();
        Self { dirs, block_bytes: AtomicU64::new(BLOCK_BYTES), counters }
    }

    pub fn all(&self) -> &[Dir] {
        &self.dirs
    }

    pub fn get(&self, dir: usize) -> &Dir {
        &self.dirs[dir]
    }

    /// Directories that work, but for those whose disks are full and must be left alone.
    pub fn writable(&self) -> Vec<usize> {
        (0..self.dirs.len()).filter(|dir| self.dirs[*dir].health() == Health::Up).collect()
    }

    /// Takes all directories into use. Those that fail or hang are set aside; only when all do it is an
    /// error, for which those that hang have `patience`.
    pub fn start(self: &Arc<Self>, filler: &Arc<dyn Filler>, patience: Duration) -> Result<()> {
        let now = Instant::now();
        let begun = self.on_each(patience, |dir| {
            let (dirs, theirs, late) = (self.clone(), filler.clone(), filler.clone());
            let work = move || dirs.attempt(dir, now, &*theirs).map(drop);
            (work, move |tried: Result<()>| late.tried(dir, tried))
        });
        let errors: Vec<Error> = begun.into_iter().filter_map(Result::err).collect();
        if errors.len() == self.dirs.len() {
            let kind = errors.first().map_or(Kind::Invalid, |e| e.kind);
            let all: Vec<&str> = errors.iter().map(|e| e.message.as_str()).collect();
            return Err(Error::new(kind, all.join("; ")));
        }
        for e in errors {
            self.counters.dir_faults.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(error = %e, "a cache directory is set aside: the others take its place until it works");
        }
        Ok(())
    }

    /// Does something in all directories at once, and waits for what comes of it. A directory that hangs is
    /// given up, which is an error, as soon as another one has answered, or after `patience`; the second
    /// function hears what came of it in the end. One that still hangs since an earlier call is given up at
    /// once.
    pub fn on_each<T, W, L>(&self, patience: Duration, of: impl Fn(usize) -> (W, L)) -> Vec<Result<T>>
    where
        T: Send + 'static,
        W: FnOnce() -> Result<T> + Send + 'static,
        L: FnOnce(Result<T>) + Send + 'static,
    {
        let (mut begun, mut all) = (Vec::new(), Vec::new());
        for (i, dir) in self.dirs.iter().enumerate() {
            let Some(turn) = dir.begin() else {
                all.push((i, Err(dir.no_answer())));
                continue;
            };
            let (work, late) = of(i);
            let work = move || {
                let done = work();
                drop(turn);
                done
            };
            match Attempt::begin(work, late) {
                Ok(attempt) => begun.push((i, attempt)),
                Err(e) => all.push((i, Err(dir.refusal("cannot be tried", e)))),
            }
        }
        let hangs = |dir: usize, now| self.dirs[dir].is_stuck(now);
        for (i, done) in attempt::results(begun, patience, hangs) {
            all.push((i, done.unwrap_or_else(|| Err(self.dirs[i].no_answer()))));
        }
        all.sort_by_key(|(i, _)| *i);
        all.into_iter().map(|(_, done)| done).collect()
    }

    /// Decides what an operation that failed says of its directory: nothing if the directory works all the
    /// same, else it is set aside. `lost` is called, before the directory may come back, if its files count
    /// as absent from now on. Where the disk is full, `lower` has it use no more than it does.
    pub fn fault(
        &self,
        dir: usize,
        e: &io::Error,
        wanted_bytes: u64,
        lower: impl FnOnce() -> u32,
        lost: impl FnOnce(),
    ) {
        let place = &self.dirs[dir];
        // One that is coming back is not waited for.
        if is_of_process(e) || place.health() == Health::Away {
            return;
        }
        let mut state = place.state();
        if place.health() == Health::Away {
            return;
        }
        // One that hangs meanwhile is away, and stays so whatever comes of the probe in the end.
        let probed = if is_full(e) { Ok(None) } else { place.probe() };
        match probed {
            Ok(None) if !is_full(e) => {}
            Ok(full) => {
                let disk = self.full_disk(dir, wanted_bytes, lower);
                if place.set_full(&mut state, disk) {
                    self.tell_full(dir, full.as_ref().unwrap_or(e));
                }
            }
            Err(_) if place.set_aside(&mut state) => {
                self.counters.dir_faults.fetch_add(1, Ordering::Relaxed);
                lost();
                tracing::warn!(dir = %place.path.display(), error = %e, "a cache directory fails and is set aside: it is tried again until it works");
            }
            Err(_) => {}
        }
    }

    /// The disk of a directory, which had no room for some bytes, as it is now.
    fn full_disk(&self, dir: usize, wanted_bytes: u64, lower: impl FnOnce() -> u32) -> FullDisk {
        let place = &self.dirs[dir];
        // Looked at before others may take what it calls free.
        let free_bytes = place.disk.free_bytes(&place.path).unwrap_or(0);
        let disk = FullDisk::new(Instant::now(), free_bytes, wanted_bytes, lower());
        if disk.rests() {
            tracing::debug!(dir = %place.path.display(), "the disk is full again though files left: nothing is written there for a while");
        }
        disk
    }

    fn tell_full(&self, dir: usize, e: &io::Error) {
        self.counters.dir_faults.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(dir = %self.dirs[dir].path.display(), error = %e, "the disk of a cache directory is full below its limit: it may hold no more than now, and what has no room there could not be stored; free room there, or lower --cache-bytes");
    }

    /// Has directories be written again whose disks must be left alone as they are full: files were removed.
    pub fn wake(&self) {
        for place in &self.dirs {
            if place.health() != Health::Full {
                continue;
            }
            let Some(mut state) = place.state_unless_stuck() else { continue };
            state.full.iter_mut().for_each(FullDisk::wake);
            place.set_up(&mut state, Health::Full, Instant::now());
        }
    }

    /// Sets directories aside that hang; `lost` is called of each. Does not wait for any disk.
    pub fn set_hung_aside(&self, now: Instant, lost: impl Fn(usize)) -> usize {
        let mut count = 0;
        for (i, dir) in self.dirs.iter().enumerate() {
            if !dir.is_stuck(now) || !dir.set_hung(|| lost(i)) {
                continue;
            }
            count += 1;
            self.counters.dir_faults.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(dir = %dir.path.display(), "a cache directory hangs and is set aside: its disk does not answer; it is tried again when it does");
        }
        count
    }

    /// Tries directories that do not work, and looks for room on disks that are full, where that is due.
    /// Returns these attempts, and waits for none: `filler` is told what came of them.
    pub fn try_again(self: &Arc<Self>, now: Instant, filler: &Arc<dyn Filler>) -> Vec<Attempt<()>> {
        let due = (0..self.dirs.len()).filter(|dir| self.dirs[*dir].is_due(now));
        due.filter_map(|dir| {
            let turn = self.dirs[dir].begin()?;
            let (dirs, filler) = (self.clone(), filler.clone());
            let work = move || {
                let tried = dirs.attempt(dir, now, &*filler);
                drop(turn);
                match tried {
                    Ok(false) => {}
                    tried => filler.tried(dir, tried.map(drop)),
                }
                Ok(())
            };
            let begun = Attempt::begin(work, drop);
            begun.inspect_err(|e| tracing::debug!(error = %e, "a cache directory cannot be tried now")).ok()
        })
        .collect()
    }

    /// Tries a directory, and returns whether it is back in use, or has all of its limit again. May wait for
    /// its disk for ever.
    fn attempt(&self, dir: usize, now: Instant, filler: &dyn Filler) -> Result<bool> {
        let place = &self.dirs[dir];
        let (mut state, mut is_whole) = (place.state(), false);
        let tried = loop {
            let was = place.health();
            let filled = match was {
                Health::Away => self.take(dir, &mut state, filler).map(Some),
                Health::Up | Health::Full => {
                    is_whole = self.look_for_room(dir, &mut state, now, filler);
                    Ok(None)
                }
            };
            match filled {
                Err(e) => break Err(e),
                Ok(settle) if place.set_up(&mut state, was, now) => break Ok(settle),
                // It was full, and hung meanwhile: its files count as absent since.
                Ok(_) => {}
            }
        };
        if tried.is_err() {
            place.postpone(&mut state, now);
        }
        // Others may find that it fails.
        drop(state);
        tried.map(|settle| settle.map(|settle| settle()).is_some() || is_whole)
    }

    /// Takes a directory into use that was away. What it holds is read also where its disk is full.
    fn take(&self, dir: usize, state: &mut DirState, filler: &dyn Filler) -> Result<Settle> {
        let full = self.dirs[dir].retry(state)?;
        let settle = filler.fill(dir)?;
        state.full = full.as_ref().map(|_| self.full_disk(dir, 0, || filler.lower(dir)));
        full.inspect(|e| self.tell_full(dir, e));
        Ok(settle)
    }

    /// Looks whether a disk has room again that was full; returns whether it has all that the limit is.
    fn look_for_room(&self, dir: usize, state: &mut DirState, now: Instant, filler: &dyn Filler) -> bool {
        let place = &self.dirs[dir];
        let Some(full) = &mut state.full else { return false };
        // There may have been no room for it when the directory was made.
        place.make_pulse().ok();
        let Ok(free_bytes) = place.disk.free_bytes(&place.path) else { return false };
        let more_bytes = full.look(now, free_bytes);
        let is_whole = filler.raise(dir, more_bytes, &|| matches!(place.probe(), Ok(None)));
        if is_whole {
            state.full = None;
        }
        is_whole
    }

    /// Learns how large the blocks of a directory's file system are.
    pub fn note_block_bytes(&self, dir: usize) -> io::Result<()> {
        let dir = &self.dirs[dir];
        let bytes = dir.disk.block_bytes(&dir.path)?;
        self.block_bytes.fetch_max(bytes, Ordering::Relaxed);
        Ok(())
    }

    pub fn block_bytes(&self) -> u64 {
        self.block_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that a file of this length takes on the disk at most: whole blocks, and one for the list of its
    /// extents.
    pub fn allocated_bytes(&self, bytes: u64) -> u64 {
        let block = self.block_bytes();
        let blocks = bytes.div_ceil(block);
        block.saturating_mul(blocks.saturating_add(u64::from(blocks > 4)))
    }

    /// Bytes that a small file beside the segments (a sidecar) takes on the disk at most: its blocks, and one
    /// more for its entry in the folder.
    pub fn sidecar_bytes(&self, bytes: u64) -> u64 {
        self.allocated_bytes(bytes).saturating_add(self.block_bytes())
    }

    /// Bytes that folders may grow by when a file is added.
    pub fn folder_growth(&self) -> u64 {
        FOLDER_GROWTH_BLOCKS * self.block_bytes()
    }

    /// What a directory takes besides its files, with a block for the file that a probe writes.
    pub fn measure(&self, dir: usize) -> io::Result<u64> {
        let place = &self.dirs[dir];
        let bytes = |path: PathBuf| place.disk.stat_path(&path).map(|stat| stat.allocated_bytes);
        let mut all = bytes(place.path.clone())? + bytes(place.path.join("v1/tmp"))?;
        for shard in SHARDS {
            all += bytes(place.shard(shard))?;
        }
        let others = ["lock", "v1", "v1/segments", "v1/pins", PULSE_FILE];
        all += others.iter().filter_map(|name| bytes(place.path.join(name)).ok()).sum::<u64>();
        Ok(all + self.block_bytes())
    }
}

/// Whether an error says something of the process rather than of the disk.
pub fn is_of_process(e: &io::Error) -> bool {
    use rustix::io::Errno;
    let own = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::INTR];
    e.raw_os_error().is_some_and(|code| own.iter().any(|own| own.raw_os_error() == code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::file_system::RealDisk;
    use parking_lot::Mutex;
    use std::cell::Cell;
    use std::fs;

    /// Fills nothing, in one directory alone or in all, and keeps which are back.
    #[derive(Debug, Default)]
    struct Heard {
        only: Option<usize>,
        filled: AtomicU64,
        back: Mutex<Vec<usize>>,
    }

    impl Filler for Heard {
        fn fill(&self, dir: usize) -> Result<Settle> {
            self.filled.fetch_add(1, Ordering::Relaxed);
            match self.only.is_none_or(|only| only == dir) {
                true => Ok(Box::new(|| ())),
                false => Err(Error::denied("no")),
            }
        }

        fn lower(&self, _: usize) -> u32 {
            0
        }

        fn raise(&self, _: usize, _: u64, has_room: &dyn Fn() -> bool) -> bool {
            has_room()
        }

        fn tried(&self, dir: usize, tried: Result<()>) {
            self.back.lock().extend(tried.is_ok().then_some(dir));
        }
    }

    fn new_dirs(paths: &[PathBuf]) -> Arc<Dirs> {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        Arc::new(Dirs::new(paths, &disk, Arc::default()))
    }

    #[test]
    fn a_directory_that_fails_loses_its_files_once_and_is_filled_again_when_it_works() {
        let temp = tempfile::tempdir().unwrap();
        let dirs = new_dirs(&[temp.path().join("a"), temp.path().join("b")]);
        let heard = Arc::new(Heard::default());
        let filler: Arc<dyn Filler> = heard.clone();
        dirs.start(&filler, Duration::ZERO).unwrap();
        assert_eq!(dirs.writable(), [0, 1]);
        let (lost, error) = (Cell::new(0), io::Error::from_raw_os_error(5));
        let fault = |dir| dirs.fault(dir, &error, 0, || 0, || lost.set(lost.get() + 1));
        fault(0);
        assert_eq!((lost.get(), dirs.writable()), (0, vec![0, 1]), "it works: only one file was at fault");
        fs::remove_dir_all(temp.path().join("a")).unwrap();
        fs::write(temp.path().join("a"), "in the way").unwrap();
        fault(0);
        fault(0);
        assert_eq!((lost.get(), dirs.writable()), (1, vec![1]));
        let later = Instant::now() + Duration::from_secs(3600);
        let heal = |now| {
            for attempt in dirs.try_again(now, &filler) {
                assert!(attempt.has_ended(Duration::from_secs(30)));
            }
            std::mem::take(&mut *heard.back.lock())
        };
        assert!(heal(later).is_empty(), "it fails still");
        fs::remove_file(temp.path().join("a")).unwrap();
        assert!(heal(later).is_empty(), "not before its time");
        assert_eq!(heal(later + Duration::from_secs(60)), [0]);
        assert_eq!((heard.filled.load(Ordering::Relaxed), dirs.writable()), (2 + 1, vec![0, 1]));
    }

    #[test]
    fn only_when_no_directory_works_is_it_an_error_to_start() {
        let temp = tempfile::tempdir().unwrap();
        let paths = [temp.path().join("a"), temp.path().join("b")];
        let only = |dir| Arc::new(Heard { only: Some(dir), ..Heard::default() }) as Arc<dyn Filler>;
        let dirs = new_dirs(&paths);
        dirs.start(&only(1), Duration::ZERO).unwrap();
        assert_eq!(dirs.writable(), [1]);
        // Its locks too.
        drop(dirs);
        let dirs = new_dirs(&paths);
        assert_eq!(dirs.start(&only(7), Duration::ZERO).unwrap_err().message, "no; no");
    }

    #[test]
    fn a_file_takes_whole_blocks_and_one_for_its_extents() {
        let dirs = new_dirs(&[]);
        let blocks = |bytes| dirs.allocated_bytes(bytes) / BLOCK_BYTES;
        assert_eq!([0, 1, 4096, 4097, 4 * 4096, 4 * 4096 + 1].map(blocks), [0, 1, 1, 2, 4, 6]);
        assert_eq!(dirs.allocated_bytes(u64::MAX), u64::MAX, "also a length that somebody made up");
    }
}
