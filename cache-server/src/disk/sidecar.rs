//! Small files that are kept beside the segments, in areas: folders of a directory that the owner of the
//! files names. They count against the limit, and segments leave for them.
//!
//! A file is kept in the first directory that works and has room. So it may move when a directory is set
//! aside, and there may be two of one name when that comes back: the one written last counts.

use super::dirs::{self, Dir, Health};
use super::file_system::Stat;
use super::quota::Reservation;
use super::segment_files::{SegmentFiles, TRIES};
use forebay_proto::{Error, Result};
use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The files of one area.
#[derive(Debug, Clone)]
pub struct Sidecar {
    pub(super) files: Arc<SegmentFiles>,
    /// The folder under every directory, e.g. `v1/manifests`.
    pub(super) area: &'static str,
}

impl Sidecar {
    /// The names of all files, the one written longest ago first.
    pub fn list(&self) -> Vec<String> {
        let mut written: BTreeMap<String, i128> = BTreeMap::new();
        for (i, dir) in self.readable() {
            let names = match dir.disk.list(&dir.path.join(self.area)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    self.files.fault(i, &e, None);
                    continue;
                }
                names => names.unwrap_or_default(),
            };
            for name in names {
                let stat = dir.disk.stat_path(&self.path(dir, &name));
                let Some(stat) = stat.ok().filter(|stat| !stat.is_dir) else { continue };
                let at = written.entry(name).or_insert(stat.stamp.modified);
                *at = stat.stamp.modified.max(*at);
            }
        }
        let mut all: Vec<(i128, String)> = written.into_iter().map(|(name, at)| (at, name)).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, name)| name).collect()
    }

    /// A file's content; `None` if no directory has it.
    pub fn read(&self, name: &str) -> Option<Vec<u8>> {
        let (dir, path, _) = self.find(name).into_iter().max_by_key(|(_, _, stat)| stat.stamp.modified)?;
        self.files.dirs.get(dir).read(&path).map_err(|e| self.failed(dir, &path, &e, None)).ok()
    }

    /// Writes a file. The one of its name before it stays until this one has taken its place. `Full` where
    /// the limit has no room for it, `Retry` where no directory could write it.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        let mut why = Error::retry(format!("{name}: no cache directory works now"));
        for dir in self.files.dirs.writable() {
            match (0..TRIES).find_map(|tries| self.try_write(dir, name, content, tries + 1 == TRIES)) {
                Some(Err(e)) => why = e,
                Some(Ok(())) => return Ok(()),
                None => {}
            }
        }
        Err(why)
    }

    /// Writes a file in one directory. `None` where its disk turned out to be full, unless that is the last
    /// try: for the next one segments leave.
    fn try_write(&self, dir: usize, name: &str, content: &[u8], is_last: bool) -> Option<Result<()>> {
        let bytes = self.files.dirs.sidecar_bytes(content.len() as u64);
        let Some(reservation) = self.files.reserve_sidecar(dir, bytes) else {
            let advice = match self.files.index().quotas.of(dir).is_lowered() {
                true => "its disk is full: free room there",
                false => "raise --cache-bytes",
            };
            return Some(Err(Error::full(format!("{name}: the cache has no room for it: {advice}"))));
        };
        let before = self.find(name);
        let placed = self.place(dir, name, content);
        let Err(e) = placed else {
            before.into_iter().for_each(|(old, path, stat)| match old == dir {
                true => self.release(old, stat),
                false => self.remove_at(old, &path, stat),
            });
            return Some(Ok(()));
        };
        self.files.index().quotas.release(reservation);
        if dirs::is_full(&e) && !is_last {
            self.files.fault(dir, &e, Some(&reservation));
            return None;
        }
        let path = self.path(self.files.dirs.get(dir), name);
        self.failed(dir, &path, &e, Some(&reservation));
        Some(Err(Error::retry(format!("{}: write: {e}", path.display()))))
    }

    /// Removes a file, wherever it is.
    pub fn remove(&self, name: &str) {
        self.find(name).into_iter().for_each(|(dir, path, stat)| self.remove_at(dir, &path, stat));
    }

    fn place(&self, dir: usize, name: &str, content: &[u8]) -> io::Result<()> {
        let dir = self.files.dirs.get(dir);
        // The folder is made again if the directory lost all it held.
        dir.disk.make_dir(&dir.path.join(self.area))?;
        dir.place(&self.path(dir, name), &mut [IoSlice::new(content)], false).map(drop)
    }

    fn remove_at(&self, dir: usize, path: &Path, stat: Stat) {
        match self.files.dirs.get(dir).disk.remove(path) {
            Ok(()) => self.release(dir, stat),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => self.failed(dir, path, &e, None),
        }
    }

    fn release(&self, dir: usize, stat: Stat) {
        let bytes = self.files.dirs.sidecar_bytes(stat.stamp.bytes);
        let mut index = self.files.index();
        let reservation = index.quotas.in_use(dir, bytes);
        index.quotas.release(reservation);
    }

    fn failed(&self, dir: usize, path: &Path, e: &io::Error, failed: Option<&Reservation>) {
        tracing::warn!(error = %e, path = %path.display(), "a file beside the segments could not be read or written");
        self.files.fault(dir, e, failed);
    }

    /// The directories that have a file of this name.
    fn find(&self, name: &str) -> Vec<(usize, PathBuf, Stat)> {
        let in_dir = |(i, dir): (usize, &Dir)| {
            let path = self.path(dir, name);
            let stat = dir.disk.stat_path(&path).ok()?;
            Some((i, path, stat))
        };
        self.readable().filter_map(in_dir).collect()
    }

    fn readable(&self) -> impl Iterator<Item = (usize, &Dir)> {
        self.files.dirs.all().iter().enumerate().filter(|(_, dir)| dir.health() != Health::Away)
    }

    fn path(&self, dir: &Dir, name: &str) -> PathBuf {
        dir.path.join(self.area).join(name)
    }
}

#[cfg(test)]
mod tests {
    use crate::disk::dirs::Health;
    use crate::disk::tests::NoForecast;
    use crate::disk::{DiskCache, DiskCacheSettings};
    use forebay_proto::Kind;
    use std::fs;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    #[test]
    fn a_file_moves_when_its_directory_fails_and_the_one_written_last_counts() {
        let temp = tempfile::tempdir().unwrap();
        let dirs = ["a", "b"].map(|name| temp.path().join(name));
        let settings = DiskCacheSettings { dirs: dirs.to_vec(), ..DiskCacheSettings::new("", 16 << 20) };
        let cache = DiskCache::open(&settings, Arc::new(NoForecast)).unwrap();
        let (notes, empty) = (cache.sidecar("v1/notes"), cache.used_bytes());
        notes.write("x", b"first").unwrap();
        assert!(dirs[0].join("v1/notes/x").exists() && cache.used_bytes() > empty);
        // The directory is away, and comes back with what it held.
        let aside = temp.path().join("aside");
        fs::rename(&dirs[0], &aside).unwrap();
        fs::write(&dirs[0], "in the way").unwrap();
        notes.write("x", b"second").unwrap();
        assert_eq!(cache.dirs()[0].health, Health::Away);
        assert_eq!(fs::read(dirs[1].join("v1/notes/x")).unwrap(), b"second");
        fs::remove_file(&dirs[0]).unwrap();
        fs::rename(&aside, &dirs[0]).unwrap();
        cache.heal(Instant::now() + Duration::from_secs(3600));
        assert_eq!(cache.dirs()[0].health, Health::Up);
        assert_eq!((notes.list(), notes.read("x").unwrap()), (vec!["x".to_owned()], b"second".to_vec()));
        notes.write("x", b"third").unwrap();
        assert!(!dirs[1].join("v1/notes/x").exists(), "one is enough");
        notes.remove("x");
        assert_eq!((notes.list().len(), notes.read("x")), (0, None));
        assert_eq!(
            cache.used_bytes(),
            empty + 4096,
            "and the list of pins, which a directory gets that comes back"
        );
    }

    #[test]
    fn a_file_without_room_leaves_the_one_before_it() {
        let temp = tempfile::tempdir().unwrap();
        let cache =
            DiskCache::open(&DiskCacheSettings::new(temp.path(), 300 << 10), Arc::new(NoForecast)).unwrap();
        let notes = cache.sidecar("v1/notes");
        notes.write("x", &[1; 1000]).unwrap();
        let used = cache.used_bytes();
        assert_eq!(notes.write("x", &[2; 300 << 10]).unwrap_err().kind, Kind::Full);
        assert_eq!((notes.read("x"), cache.used_bytes()), (Some(vec![1; 1000]), used));
    }
}
