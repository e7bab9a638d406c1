//! Folders on disk: their size, a watch over it, and small file systems of their own.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

/// All files below a folder; those that go while it is walked are left out.
pub fn files_under(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut files = Vec::new();
    for entry in entries.flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files.extend(files_under(&entry.path())),
            Ok(_) => files.push(entry.path()),
            Err(_) => {}
        }
    }
    files
}

/// The segment files of a cache directory.
pub fn segment_files(cache: &Path) -> Vec<PathBuf> {
    files_under(&cache.join("v1/segments"))
}

/// Bytes that files and folders take up, in blocks, as `du` counts them.
pub fn du(folder: &Path) -> u64 {
    let own = std::fs::symlink_metadata(folder).map_or(0, |of| 512 * of.blocks());
    let Ok(entries) = std::fs::read_dir(folder) else { return own };
    let below = entries.flatten().map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => du(&entry.path()),
        _ => entry.metadata().map_or(0, |of| 512 * of.blocks()),
    });
    own + below.sum::<u64>()
}

/// Tells a file from every other: inode numbers are reused.
pub type Identity = (u64, Option<SystemTime>);

/// The identity of a file.
pub fn identity(of: &Metadata) -> Identity {
    (of.ino(), of.created().ok())
}

/// Bytes of files and folders at one instant. Files come and go while a folder is walked; a walk that counts
/// a removed file and its replacement says too much. So it is walked twice: a file that both walks saw was
/// there in between.
pub fn du_at_once(folders: &[PathBuf]) -> u64 {
    let walk = || {
        let mut seen = BTreeMap::new();
        folders.iter().for_each(|folder| sizes(folder, &mut seen));
        seen
    };
    let (first, second) = (walk(), walk());
    first.iter().filter(|(file, _)| second.contains_key(file)).map(|(_, bytes)| bytes).sum()
}

fn sizes(path: &Path, seen: &mut BTreeMap<Identity, u64>) {
    let Ok(of) = std::fs::symlink_metadata(path) else { return };
    seen.insert(identity(&of), 512 * of.blocks());
    if of.is_dir() {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.for_each(|entry| sizes(&entry.path(), seen));
    }
}

/// Measures every 10 ms how much some folders take up together, and remembers the most.
pub struct Watch {
    most: Arc<AtomicU64>,
    looks: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts looking.
    pub fn start(folders: Vec<PathBuf>) -> Self {
        let watch = Self { most: Arc::default(), looks: Arc::default(), stop: Arc::default(), thread: None };
        let (most, looks, stop) = (watch.most.clone(), watch.looks.clone(), watch.stop.clone());
        let thread = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                most.fetch_max(du_at_once(&folders), Ordering::Relaxed);
                looks.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Self { thread: Some(thread), ..watch }
    }

    /// The most, and how often it was measured.
    pub fn end(mut self) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic in it has been printed; then the figures are those up to it.
            let _ = thread.join();
        }
        (self.most.load(Ordering::Relaxed), self.looks.load(Ordering::Relaxed))
    }
}

/// A file system of its own, in memory, of a few MB.
pub struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// None where that is not allowed: containers without privileges cannot mount.
    pub fn mount(bytes: u64) -> Option<Self> {
        let folder = tempfile::tempdir().ok()?;
        let options = format!("size={bytes},mode=700");
        let mounted = mount(&["-t", "tmpfs", "-o", &options, "tmpfs"], folder.path());
        mounted.then_some(Self(folder))
    }

    /// Where it is.
    pub fn folder(&self) -> PathBuf {
        self.0.path().to_owned()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a server may not have gone yet when a test fails.
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn mount(arguments: &[&str], at: &Path) -> bool {
    Command::new("mount").args(arguments).arg(at).output().is_ok_and(|ended| ended.status.success())
}
