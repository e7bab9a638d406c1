//! Takes the files of a directory into the index, when the cache is opened and when the directory comes back.
//! Only headers are read, each in one read, by several threads; bodies are checked when they are opened.

use super::dirs::{Dir, Filler, SHARDS, Settle, is_of_process};
use super::file::{FileKey, Unreadable, read_header};
use super::file_system::Stat;
use super::index::{Entry, Taken};
use super::pins::Pins;
use super::segment_files::SegmentFiles;
use forebay_proto::Result;
use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Folders that are kept beside the segments: a block of each counts from the start.
const SIDECAR_FOLDERS: u64 = 2;

/// Threads that read the headers of one directory: enough to keep a disk busy whose every read takes a while.
const THREADS: usize = 4;

/// A file whose header verifies.
struct Seen {
    key: FileKey,
    object: Arc<str>,
    columns: Vec<String>,
    stat: Stat,
}

/// Rebuilds the index of directories.
#[derive(Debug)]
pub struct Rebuild {
    pub files: Arc<SegmentFiles>,
    pub pins: Arc<Pins>,
}

impl Filler for Rebuild {
    /// Indexes every file whose header verifies and removes the rest. Of files that another directory holds
    /// as well one is enough; the limit, to which files are evicted then, may have been lowered since.
    fn fill(&self, dir: usize) -> Result<Settle> {
        let (files, place) = (self.files.clone(), self.files.dirs.get(dir));
        let fail = |e: io::Error| place.refusal("cannot be read", e);
        files.dirs.note_block_bytes(dir).map_err(fail)?;
        self.pins.learn(dir);
        let found = recover(&files, place).map_err(fail)?;
        let sidecar = sidecar_bytes(&files, place).map_err(fail)?;
        let folders = files.dirs.measure(dir).map_err(fail)?;
        let twice = index(&files, dir, found, [sidecar, folders]);
        Ok(Box::new(move || {
            twice.iter().for_each(|key| remove_spare(&files, dir, key));
            trim(&files, dir);
        }))
    }

    fn lower(&self, dir: usize) -> u32 {
        self.files.index().quotas.lower(dir, None)
    }

    fn raise(&self, dir: usize, more_bytes: u64, has_room: &dyn Fn() -> bool) -> bool {
        // The disk is not waited for with the index locked.
        let would_rise = self.files.index().quotas.would_rise(dir, more_bytes);
        would_rise && has_room() && self.files.index().quotas.raise(dir, more_bytes)
    }

    fn tried(&self, dir: usize, tried: Result<()>) {
        let path = self.files.dirs.get(dir).path.display();
        match tried {
            Ok(()) => {
                tracing::info!(dir = %path, "a cache directory works again");
                self.pins.save_in(dir);
            }
            Err(e) => tracing::debug!(dir = %path, error = %e, "a cache directory is still set aside"),
        }
    }
}

/// Indexes the files of a directory, and counts what it has besides. Returns those that another directory
/// holds as well.
fn index(files: &SegmentFiles, dir: usize, found: Vec<Seen>, [sidecar, folders]: [u64; 2]) -> Vec<FileKey> {
    let mut names: HashSet<Arc<[String]>> = HashSet::new();
    let mut objects: HashSet<Arc<str>> = HashSet::new();
    let mut twice = Vec::new();
    let mut index = files.index();
    index.clear(dir);
    for seen in found {
        if index.get(&seen.key).is_some() {
            twice.push(seen.key);
            continue;
        }
        let columns = names.get(seen.columns.as_slice()).cloned().unwrap_or_else(|| seen.columns.into());
        names.insert(columns.clone());
        let object = objects.get(&*seen.object).cloned().unwrap_or(seen.object);
        objects.insert(object.clone());
        let bytes = files.dirs.allocated_bytes(seen.stat.stamp.bytes).max(seen.stat.allocated_bytes);
        let reservation = index.quotas.reserve(dir, bytes);
        let pinned = files.is_pinned(&object);
        let entry = Entry { object, columns, pinned, ..Entry::default() };
        index.insert(seen.key, entry, reservation);
    }
    index.quotas.reserve(dir, sidecar);
    index.quotas.set_folders(dir, folders);
    twice
}

/// Removes a file that another directory holds as well, unless it was written again since.
fn remove_spare(files: &SegmentFiles, dir: usize, key: &FileKey) {
    // Meanwhile nobody writes a file of its name.
    let Some(_writing) = files.begin_writing(key) else { return };
    let place = files.dirs.get(dir);
    let is_indexed = files.index().get(key).is_some_and(|entry| entry.dir() == dir);
    if !is_indexed {
        place.disk.remove(&place.segment(key)).ok();
    }
}

/// Reads the headers of all segment files in a directory: least recently written first. Those that do not
/// verify are removed.
fn recover(files: &SegmentFiles, dir: &Dir) -> io::Result<Vec<Seen>> {
    let work = |shards: &[&str]| -> io::Result<Vec<Seen>> {
        let mut found = Vec::new();
        for shard in shards {
            let folder = dir.shard(shard);
            for name in dir.disk.list(&folder)? {
                let path = folder.join(&name);
                match recover_file(dir, &path, &name) {
                    Ok(seen) => found.push(seen),
                    Err(Unreadable::Gone) => {}
                    Err(why) => {
                        match why {
                            // The directory is tried again.
                            Unreadable::Disk(e) if is_of_process(&e) => return Err(e),
                            Unreadable::Disk(_) => dir.probe().map(drop)?,
                            _ => {}
                        }
                        files.note_damaged(&path, &why);
                        dir.disk.remove(&path).ok();
                    }
                }
            }
        }
        Ok(found)
    };
    let failed = |_| Err(io::Error::other("a thread that read it panicked"));
    let found: io::Result<Vec<Vec<Seen>>> = std::thread::scope(|scope| {
        let shards = SHARDS.chunks(SHARDS.len() / THREADS);
        let threads: Vec<_> = shards.map(|shards| scope.spawn(|| work(shards))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(failed)).collect()
    });
    let mut found: Vec<Seen> = found?.into_iter().flatten().collect();
    found.sort_by_key(|s| (s.stat.stamp.modified, s.key));
    Ok(found)
}

fn recover_file(dir: &Dir, path: &Path, name: &str) -> Result<Seen, Unreadable> {
    let file = dir.disk.open(path)?;
    let stat = dir.disk.stat(&file)?;
    let (header, _) = read_header(&*dir.disk, &file, stat.stamp.bytes)?;
    let origin = header.origin().map_err(|e| Unreadable::Damaged(e.message))?;
    let key = FileKey::new(origin.id, &header.columns);
    match name == key.file_name() {
        true => Ok(Seen { key, object: origin.object, columns: header.columns, stat }),
        false => Err(Unreadable::Damaged("its name is not that of its content".into())),
    }
}

/// Bytes of the small files that are kept beside the segments, in whatever folders.
fn sidecar_bytes(files: &SegmentFiles, dir: &Dir) -> io::Result<u64> {
    let (disk, root, mut bytes) =
        (&dir.disk, dir.path.join("v1"), SIDECAR_FOLDERS * files.dirs.sidecar_bytes(0));
    for name in disk.list(&root)? {
        let folder = root.join(&name);
        if ["segments", "tmp"].contains(&name.as_str()) || !disk.stat_path(&folder)?.is_dir {
            continue;
        }
        for name in disk.list(&folder)? {
            let stat = disk.stat_path(&folder.join(name)).ok();
            bytes += stat.map_or(0, |stat| files.dirs.sidecar_bytes(stat.stamp.bytes));
        }
    }
    Ok(bytes)
}

/// Evicts files above the limit: by recency, pinned ones last.
fn trim(files: &SegmentFiles, dir: usize) {
    let mut index = files.index();
    let mut held: Vec<_> =
        index.entries().filter(|(_, e)| e.dir() == dir).map(|(key, e)| (e.pinned, e.used, *key)).collect();
    held.sort_unstable();
    let (mut going, mut going_bytes, mut pinned_gone) = (Vec::new(), 0, 0);
    for (pinned, _, key) in held {
        if index.quotas.of(dir).short_bytes(0) <= going_bytes {
            break;
        }
        let Some(file) = index.take_one(&key, |_| true) else { continue };
        going_bytes += file.reservation.bytes;
        pinned_gone += u64::from(pinned);
        going.push(file);
    }
    drop(index);
    files.counters.evictions.fetch_add(going.len() as u64, Ordering::Relaxed);
    for Taken { key, reservation, map } in going {
        drop(map);
        files.unlink_taken(&key, reservation);
    }
    if pinned_gone > 0 {
        tracing::warn!(
            segments = pinned_gone,
            "pinned segments were evicted: they are more than the limit; raise --cache-bytes or unpin some"
        );
    }
}
