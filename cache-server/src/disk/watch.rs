//! A disk whose operations are counted while they are under way, so that one that hangs is noticed
//! ([`underway`](super::underway)).

use super::file_system::{Disk, Stat};
use super::underway::{DiskOperations, Operation};
use std::fs::File;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

/// A file of one block, in every directory: its pulse.
pub const PULSE_FILE: &str = "v1/pulse";

/// A disk whose operations are counted while they are under way.
#[derive(Debug)]
pub struct WatchedDisk {
    pub disk: Arc<dyn Disk>,
    pub underway: Arc<DiskOperations>,
}

impl WatchedDisk {
    fn watched<T>(&self, operation: impl FnOnce(&dyn Disk) -> T) -> T {
        let _underway = self.underway.begin();
        operation(&*self.disk)
    }
}

impl Disk for WatchedDisk {
    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.watched(|disk| disk.make_dir(path))
    }

    fn create(&self, path: &Path, bytes: u64) -> io::Result<File> {
        self.watched(|disk| disk.create(path, bytes))
    }

    fn write(&self, file: &mut File, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        self.watched(|disk| disk.write(file, parts))
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.watched(|disk| disk.sync(file))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.watched(|disk| disk.sync_dir(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.watched(|disk| disk.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.watched(|disk| disk.remove(path))
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        self.watched(|disk| disk.open(path))
    }

    fn open_direct(&self, path: &Path) -> io::Result<File> {
        self.watched(|disk| disk.open_direct(path))
    }

    fn read(&self, file: &File, into: &mut [u8], at: u64) -> io::Result<usize> {
        self.watched(|disk| disk.read(file, into, at))
    }

    fn stat(&self, file: &File) -> io::Result<Stat> {
        self.watched(|disk| disk.stat(file))
    }

    fn stat_path(&self, path: &Path) -> io::Result<Stat> {
        self.watched(|disk| disk.stat_path(path))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.watched(|disk| disk.list(path))
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        self.watched(|disk| disk.free_bytes(path))
    }

    fn block_bytes(&self, path: &Path) -> io::Result<u64> {
        self.watched(|disk| disk.block_bytes(path))
    }

    /// The look at whether the others come back is none of them.
    fn read_medium(&self, path: &Path) -> io::Result<()> {
        self.disk.read_medium(path)
    }

    fn using(&self) -> Option<Operation> {
        Some(self.underway.begin())
    }
}
