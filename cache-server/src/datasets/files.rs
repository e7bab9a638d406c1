//! Manifests on disk, beside the segments and within the disk cache's limit, so that a node that was
//! restarted serves what it holds without asking the object store. All of it touches the disk: not for an
//! async thread.

use crate::disk::{DiskCache, Sidecar};
use forebay_proto::manifest::{DatasetId, Manifest};
use forebay_proto::{Error, Result, v1};
use prost::Message as _;

/// What the names of manifests end in.
const SUFFIX: &str = ".manifest";

/// The manifests that a node keeps, by dataset id.
#[derive(Clone)]
pub(super) struct ManifestFiles {
    files: Sidecar,
}

impl ManifestFiles {
    pub fn new(disk: &DiskCache) -> Self {
        Self { files: disk.sidecar("v1/manifests") }
    }

    /// The manifests that are kept, as far as `read` can make something of them. The others are removed.
    pub fn recover<T>(&self, read: impl Fn(Manifest) -> Result<T>) -> Vec<T> {
        let one = |name: &str| -> Result<T> {
            let stem = name.strip_suffix(SUFFIX).ok_or_else(|| Error::corrupt("it was never finished"))?;
            let bytes = self.files.read(name).ok_or_else(|| Error::corrupt("it cannot be read"))?;
            let wire = v1::Manifest::decode(&bytes[..]).map_err(|e| Error::corrupt(e.to_string()))?;
            let manifest = Manifest::try_from(wire)?;
            if stem == manifest.digest().to_string() {
                // Earlier versions named the file by the digest alone.
                self.keep(&manifest)?;
                self.files.remove(name);
            } else if stem != manifest.id().to_string() {
                return Err(Error::corrupt("its name is not that of its content"));
            }
            read(manifest)
        };
        let mut all = Vec::new();
        for name in self.files.list() {
            match one(&name) {
                Ok(manifest) => all.push(manifest),
                Err(e) => {
                    tracing::info!(name, reason = %e, "a kept manifest is of no use: removed");
                    self.files.remove(&name);
                }
            }
        }
        all
    }

    /// Keeps a manifest. `Full` or `Retry` if no cache directory can.
    pub fn keep(&self, manifest: &Manifest) -> Result<()> {
        let content = v1::Manifest::from(manifest).encode_to_vec();
        self.files.write(&name(manifest.id()), &content)
    }

    pub fn remove(&self, gone: &[DatasetId]) {
        gone.iter().for_each(|id| self.files.remove(&name(*id)));
    }
}

fn name(id: DatasetId) -> String {
    format!("{id}{SUFFIX}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::DiskCacheSettings;
    use crate::disk::tests::NoForecast;
    use forebay_proto::manifest::{Object, SegmentSize};
    use std::fs;
    use std::sync::Arc;

    fn manifest(n: usize) -> Manifest {
        let object = Object { key: "o".into(), etag: format!("e{n}"), size: 1, ..Default::default() };
        let size = SegmentSize { object: 0, row_groups: 1, rows: 5, decoded_bytes: 40 };
        Manifest::new("s3://b/d".to_owned(), 1, vec![], vec![object], &[size]).unwrap()
    }

    fn recovered(files: &ManifestFiles) -> Vec<DatasetId> {
        let mut all = files.recover(|manifest| Ok(manifest.id()));
        all.sort_unstable();
        all
    }

    #[test]
    fn a_manifest_that_was_never_finished_or_is_damaged_goes_with_its_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let settings = DiskCacheSettings::new(dir.path(), 16 << 20);
        let open = || DiskCache::open(&settings, Arc::new(NoForecast)).unwrap();
        let disk = open();
        let files = ManifestFiles::new(&disk);
        files.keep(&manifest(1)).unwrap();
        let used = disk.used_bytes();
        files.keep(&manifest(2)).unwrap();
        let folder = dir.path().join("v1/manifests");
        let [one, two] = [1, 2].map(|n| folder.join(name(manifest(n).id())));
        // As servers before this one left it after a crash: whole, under a name that is never removed.
        fs::copy(&two, one.with_extension("tmp")).unwrap();
        fs::write(&two, "damaged").unwrap();
        drop((files, disk));
        let disk = open();
        let files = ManifestFiles::new(&disk);
        assert_eq!(recovered(&files), [manifest(1).id()]);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        assert_eq!(disk.used_bytes(), used, "their bytes are given back");
        files.remove(&[manifest(1).id()]);
        assert!(recovered(&files).is_empty() && disk.used_bytes() < used);
    }

    #[test]
    fn a_manifest_is_kept_where_a_directory_works_whichever_was_first() {
        let temp = tempfile::tempdir().unwrap();
        let dirs = vec![temp.path().join("a"), temp.path().join("b")];
        let settings = DiskCacheSettings { dirs: dirs.clone(), ..DiskCacheSettings::new("", 16 << 20) };
        let disk = DiskCache::open(&settings, Arc::new(NoForecast)).unwrap();
        let files = ManifestFiles::new(&disk);
        fs::remove_dir_all(&dirs[0]).unwrap();
        fs::write(&dirs[0], "in the way").unwrap();
        files.keep(&manifest(1)).unwrap();
        assert_eq!(recovered(&files), [manifest(1).id()]);
        assert!(dirs[1].join("v1/manifests").exists());
        let health: Vec<_> = disk.dirs().iter().map(|dir| dir.health).collect();
        assert_eq!(health, [crate::disk::dirs::Health::Away, crate::disk::dirs::Health::Up], "it was told");
    }

    #[test]
    fn a_manifest_of_an_earlier_version_keeps_its_place_under_its_new_name() {
        let dir = tempfile::tempdir().unwrap();
        let settings = DiskCacheSettings::new(dir.path(), 16 << 20);
        let disk = DiskCache::open(&settings, Arc::new(NoForecast)).unwrap();
        let files = ManifestFiles::new(&disk);
        files.keep(&manifest(1)).unwrap();
        let folder = dir.path().join("v1/manifests");
        let [old, new] =
            [manifest(1).digest().to_string() + SUFFIX, name(manifest(1).id())].map(|n| folder.join(n));
        fs::rename(&new, &old).unwrap();
        for _ in 0..2 {
            assert_eq!(recovered(&files), [manifest(1).id()]);
            assert!(new.exists() && !old.exists());
        }
    }
}
