//! The store's start: make and lock the directory, throw away what is unfinished or damaged, rebuild the index.

use super::Store;
use super::file::read_header;
use super::index::FileKey;
use forebay_proto::{Error, Kind, Result};
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Makes the directory's folders, takes its lock, checks that it can be written, empties `tmp`.
pub fn prepare(dir: &Path) -> Result<File> {
    let fail = |what: &str, e: std::io::Error| {
        let kind = match e.kind() {
            std::io::ErrorKind::StorageFull => Kind::Full,
            _ => Kind::Denied,
        };
        Error::new(
            kind,
            format!("cache directory {}: {what}: {e}; choose another with --cache-dir", dir.display()),
        )
    };
    fs::create_dir_all(dir.join("v1/segments")).map_err(|e| fail("cannot be made", e))?;
    let lock = File::create(dir.join("lock")).map_err(|e| fail("cannot be written", e))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(Error::invalid(format!(
                "cache directory {} is used by another server: give each its own --cache-dir",
                dir.display()
            )));
        }
        Err(TryLockError::Error(e)) => return Err(fail("cannot be locked", e)),
    }
    let tmp = dir.join("v1/tmp");
    match fs::remove_dir_all(&tmp) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(fail("cannot be cleaned", e)),
        _ => fs::create_dir_all(&tmp).map_err(|e| fail("cannot be written", e))?,
    }
    Ok(lock)
}

/// Indexes every file whose header verifies, least recently written first, and removes the rest; then evicts down to
/// the limit.
pub fn rebuild(store: &Store) -> Result<()> {
    let root = store.dir.join("v1/segments");
    let mut files: Vec<(SystemTime, PathBuf)> = Vec::new();
    let list = |dir: &Path| -> Result<Vec<fs::DirEntry>> {
        fs::read_dir(dir)
            .and_then(Iterator::collect)
            .map_err(|e| Error::denied(format!("cache directory {}: cannot be listed: {e}", dir.display())))
    };
    for shard in list(&root)? {
        for entry in list(&shard.path())? {
            let written = entry.metadata().and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
            files.push((written, entry.path()));
        }
    }
    files.sort();
    for (_, path) in files {
        if let Err(e) = index(store, &path) {
            store.counters.corrupt.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            tracing::warn!(error = %e, "a segment file is damaged: removed, it will be filled again");
            fs::remove_file(&path).ok();
        }
    }
    // Booking nothing evicts what is above the limit: it may have been lowered since.
    store.reserve(0);
    Ok(())
}

fn index(store: &Store, path: &Path) -> Result<()> {
    let (header, body_offset) = read_header(path)?;
    let key = FileKey::new(header.segment_id()?, &header.columns);
    if path.file_name().is_none_or(|n| n != key.file_name().as_str()) {
        return Err(Error::corrupt(format!("{}: its name is not that of its content", path.display())));
    }
    let bytes = body_offset + header.body_bytes();
    let mut index = store.index();
    index.reserve(bytes, u64::MAX, |_| ());
    index.insert_reserved(key, header.object, header.columns, bytes, None);
    Ok(())
}
