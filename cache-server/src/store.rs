//! The store: segment files under a byte limit, with an index rebuilt from their headers at start.
//!
//! Promises: the limit holds at every instant, temporary files included; what does not verify is a miss, never data; a
//! full or failing disk costs only the caching of what could not be written. The kernel's page cache is the RAM tier.
//! Unplanned data leaves by recency of use; a file whose mapping is being read is not evicted.
//!
//! ```text
//! DIR/lock                    held while a server uses the directory
//! DIR/v1/segments/ab/ID.COLUMNS   segment files: id and a hash of the column names
//! DIR/v1/tmp/                 files being written; emptied at start
//! ```

pub mod file;
mod index;
mod map;
pub mod policy;
mod recover;

use arrow::array::RecordBatch;
use file::{Encoded, Origin};
use forebay_proto::manifest::SegmentId;
use forebay_proto::{Error, Kind, Result};
use index::{FileKey, Index};
use policy::{Admit, Forecast};
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a look-up found.
#[derive(Debug, Default)]
pub struct Found {
    /// Batches that together hold the wanted columns, as far as the store has them.
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
pub struct StoreSettings {
    /// Directories, this store's alone.
    pub dirs: Vec<PathBuf>,
    /// Bytes that they may use together.
    pub limit_bytes: u64,
}

impl StoreSettings {
    /// One directory.
    pub fn new(dir: impl Into<PathBuf>, limit_bytes: u64) -> Self {
        Self { dirs: vec![dir.into()], limit_bytes }
    }
}

/// Sums since start.
#[derive(Debug, Default)]
pub struct StoreCounters {
    /// Files evicted.
    pub evictions: AtomicU64,
    /// Files that failed their checks.
    pub corrupt: AtomicU64,
    /// Bytes written to files that took their place.
    pub bytes_written: AtomicU64,
    /// Segments not stored: no room, or the disk failed.
    pub not_stored: AtomicU64,
}

/// Segment files under one directory. All methods but the plain readings touch the disk: call them off the async
/// threads.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    limit_bytes: u64,
    index: Mutex<Index>,
    _forecast: Arc<dyn Forecast>,
    counters: StoreCounters,
    names: AtomicU64,
    _lock: File,
}

impl Store {
    /// Opens a directory, making it where needed, and rebuilds the index. `Denied` when it cannot be written, `Invalid`
    /// when another server uses it.
    pub fn open(settings: &StoreSettings, forecast: Arc<dyn Forecast>) -> Result<Self> {
        let dir = settings
            .dirs
            .first()
            .ok_or_else(|| Error::invalid("no cache directory: give one with --cache-dir"))?;
        let lock = recover::prepare(dir)?;
        let store = Self {
            dir: dir.to_owned(),
            limit_bytes: settings.limit_bytes,
            index: Mutex::default(),
            _forecast: forecast,
            counters: StoreCounters::default(),
            names: AtomicU64::new(0),
            _lock: lock,
        };
        recover::rebuild(&store)?;
        Ok(store)
    }

    /// Finds the wanted columns of a segment, mapping files that are not mapped yet (and checking every byte of those
    /// this process did not write). A file that does not verify is removed and counts as absent.
    pub fn find(&self, id: SegmentId, columns: &[String]) -> Found {
        let mut found = Found { missing: columns.to_vec(), ..Found::default() };
        let keys = self.index().files_of(id);
        for key in keys {
            if found.missing.is_empty() {
                break;
            }
            let covers =
                self.index().columns(&key).is_some_and(|have| found.missing.iter().any(|c| have.contains(c)));
            if covers && let Some(batch) = self.map(&key) {
                found.missing.retain(|c| batch.column_by_name(c).is_none());
                found.parts.push(batch);
            }
        }
        found
    }

    /// Whether all these columns of a segment are held; touches neither disk nor recency.
    pub fn holds(&self, id: SegmentId, columns: &[String]) -> bool {
        self.index().holds(id, columns)
    }

    /// Whether any column of a segment is held; touches neither disk nor recency.
    pub fn holds_any(&self, id: SegmentId) -> bool {
        self.index().holds_any(id)
    }

    /// Writes columns of a segment and answers with them mapped. When it does not store them, the store is as before.
    pub fn write(&self, origin: &Origin, batch: &RecordBatch, _admit: Admit) -> Result<Written> {
        let encoded = Encoded::new(origin, batch)?;
        let bytes = encoded.bytes();
        if !self.reserve(bytes) {
            self.counters.not_stored.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(segment = %origin.id, bytes, "no room in the cache: served without storing");
            return Ok(Written::NoRoom);
        }
        let columns: Vec<String> = batch.schema().fields().iter().map(|f| f.name().clone()).collect();
        let key = FileKey::new(origin.id, &columns);
        match self.place(&key, &encoded) {
            Ok(mapped) => {
                let mapped = Arc::new(mapped);
                self.counters.bytes_written.fetch_add(bytes, Ordering::Relaxed);
                self.index().insert_reserved(
                    key,
                    origin.object.clone(),
                    columns,
                    bytes,
                    Some(mapped.clone()),
                );
                Ok(Written::Mapped(mapped))
            }
            Err(e) => {
                self.index().release(bytes);
                self.counters.not_stored.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(object = origin.object, error = %e, "a segment could not be stored; it is served without");
                Ok(Written::NoRoom)
            }
        }
    }

    /// Removes every segment of objects under a URI; answers with how many files and bytes went.
    pub fn free(&self, uri: &str) -> (u64, u64) {
        let keys = self.index().files_under(uri);
        let mut gone = (0, 0);
        for key in keys {
            // One by one under the lock: a fill that brings the file back meanwhile must not lose it again.
            let mut index = self.index();
            if let Some(bytes) = index.remove(&key) {
                self.unlink(&key);
                gone = (gone.0 + 1, gone.1 + bytes);
            }
        }
        gone
    }

    /// Bytes in use, those being written included.
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
    pub fn counters(&self) -> &StoreCounters {
        &self.counters
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn map(&self, key: &FileKey) -> Option<Arc<RecordBatch>> {
        if let Some(batch) = self.index().touch(key)? {
            return Some(batch);
        }
        match map::open(&self.path(key), true) {
            Ok(batch) => {
                let batch = Arc::new(batch);
                self.index().keep_map(key, batch.clone());
                Some(batch)
            }
            Err(e) => {
                let mut index = self.index();
                // If it is not known any more, it was evicted a moment ago: nothing is wrong with it.
                if index.remove(key).is_some() {
                    self.unlink(key);
                    self.counters.corrupt.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(error = %e, "a segment file is damaged: removed, it will be filled again");
                }
                None
            }
        }
    }

    /// Makes room for `bytes` and books them; false when that cannot be.
    fn reserve(&self, bytes: u64) -> bool {
        let (room, evicted) = self.index().reserve(bytes, self.limit_bytes, |gone| self.unlink(gone));
        self.counters.evictions.fetch_add(evicted, Ordering::Relaxed);
        room
    }

    fn place(&self, key: &FileKey, encoded: &Encoded) -> Result<RecordBatch> {
        let name = format!("{}.{}", std::process::id(), self.names.fetch_add(1, Ordering::Relaxed));
        let tmp = self.dir.join("v1/tmp").join(name);
        let path = self.path(key);
        let written = (|| {
            let mut file = File::create(&tmp)?;
            encoded.write_to(&mut file)?;
            drop(file);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::rename(&tmp, &path)
        })();
        if let Err(e) = written {
            fs::remove_file(&tmp).ok();
            let kind = if e.kind() == std::io::ErrorKind::StorageFull { Kind::Full } else { Kind::Retry };
            return Err(Error::new(kind, format!("{}: write segment: {e}", path.display())));
        }
        map::open(&path, false)
    }

    fn unlink(&self, key: &FileKey) {
        if let Err(e) = fs::remove_file(self.path(key))
            && e.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(error = %e, path = %self.path(key).display(), "a segment file could not be removed");
        }
    }

    fn path(&self, key: &FileKey) -> PathBuf {
        let name = key.file_name();
        self.dir.join("v1/segments").join(&name[..2]).join(name)
    }
}

#[cfg(test)]
mod tests;
