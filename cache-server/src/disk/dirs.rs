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

    /// Takes all directories into use, at once: each is locked, then `first` is called, then `fill` for each
    /// that could be locked. Those that fail are set aside; only when all do it is an error.
    pub fn start(&self, first: impl FnOnce(), fill: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
        let prepared: Vec<Result<()>> = self.dirs.iter().map(|dir| dir.prepare(&mut dir.state())).collect();
        first();
        let begin = |(i, prepared): (usize, Result<()>)| {
            let dir = &self.dirs[i];
            let mut state = dir.state();
            let begun = prepared.and_then(|()| fill(i));
            match &begun {
                Ok(()) => dir.set_up(&mut state),
                Err(_) => dir.set_aside(&mut state, Health::Away, 0),
            }
            begun
        };
        let begun: Vec<Result<()>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                prepared.into_iter().enumerate().map(|work| scope.spawn(|| begin(work))).collect();
            let failed = |_| Err(Error::corrupt("a thread that opened a cache directory panicked"));
            threads.into_iter().map(|t| t.join().unwrap_or_else(failed)).collect()
        });
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
        let path = place.path().display();
        if health == Health::Away {
            lost();
            tracing::warn!(dir = %path, error = %e, "a cache directory fails and is set aside: it is tried again until it works");
        } else {
            tracing::warn!(dir = %path, error = %e, "the disk of a cache directory is full: it is read, but segments could not be stored in it until it has room");
        }
    }

    /// Tries directories that were set aside, where their next attempt is due; `fill` indexes one that was
    /// away. Returns those that work again.
    pub fn heal(&self, now: Instant, fill: impl Fn(usize) -> Result<()>) -> Vec<usize> {
        let mut healed = Vec::new();
        for (i, dir) in self.dirs.iter().enumerate().filter(|(_, dir)| dir.is_due(now)) {
            let mut state = dir.state();
            let was = dir.health();
            let back = dir.retry(&mut state, now).and_then(|()| match was {
                Health::Away => fill(i),
                _ => Ok(()),
            });
            match back {
                Ok(()) => {
                    dir.set_up(&mut state);
                    healed.push(i);
                    tracing::info!(dir = %dir.path().display(), "a cache directory works again");
                }
                Err(e) => tracing::debug!(error = %e, "a cache directory is still set aside"),
            }
        }
        healed
    }

    /// Learns how large the blocks of a directory's file system are.
    pub fn note_block_bytes(&self, dir: usize) -> io::Result<()> {
        let dir = &self.dirs[dir];
        let bytes = dir.disk().block_bytes(dir.path())?;
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

    /// What a directory's folders take, by name, and what it takes besides its files.
    pub fn measure(&self, dir: usize) -> io::Result<Vec<(&'static str, u64)>> {
        let place = &self.dirs[dir];
        let (disk, root) = (place.disk(), place.path());
        let mut folders = Vec::new();
        for shard in SHARDS {
            folders.push((shard, disk.stat_path(&place.shard(shard))?.allocated_bytes));
        }
        folders.push(("tmp", disk.stat_path(&root.join("v1/tmp"))?.allocated_bytes));
        let mut rest = disk.stat_path(root)?.allocated_bytes;
        for name in ["lock", "v1", "v1/segments", "v1/pins"] {
            rest += disk.stat_path(&root.join(name)).map_or(0, |s| s.allocated_bytes);
        }
        folders.push(("rest", rest));
        // For the file that a probe writes.
        folders.push(("spare", self.block_bytes()));
        Ok(folders)
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

    fn dirs(paths: &[PathBuf]) -> Dirs {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        Dirs::new(paths, &disk, Arc::default())
    }

    #[test]
    fn a_directory_that_fails_loses_its_files_once_and_is_filled_again_when_it_works() {
        let temp = tempfile::tempdir().unwrap();
        let dirs = dirs(&[temp.path().join("a"), temp.path().join("b")]);
        dirs.start(|| (), |_| Ok(())).unwrap();
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
        let (later, filled) = (Instant::now() + Duration::from_secs(3600), Cell::new(0));
        let fill = |_| {
            filled.set(filled.get() + 1);
            Ok(())
        };
        assert!(dirs.heal(later, fill).is_empty(), "it fails still");
        fs::remove_file(temp.path().join("a")).unwrap();
        assert!(dirs.heal(later, fill).is_empty(), "not before its time");
        assert_eq!(dirs.heal(later + Duration::from_secs(60), fill), [0]);
        assert_eq!((filled.get(), dirs.writable()), (1, vec![0, 1]));
    }

    #[test]
    fn only_when_no_directory_works_is_it_an_error_to_start() {
        let temp = tempfile::tempdir().unwrap();
        let dirs = dirs(&[temp.path().join("a"), temp.path().join("b")]);
        let only = |good| move |dir| if dir == good { Ok(()) } else { Err(Error::denied("no")) };
        dirs.start(|| (), only(1)).unwrap();
        assert_eq!(dirs.writable(), [1]);
        assert!(dirs.start(|| (), only(7)).is_err());
    }

    #[test]
    fn a_file_takes_whole_blocks_and_one_for_its_extents() {
        let dirs = dirs(&[]);
        let blocks = |bytes| dirs.allocated_bytes(bytes) / BLOCK_BYTES;
        assert_eq!([0, 1, 4096, 4097, 4 * 4096, 4 * 4096 + 1].map(blocks), [0, 1, 1, 2, 4, 6]);
        assert_eq!(dirs.allocated_bytes(u64::MAX), u64::MAX, "also a length that somebody made up");
    }
}
