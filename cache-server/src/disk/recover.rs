//! What a directory holds, read when it is taken into use. Only headers are read, each in one read, by
//! several threads; bodies are checked when they are opened.

use super::dirs::{Dir, SHARDS};
use super::file::{FileKey, Unreadable, read_header};
use super::file_system::Stat;
use parking_lot::Mutex;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads that read the headers of one directory: enough to keep a disk busy whose every read takes a while.
const THREADS: usize = 4;

/// A file whose header verifies.
#[derive(Debug)]
pub struct Seen {
    pub key: FileKey,
    pub object: String,
    pub columns: Vec<String>,
    pub stat: Stat,
}

/// What a directory holds.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Segment files, least recently written first.
    pub seen: Vec<Seen>,
    /// Files among them that do not verify.
    pub damaged: Vec<(PathBuf, Unreadable)>,
}

/// Reads the headers of all segment files in a directory.
pub fn recover(dir: &Dir) -> io::Result<Recovered> {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Recovered::default()));
    let work = || -> io::Result<()> {
        while let Some(shard) = SHARDS.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut some = recover_folder(dir, &dir.shard(shard))?;
            let mut found = found.lock();
            found.seen.append(&mut some.seen);
            found.damaged.append(&mut some.damaged);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        let failed = |_| Err(io::Error::other("a thread that read it panicked"));
        threads.into_iter().try_for_each(|t| t.join().unwrap_or_else(failed))
    })?;
    let mut found = found.into_inner();
    found.seen.sort_by_key(|s| (s.stat.stamp.modified, s.key));
    Ok(found)
}

/// Lengths of the small files that are kept beside the segments, in whatever folders.
pub fn sidecar_lengths(dir: &Dir) -> io::Result<Vec<u64>> {
    let (disk, root) = (dir.disk(), dir.path().join("v1"));
    let mut lengths = Vec::new();
    for name in disk.list(&root)? {
        let folder = root.join(&name);
        if ["segments", "tmp"].contains(&name.as_str()) || !disk.stat_path(&folder)?.is_dir {
            continue;
        }
        let names = disk.list(&folder)?;
        lengths
            .extend(names.iter().filter_map(|n| disk.stat_path(&folder.join(n)).ok()).map(|s| s.stamp.bytes));
    }
    Ok(lengths)
}

fn recover_folder(dir: &Dir, folder: &Path) -> io::Result<Recovered> {
    let mut found = Recovered::default();
    for name in dir.disk().list(folder)? {
        let path = folder.join(&name);
        match recover_file(dir, &path, &name) {
            Ok(seen) => found.seen.push(seen),
            Err(Unreadable::Gone) => {}
            Err(why) => {
                if matches!(why, Unreadable::Disk(_)) {
                    dir.probe()?;
                }
                found.damaged.push((path, why));
            }
        }
    }
    Ok(found)
}

fn recover_file(dir: &Dir, path: &Path, name: &str) -> Result<Seen, Unreadable> {
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
