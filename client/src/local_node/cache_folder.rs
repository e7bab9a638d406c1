//! The folder of a node's segments, in the folder of all nodes of the user: `nodes/NAME`.
//!
//! A node locks its own. Where another process has locked it (a node on another machine with the same home,
//! or in a container with the same cache and another `/tmp`), the next free one is taken: `nodes/NAME.1` and
//! so on. Folders that no node uses are removed, oldest first, when all but the one taken are together larger
//! than one node may be.

use forebay_proto::{Error, Result};
use std::fs::{self, DirBuilder, File, TryLockError};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// How many nodes of one name there may be.
const SLOTS: usize = 16;

/// How long a folder's node may still hold it: one that ends has taken its socket away before.
const PATIENCE: Duration = Duration::from_secs(3);

/// Bytes that a node takes at most, unless told otherwise.
const LIMIT_BYTES: u64 = 50_000_000_000;

/// With less room than this a cache is of no use.
const LEAST_BYTES: u64 = 64 << 20;

/// Of a folder that is being removed.
const GONE: &str = "gone";

/// A node's folder.
#[derive(Debug)]
pub(super) struct CacheFolder {
    pub path: PathBuf,
    all: PathBuf,
}

impl CacheFolder {
    /// The folder of the node `name` below `cache_dir`, which are made where they are missing. `Denied` if
    /// they cannot be.
    pub fn take(cache_dir: &Path, name: &str) -> Result<Self> {
        let all = cache_dir.join("nodes");
        let deadline = Instant::now() + PATIENCE;
        for slot in 0..SLOTS {
            let path = all.join(if slot == 0 { name.to_owned() } else { format!("{name}.{slot}") });
            loop {
                if claim(&path)? {
                    return Ok(Self { path, all });
                }
                if slot > 0 || Instant::now() > deadline {
                    break;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Err(Error::full(format!(
            "{SLOTS} cache nodes use {}/{name} already: name another folder by FOREBAY_CACHE_DIR",
            all.display()
        )))
    }

    /// Half of the room that is free or this node's already; 50 GB at most. `Full` if that is too little.
    pub fn default_bytes(&self) -> Result<u64> {
        let disk = rustix::fs::statvfs(&self.path).map_err(|e| denied(&self.path, e.into()))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let bytes = (free.saturating_add(size(&self.path)) / 2).min(LIMIT_BYTES);
        match bytes >= LEAST_BYTES {
            true => Ok(bytes),
            false => Err(Error::full(format!(
                "the disk of {} has only {free} bytes left for a cache: free some, or name another folder by \
                 FOREBAY_CACHE_DIR, or read without a cache (direct)",
                self.path.display()
            ))),
        }
    }

    /// Removes folders of nodes that do not run, oldest first, until the others have no more than
    /// `limit_bytes` together.
    pub fn sweep(&self, limit_bytes: u64) {
        let mut others: Vec<(SystemTime, PathBuf, u64)> = Vec::new();
        for entry in fs::read_dir(&self.all).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            if path == self.path || !is_ours(&name.to_string_lossy()) || !is_folder(&path) {
                continue;
            }
            if path.extension().is_some_and(|extension| extension == GONE) {
                fs::remove_dir_all(&path).ok();
                continue;
            }
            others.push((last_used(&path), path.clone(), size(&path)));
        }
        others.sort();
        let mut bytes: u64 = others.iter().map(|(_, _, bytes)| bytes).sum();
        for (used, path, its) in others {
            if bytes > limit_bytes && remove(&path, used) {
                tracing::info!(folder = %path.display(), bytes = its, "removed what a cache node of before had kept");
                bytes -= its;
            }
        }
    }
}

/// Makes a folder one that is used now, for a node that is about to lock it; false if another has it, or it
/// is just being removed.
fn claim(path: &Path) -> Result<bool> {
    make(path)?;
    // In this order: a removal looks at `used` with the lock held, and takes it away with the folder.
    let used = path.join("used");
    match fs::write(&used, "") {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(denied(path, e)),
        Ok(()) => Ok(!is_used(path) && used.exists()),
    }
}

/// When a node last began to use a folder.
fn last_used(path: &Path) -> SystemTime {
    let used = fs::metadata(path.join("used")).and_then(|file| file.modified());
    used.unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Removes a folder that was last used at `used`, unless a node uses it or is about to.
fn remove(path: &Path, used: SystemTime) -> bool {
    // Held until it has another name: no node takes it in between.
    let lock = File::options().create(true).append(true).open(path.join("lock"));
    let Some(_lock) = lock.ok().filter(|lock| lock.try_lock().is_ok()) else { return false };
    if last_used(path) != used {
        return false;
    }
    let gone = PathBuf::from(format!("{}.{GONE}", path.display()));
    fs::rename(path, &gone).and_then(|()| fs::remove_dir_all(&gone)).is_ok()
}

fn make(path: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|e| denied(path, e))
}

fn denied(path: &Path, e: std::io::Error) -> Error {
    Error::denied(format!(
        "{} cannot hold a cache: {e}: name another folder by FOREBAY_CACHE_DIR, or name a cache (endpoint), or read \
         without one (direct)",
        path.display()
    ))
}

/// Whether a node has locked it.
fn is_used(path: &Path) -> bool {
    let lock = File::options().append(true).open(path.join("lock"));
    lock.is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Whether a name is one that this module gives.
fn is_ours(name: &str) -> bool {
    let digits = name.split('.').next().unwrap_or_default();
    digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_hexdigit())
}

fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|file| file.is_dir())
}

/// Bytes of everything in a folder, as `du` counts. Links are not followed.
fn size(path: &Path) -> u64 {
    let Ok(file) = fs::symlink_metadata(path) else { return 0 };
    let mut bytes = file.blocks() * 512;
    if file.is_dir() {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        bytes += entries.map(|entry| size(&entry.path())).sum::<u64>();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(folder: &CacheFolder) -> File {
        let lock = File::create(folder.path.join("lock")).unwrap();
        lock.try_lock().unwrap();
        lock
    }

    #[test]
    fn a_folder_in_use_is_passed_over() {
        let root = tempfile::tempdir().unwrap();
        let name = "0".repeat(32);
        let take = || CacheFolder::take(&root.path().join("a/b"), &name).unwrap();
        let first = take();
        assert_eq!(fs::metadata(root.path().join("a")).unwrap().mode() & 0o777, 0o700);
        assert_eq!(take().path, first.path, "nobody uses it");
        let held = lock(&first);
        let second = take();
        assert!(second.path.ends_with(format!("nodes/{name}.1")));
        drop(held);
        assert_eq!(take().path, first.path);
    }

    #[test]
    fn what_no_node_uses_goes_oldest_first() {
        let root = tempfile::tempdir().unwrap();
        let take = |n: usize| {
            let folder = CacheFolder::take(root.path(), &format!("{n:032x}")).unwrap();
            fs::write(folder.path.join("data"), vec![1; 100_000]).unwrap();
            folder
        };
        let folders: Vec<CacheFolder> = (0..4).map(take).collect();
        let _used = lock(&folders[0]);
        // The clock of files may be coarse.
        std::thread::sleep(Duration::from_millis(50));
        fs::write(folders[1].path.join("used"), "").unwrap();
        let foreign = root.path().join("nodes/mine");
        fs::create_dir(&foreign).unwrap();
        let left_over = root.path().join(format!("nodes/{:032x}.{GONE}", 9));
        fs::create_dir(&left_over).unwrap();
        let own = CacheFolder::take(root.path(), &"f".repeat(32)).unwrap();
        own.sweep(1_000_000);
        assert!(folders.iter().all(|folder| folder.path.exists()) && !left_over.exists());
        own.sweep(250_000);
        let left: Vec<bool> = folders.iter().map(|folder| folder.path.exists()).collect();
        assert_eq!(left, [true, true, false, false], "one is used, one was used later");
        own.sweep(0);
        assert!(folders[0].path.exists() && !folders[1].path.exists());
        assert!(own.path.exists() && foreign.exists());
    }

    #[test]
    fn a_folder_that_is_taken_after_the_look_is_not_removed() {
        let root = tempfile::tempdir().unwrap();
        let take = || CacheFolder::take(root.path(), &"0".repeat(32)).unwrap();
        let folder = take();
        let looked = last_used(&folder.path);
        std::thread::sleep(Duration::from_millis(50));
        // Its node is started, and has not locked it yet.
        take();
        assert!(!remove(&folder.path, looked) && folder.path.exists());
        assert!(remove(&folder.path, last_used(&folder.path)) && !folder.path.exists());
    }

    #[test]
    fn no_right_to_write_is_told_with_what_helps() {
        let e = CacheFolder::take(Path::new("/proc/forebay"), "x").unwrap_err();
        let ways = ["FOREBAY_CACHE_DIR", "endpoint", "direct"];
        assert!(ways.iter().all(|way| e.message.contains(way)), "{e}");
        let root = tempfile::tempdir().unwrap();
        let bytes = CacheFolder::take(root.path(), "x").unwrap().default_bytes().unwrap();
        assert!((LEAST_BYTES..=LIMIT_BYTES).contains(&bytes));
    }
}
