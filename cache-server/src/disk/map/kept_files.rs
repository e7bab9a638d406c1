//! Segment files that are kept open, the ones from which a few bytes are read most: opening a file by its
//! path, and closing it, was a sixth of a node's time for 64 KiB.
//!
//! One that is removed is closed, and at the latest goes with its map, so its blocks are given back.

use quick_cache::sync::Cache;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Open files of maps, by the number of the map.
#[derive(Debug)]
pub struct KeptFiles {
    files: Cache<u64, Arc<File>>,
    next: AtomicU64,
}

/// A map's place among them, until dropped.
#[derive(Debug)]
pub struct KeptFile {
    all: Arc<KeptFiles>,
    number: u64,
}

impl KeptFiles {
    /// Keeps this many at most.
    pub fn new(files_max: usize) -> Arc<Self> {
        Arc::new(Self { files: Cache::new(files_max), next: AtomicU64::new(0) })
    }

    /// A place for a map's file, which is not opened yet.
    pub fn place(self: &Arc<Self>) -> KeptFile {
        KeptFile { all: self.clone(), number: self.next.fetch_add(1, Relaxed) }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.files.len()
    }
}

impl KeptFile {
    /// The file, opened by `open` unless it is open.
    pub fn get(&self, open: impl FnOnce() -> io::Result<File>) -> io::Result<Arc<File>> {
        if let Some(file) = self.all.files.get(&self.number) {
            return Ok(file);
        }
        let file = Arc::new(open()?);
        self.all.files.insert(self.number, file.clone());
        Ok(file)
    }

    /// Closes the file, as soon as nobody reads from it: aside, as some file systems wait for that.
    pub fn close(&self) {
        let Some((_, file)) = self.all.files.remove(&self.number) else { return };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(file))),
            Err(_) => drop(file),
        }
    }
}

impl Drop for KeptFile {
    fn drop(&mut self) {
        self.close();
    }
}
