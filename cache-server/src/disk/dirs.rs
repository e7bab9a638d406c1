//! The cache directories: which work, which are set aside, how those come back, and what files take up in
//! them.
//!
//! A directory whose operations fail is probed at once (write, flush, read back, remove a small file). If
//! that works, only the one file was at fault; if not, the directory is set aside: its files count as absent,
//! and it is probed again and again, at growing intervals, until it works. A full one is still read, but
//! nothing is written to it until it has room.

mod dir;

use super::counters::DiskCounters;
use super::file_system::Disk;
use super::watch::PULSE_FILE;
pub use dir::{Dir, Health, SHARDS};
use forebay_proto::{Error, Result};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

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
    /// Its share of the limit.
    pub limit_bytes: u64,
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

    /// Directories that work and whose disks are not full.
    pub fn writable(&self) -> Vec<usize> {
        (0..self.dirs.len()).filter(|dir| self.dirs[*dir].health() == Health::Up).collect()
    }

    /// Takes all directories into use; `fill` indexes each. Those that fail are set aside; only when all do
    /// it is an error.
    pub fn start(&self, fill: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
        let begun: Vec<Result<()>> =
            self.heal(Instant::now(), fill).into_iter().map(|(_, begun)| begun).collect();
        if begun.iter().all(Result::is_err) {
            return begun.into_iter().collect();
        }
        for e in begun.into_iter().filter_map(Result::err) {
            self.counters.dir_faults.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(error = %e, "a cache directory is set aside: the others take its place until it works");
        }
        Ok(())
    }

    /// Decides what an operation that failed says of its directory: nothing if the directory works all the
    /// same, else it is set aside. `lost` is called, before the directory may come back, if its files count
    /// as absent from now on.
    pub fn fault(&self, dir: usize, e: &io::Error, wanted_bytes: u64, lost: impl FnOnce()) {
        let place = &self.dirs[dir];
        // One that is coming back is not waited for.
        if is_of_process(e) || place.health() == Health::Away {
            return;
        }
        let mut state = place.state();
        if place.health() == Health::Away {
            return;
        }
        let health = match is_full(e) {
            true => Health::Full,
            false => match place.probe() {
                Ok(()) => return,
                Err(e) if is_full(&e) => Health::Full,
                Err(_) => Health::Away,
            },
        };
        if place.health() == health {
            return;
        }
        place.set_aside(&mut state, health, wanted_bytes);
        self.counters.dir_faults.fetch_add(1, Ordering::Relaxed);
        let path = place.path.display();
        if health == Health::Away {
            lost();
            tracing::warn!(dir = %path, error = %e, "a cache directory fails and is set aside: it is tried again until it works");
        } else {
            tracing::warn!(dir = %path, error = %e, "the disk of a cache directory is full: it is read, but segments could not be stored in it until it has room");
        }
    }

    /// Sets directories aside that hang; `lost` is called of each. Does not wait for any disk.
    pub fn set_hung_aside(&self, now: Instant, lost: impl Fn(usize)) -> usize {
        let hung = self.dirs.iter().enumerate().filter(|(_, dir)| dir.hangs(now) && dir.set_hung());
        let mut count = 0;
        for (i, dir) in hung {
            count += 1;
            lost(i);
            self.counters.dir_faults.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(dir = %dir.path.display(), "a cache directory hangs and is set aside: its disk does not answer; it is tried again when it does");
        }
        count
    }

    /// Tries directories that do not work, where their next attempt is due, at once; `fill` indexes one that
    /// was away. Returns what came of each.
    pub fn heal(&self, now: Instant, fill: impl Fn(usize) -> Result<()> + Sync) -> Vec<(usize, Result<()>)> {
        let attempt = |(i, dir): (usize, &Dir)| {
            let mut state = dir.state();
            let was = dir.health();
            let tried = dir.retry(&mut state).and_then(|()| match was {
                Health::Away => fill(i),
                _ => Ok(()),
            });
            match tried {
                Ok(()) => dir.set_up(&mut state),
                Err(_) => dir.postpone(&mut state, now),
            }
            tried
        };
        std::thread::scope(|scope| {
            let due = self.dirs.iter().enumerate().filter(|(_, dir)| dir.is_due(now));
            let threads: Vec<_> = due.map(|dir| (dir.0, scope.spawn(move || attempt(dir)))).collect();
            let failed = |_| Err(Error::corrupt("a thread that opened a cache directory panicked"));
            threads.into_iter().map(|(i, thread)| (i, thread.join().unwrap_or_else(failed))).collect()
        })
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

    /// The same for a small file beside the segments: a block more is its share of the folder that it is in.
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

fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::file_system::RealDisk;
    use std::cell::Cell;
    use std::fs;
    use std::time::Duration;

    fn new_dirs(paths: &[PathBuf]) -> Dirs {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        Dirs::new(paths, &disk, Arc::default())
    }

    #[test]
    fn a_directory_that_fails_loses_its_files_once_and_is_filled_again_when_it_works() {
        let temp = tempfile::tempdir().unwrap();
        let dirs = new_dirs(&[temp.path().join("a"), temp.path().join("b")]);
        dirs.start(|_| Ok(())).unwrap();
        assert_eq!(dirs.writable(), [0, 1]);
        let (lost, error) = (Cell::new(0), io::Error::from_raw_os_error(5));
        let fault = |dir| dirs.fault(dir, &error, 0, || lost.set(lost.get() + 1));
        fault(0);
        assert_eq!((lost.get(), dirs.writable()), (0, vec![0, 1]), "it works: only one file was at fault");
        fs::remove_dir_all(temp.path().join("a")).unwrap();
        fs::write(temp.path().join("a"), "in the way").unwrap();
        fault(0);
        fault(0);
        assert_eq!((lost.get(), dirs.writable()), (1, vec![1]));
        let (later, filled) = (Instant::now() + Duration::from_secs(3600), AtomicU64::new(0));
        let heal = |now| {
            let fill = |_| {
                filled.fetch_add(1, Ordering::Relaxed);
                Ok(())
            };
            let tried = dirs.heal(now, fill).into_iter();
            tried.filter(|(_, tried)| tried.is_ok()).map(|(dir, _)| dir).collect::<Vec<_>>()
        };
        assert!(heal(later).is_empty(), "it fails still");
        fs::remove_file(temp.path().join("a")).unwrap();
        assert!(heal(later).is_empty(), "not before its time");
        assert_eq!(heal(later + Duration::from_secs(60)), [0]);
        assert_eq!((filled.into_inner(), dirs.writable()), (1, vec![0, 1]));
    }

    #[test]
    fn only_when_no_directory_works_is_it_an_error_to_start() {
        let temp = tempfile::tempdir().unwrap();
        let paths = [temp.path().join("a"), temp.path().join("b")];
        let dirs = new_dirs(&paths);
        let only = |good| move |dir| if dir == good { Ok(()) } else { Err(Error::denied("no")) };
        dirs.start(only(1)).unwrap();
        assert_eq!(dirs.writable(), [1]);
        let dirs = new_dirs(&paths);
        assert!(dirs.start(only(7)).is_err());
    }

    #[test]
    fn a_file_takes_whole_blocks_and_one_for_its_extents() {
        let dirs = new_dirs(&[]);
        let blocks = |bytes| dirs.allocated_bytes(bytes) / BLOCK_BYTES;
        assert_eq!([0, 1, 4096, 4097, 4 * 4096, 4 * 4096 + 1].map(blocks), [0, 1, 1, 2, 4, 6]);
        assert_eq!(dirs.allocated_bytes(u64::MAX), u64::MAX, "also a length that somebody made up");
    }
}
