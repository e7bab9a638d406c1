//! A directory's start, or its return: make and lock it, throw away what is unfinished or damaged, rebuild
//! the index.
//!
//! Only headers are read, each in one read, by several threads; bodies are checked when they are opened.

use super::DiskCache;
use super::dirs::{Dir, SHARDS};
use super::file::{Unreadable, read_header};
use super::file_system::Stat;
use super::index::{Entry, FileKey};
use forebay_proto::{Error, Kind, Result};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads that read the headers of one directory: enough to keep a disk busy whose every read takes a while.
const THREADS: usize = 4;

/// Why a directory cannot be used.
pub fn refusal(dir: &Path, what: &str, e: io::Error) -> Error {
    let kind = match e.kind() {
        io::ErrorKind::StorageFull => Kind::Full,
        _ => Kind::Denied,
    };
    Error::new(
        kind,
        format!("cache directory {}: {what}: {e}; choose another with --cache-dir", dir.display()),
    )
}

/// Makes the directory's folders, takes its lock, checks that it can be written, empties `tmp`.
pub fn prepare(dir: &Dir) -> Result<File> {
    let fail = |what: &str, e: io::Error| refusal(dir.path(), what, e);
    let disk = dir.disk();
    for shard in SHARDS {
        disk.make_dir(&dir.shard(shard)).map_err(|e| fail("cannot be made", e))?;
    }
    let lock = disk.create(&dir.path().join("lock"), 0).map_err(|e| fail("cannot be written", e))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(Error::invalid(format!(
                "cache directory {} is used by another server: give each its own --cache-dir",
                dir.path().display()
            )));
        }
        Err(TryLockError::Error(e)) => return Err(fail("cannot be locked", e)),
    }
    let tmp = dir.path().join("v1/tmp");
    disk.make_dir(&tmp).map_err(|e| fail("cannot be written", e))?;
    for name in disk.list(&tmp).map_err(|e| fail("cannot be listed", e))? {
        disk.remove(&tmp.join(name)).map_err(|e| fail("cannot be cleaned", e))?;
    }
    Ok(lock)
}

/// A file whose header verifies.
struct Seen {
    key: FileKey,
    object: String,
    columns: Vec<String>,
    stat: Stat,
}

/// Indexes every file whose header verifies, least recently written first, and removes the rest; then evicts
/// down to the limit.
pub fn rebuild(cache: &DiskCache, dir: usize) -> Result<()> {
    let place = &cache.dirs[dir];
    let fail = |e: io::Error| refusal(place.path(), "cannot be read", e);
    let block_bytes = place.disk().block_bytes(place.path()).map_err(fail)?;
    cache.block_bytes.fetch_max(block_bytes, Ordering::Relaxed);
    let (seen, damaged) = read_all(place).map_err(fail)?;
    for (path, why) in damaged {
        cache.counters.corrupt.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(error = %format!("{}: {why}", path.display()), "a segment file is damaged: removed, it will be filled again");
        place.disk().remove(&path).ok();
    }
    let mut names: HashSet<Arc<[String]>> = HashSet::new();
    let mut twice = Vec::new();
    let mut index = cache.index();
    index.clear(dir);
    for seen in seen {
        let columns = match names.get(seen.columns.as_slice()) {
            Some(known) => known.clone(),
            None => {
                let new: Arc<[String]> = seen.columns.into();
                names.insert(new.clone());
                new
            }
        };
        // Another directory holds the same since this one was set aside: one is enough.
        if index.get(&seen.key).is_some() {
            twice.push(place.segment(&seen.key));
            continue;
        }
        let bytes = cache.charge(seen.stat.stamp.bytes).max(seen.stat.allocated_bytes);
        let booking = index.book(dir, bytes);
        let entry = Entry {
            object: seen.object,
            columns,
            bytes,
            dir,
            used: 0,
            pinned: false,
            replica: false,
            map: None,
        };
        index.insert(seen.key, entry, booking);
    }
    drop(index);
    // Unlinking takes the disk's time: readers of other directories need the index meanwhile.
    twice.iter().for_each(|path| drop(place.disk().remove(path)));
    let beside = beside_bytes(cache, place).map_err(fail)?;
    cache.index().book(dir, beside);
    cache.measure(dir).map_err(fail)?;
    trim(cache, dir);
    Ok(())
}

/// What others keep beside the segments, as it was booked when it was written.
fn beside_bytes(cache: &DiskCache, dir: &Dir) -> io::Result<u64> {
    let mut all = 0;
    for folder in ["v1/manifests", "v1/frozen"].map(|name| dir.path().join(name)) {
        let names = match dir.disk().list(&folder) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            names => names?,
        };
        let bytes = |name: String| dir.disk().stat_path(&folder.join(name)).map(|s| s.stamp.bytes);
        let booked = names.into_iter().filter_map(|name| bytes(name).ok()).map(|bytes| cache.beside(bytes));
        all += cache.beside(0) + booked.sum::<u64>();
    }
    Ok(all)
}

/// What a directory holds: files by the time they were written, and those that do not verify.
#[expect(clippy::type_complexity, reason = "two lists, taken apart where they are made")]
fn read_all(dir: &Dir) -> io::Result<(Vec<Seen>, Vec<(PathBuf, Unreadable)>)> {
    let (next, found) = (AtomicUsize::new(0), Mutex::new((Vec::new(), Vec::new())));
    let work = || -> io::Result<()> {
        while let Some(shard) = SHARDS.get(next.fetch_add(1, Ordering::Relaxed)) {
            let folder = dir.shard(shard);
            let (mut good, mut bad) = (Vec::new(), Vec::new());
            for name in dir.disk().list(&folder)? {
                let path = folder.join(&name);
                match read_one(dir, &path, &name) {
                    Ok(seen) => good.push(seen),
                    Err(Unreadable::Gone) => {}
                    Err(why) => {
                        if matches!(why, Unreadable::Disk(_)) {
                            dir.probe()?;
                        }
                        bad.push((path, why));
                    }
                }
            }
            let mut found = found.lock();
            found.0.append(&mut good);
            found.1.append(&mut bad);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        let failed = |_| Err(io::Error::other("a thread that read it panicked"));
        threads.into_iter().try_for_each(|t| t.join().unwrap_or_else(failed))
    })?;
    let (mut seen, damaged) = found.into_inner();
    seen.sort_by_key(|s: &Seen| (s.stat.stamp.modified, s.key));
    Ok((seen, damaged))
}

fn read_one(dir: &Dir, path: &Path, name: &str) -> Result<Seen, Unreadable> {
    let file = dir.disk().open(path)?;
    let stat = dir.disk().stat(&file)?;
    let (header, _) = read_header(dir.disk(), &file, stat.stamp.bytes)?;
    let id = header.segment_id().map_err(|e| Unreadable::Damaged(e.message))?;
    let key = FileKey::new(id, &header.columns);
    match name == key.file_name() {
        true => Ok(Seen { key, object: header.object, columns: header.columns, stat }),
        false => Err(Unreadable::Damaged("its name is not that of its content".into())),
    }
}

/// Evicts what is above the limit, which may have been lowered since: by recency, what is pinned last.
fn trim(cache: &DiskCache, dir: usize) {
    let mut index = cache.index();
    let mut held: Vec<_> =
        index.entries().filter(|(_, e)| e.dir == dir).map(|(key, e)| (e.pinned, e.used, *key)).collect();
    held.sort_unstable();
    let (mut going, mut going_bytes, mut pinned_gone) = (Vec::new(), 0, 0);
    for (pinned, _, key) in held {
        if index.quota(dir).used_bytes <= index.quota(dir).limit_bytes + going_bytes {
            break;
        }
        let Some((booking, entry)) = index.take_one(&key, |_| true) else { continue };
        going_bytes += booking.bytes;
        pinned_gone += u64::from(pinned);
        going.push((key, booking, entry));
    }
    drop(index);
    for (key, booking, entry) in going {
        drop(entry);
        cache.unlink_taken(&key, booking);
        cache.counters.evictions.fetch_add(1, Ordering::Relaxed);
    }
    if pinned_gone > 0 {
        tracing::warn!(
            segments = pinned_gone,
            "pinned segments were evicted: they are more than the limit; raise --cache-bytes or unpin some"
        );
    }
}
