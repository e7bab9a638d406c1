//! Manifests on disk, beside the segments and within the disk cache's limit, so that a node that was
//! restarted serves what it holds without asking the object store. All of it touches the disk: not for an
//! async thread. (Beside them lies what `frozen` keeps.)

use crate::disk::DiskCache;
use forebay_proto::manifest::{Digest, Manifest};
use forebay_proto::{Error, Result, v1};
use prost::Message as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The folder of manifests.
#[derive(Clone)]
pub(super) struct Files {
    disk: Arc<DiskCache>,
    /// The directory of the disk cache that it is in.
    home: PathBuf,
    folder: PathBuf,
}

impl Files {
    /// Makes the folder in a directory of the disk cache that works.
    pub fn open(disk: Arc<DiskCache>) -> Result<Self> {
        let home = disk.home()?;
        let folder = home.join("v1/manifests");
        std::fs::create_dir_all(&folder).map_err(|e| {
            Error::denied(format!("cache directory {}: cannot be made: {e}", folder.display()))
        })?;
        Ok(Self { disk, home, folder })
    }

    /// The manifests that are there, as far as `read` can make something of them; the others are removed.
    pub fn recover<T>(&self, read: impl Fn(Manifest) -> Result<T>) -> Vec<T> {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return Vec::new() };
        let one = |path: &Path| -> Result<T> {
            let bytes = std::fs::read(path).map_err(|e| Error::corrupt(e.to_string()))?;
            let wire = v1::Manifest::decode(&bytes[..]).map_err(|e| Error::corrupt(e.to_string()))?;
            read(Manifest::try_from(wire)?)
        };
        let mut all = Vec::new();
        for path in entries.flatten().map(|e| e.path()) {
            match one(&path) {
                Ok(manifest) => all.push(manifest),
                Err(e) => {
                    tracing::info!(path = %path.display(), reason = %e, "a kept manifest is of no use: removed");
                    std::fs::remove_file(&path).ok();
                }
            }
        }
        all
    }

    /// Writes a manifest where the disk cache's limit has room for it.
    pub fn keep(&self, manifest: &Manifest) -> Result<()> {
        self.write(&self.path(manifest.digest()), v1::Manifest::from(manifest).encode_to_vec())
    }

    /// Writes a file where the disk cache's limit has room for it.
    pub fn write(&self, path: &Path, content: Vec<u8>) -> Result<()> {
        let bytes = content.len() as u64;
        if !self.disk.reserve_sidecar(&self.home, bytes) {
            return Err(Error::full(format!("{}: the cache has no room for it", path.display())));
        }
        let tmp = path.with_extension("tmp");
        // The folder is made anew if the directory lost all it held.
        let written = std::fs::create_dir_all(path.parent().unwrap_or(&self.folder))
            .and_then(|()| std::fs::write(&tmp, content))
            .and_then(|()| std::fs::rename(&tmp, path));
        if written.is_err() {
            std::fs::remove_file(&tmp).ok();
            self.disk.release_sidecar(&self.home, bytes);
        }
        written.map_err(|e| Error::retry(format!("{}: write: {e}", path.display())))
    }

    /// Removes manifests.
    pub fn remove(&self, gone: &[Digest]) {
        gone.iter().for_each(|digest| self.remove_file(&self.path(*digest)));
    }

    /// Removes a file that was written here.
    pub fn remove_file(&self, path: &Path) {
        let bytes = std::fs::metadata(path).map_or(0, |m| m.len());
        if std::fs::remove_file(path).is_ok() {
            self.disk.release_sidecar(&self.home, bytes);
        }
    }

    /// The folder of frozen datasets.
    pub fn frozen_folder(&self) -> PathBuf {
        self.home.join("v1/frozen")
    }

    fn path(&self, digest: Digest) -> PathBuf {
        self.folder.join(format!("{digest}.manifest"))
    }
}
