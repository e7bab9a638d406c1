//! Frozen datasets on disk, one for each URI and segment size: what a listing says is compared with them, so
//! that a dataset that has not changed is opened without reading its footers again, and one that is held can
//! be opened while the object store does not answer.

use super::files::Files;
use crate::runtime::blocking;
use forebay_dataset::{Frozen, Source, schema};
use forebay_proto::manifest::Manifest;
use forebay_proto::{Error, Kind, Result, v1};
use prost::Message as _;
use std::path::PathBuf;
use std::sync::Arc;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// Frozen datasets that are kept at most; the one written longest ago goes.
const KEPT_MAX: usize = 256;

/// A file: what [`Frozen`] has. The manifest verifies itself by its digest, the rest by the hash.
#[derive(Clone, PartialEq, prost::Message)]
struct StoredFrozen {
    #[prost(message, optional, tag = "1")]
    manifest: Option<v1::Manifest>,
    #[prost(uint64, repeated, tag = "2")]
    column_bytes: Vec<u64>,
    #[prost(uint64, tag = "3")]
    row_groups: u64,
    #[prost(fixed64, tag = "4")]
    hash: u64,
}

impl StoredFrozen {
    fn of(frozen: &Frozen) -> Self {
        let (column_bytes, row_groups) = (frozen.column_bytes.clone(), frozen.row_groups);
        let mut kept = Self { manifest: Some((&frozen.manifest).into()), column_bytes, row_groups, hash: 0 };
        kept.hash = kept.right_hash();
        kept
    }

    fn right_hash(&self) -> u64 {
        let numbers = self.column_bytes.iter().chain([&self.row_groups]);
        xxh3_64(&numbers.flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>())
    }

    fn frozen(self) -> Result<Frozen> {
        if self.hash != self.right_hash() {
            return Err(Error::corrupt("its sizes do not match their checksum"));
        }
        let manifest = Manifest::try_from(self.manifest.unwrap_or_default())?;
        let schema = schema::from_ipc(manifest.schema())?;
        Ok(Frozen { manifest, schema, column_bytes: self.column_bytes, row_groups: self.row_groups })
    }
}

/// Freezes a dataset anew, with the footers of before if it has not changed. While the object store does not
/// answer it is what it was when it last did.
pub(super) async fn freeze(
    source: Source,
    files: Files,
    uri: String,
    segment_bytes: u64,
) -> Result<Arc<Frozen>> {
    let (look, name) = (files.clone(), uri.clone());
    let known = blocking(move || look.frozen(&name, segment_bytes)).await?;
    match (source.freeze_again(&uri, segment_bytes, known.clone()).await, known) {
        (Ok(frozen), known) => {
            if !known.is_some_and(|known| Arc::ptr_eq(&known, &frozen)) {
                let kept = frozen.clone();
                if let Err(e) = blocking(move || files.keep_frozen(&kept)).await? {
                    tracing::debug!(error = %e, "a frozen dataset could not be kept: its footers are read again when it is opened again");
                }
            }
            Ok(frozen)
        }
        (Err(e), Some(known)) if e.kind == Kind::Retry => {
            tracing::warn!(error = %e, uri, "the object store does not answer: the dataset is opened as it was when it last did");
            Ok(known)
        }
        (Err(e), _) => Err(e),
    }
}

impl Files {
    /// A dataset as it was frozen last, if it is kept and sound.
    fn frozen(&self, uri: &str, segment_bytes: u64) -> Option<Arc<Frozen>> {
        let path = self.frozen_path(uri, segment_bytes);
        let bytes = std::fs::read(&path).ok()?;
        let kept = StoredFrozen::decode(&bytes[..])
            .map_err(|e| Error::corrupt(e.to_string()))
            .and_then(StoredFrozen::frozen);
        match kept {
            Ok(frozen)
                if frozen.manifest.uri() == uri && frozen.manifest.segment_bytes() == segment_bytes =>
            {
                Some(Arc::new(frozen))
            }
            Ok(_) => None,
            Err(e) => {
                tracing::info!(path = %path.display(), reason = %e, "a kept dataset is of no use: removed");
                self.remove_file(&path);
                None
            }
        }
    }

    fn keep_frozen(&self, frozen: &Frozen) -> Result<()> {
        let path = self.frozen_path(frozen.manifest.uri(), frozen.manifest.segment_bytes());
        self.remove_file(&path);
        let folder = std::fs::read_dir(self.frozen_folder()).into_iter().flatten().flatten();
        let mut all: Vec<_> =
            folder.filter_map(|e| Some((e.metadata().ok()?.modified().ok()?, e.path()))).collect();
        all.sort_unstable();
        let over = (all.len() + 1).saturating_sub(KEPT_MAX);
        all[..over].iter().for_each(|(_, path)| self.remove_file(path));
        self.write(&path, StoredFrozen::of(frozen).encode_to_vec())
    }

    fn frozen_path(&self, uri: &str, segment_bytes: u64) -> PathBuf {
        let name = xxh3_128(format!("{segment_bytes} {uri}").as_bytes());
        self.frozen_folder().join(format!("{name:032x}.frozen"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::policy::NoForecast;
    use crate::disk::{DiskCache, DiskCacheSettings};
    use arrow::datatypes::{DataType, Field, Schema};
    use forebay_proto::manifest::{Object, SegmentSize};

    fn frozen(n: usize) -> Frozen {
        let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, true)]));
        let object = Object { key: "o".into(), etag: "e".into(), size: 1 };
        let size = SegmentSize { object: 0, row_groups: 1, rows: 5, decoded_bytes: 40 };
        let ipc = schema::to_ipc(&schema).unwrap();
        let manifest = Manifest::new(format!("s3://b/d{n}"), 1, ipc, vec![object], &[size]).unwrap();
        Frozen { manifest, schema, column_bytes: vec![33], row_groups: 1 }
    }

    #[test]
    fn what_was_frozen_is_kept_checked_and_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let settings = DiskCacheSettings::new(dir.path(), 16 << 20);
        let open = || Arc::new(DiskCache::open(&settings, Arc::new(NoForecast)).unwrap());
        let disk = open();
        let files = Files::open(disk.clone()).unwrap();
        let empty = disk.used_bytes();
        let (a, b) = (frozen(0), frozen(1));
        files.keep_frozen(&a).unwrap();
        files.keep_frozen(&b).unwrap();
        let used = disk.used_bytes();
        files.keep_frozen(&b).unwrap();
        assert!(
            used > empty && disk.used_bytes() == used,
            "one that is kept again takes the place of itself"
        );
        drop((files, disk));
        let disk = open();
        assert_eq!(disk.used_bytes(), used, "also after a restart");
        let files = Files::open(disk.clone()).unwrap();
        let read = files.frozen("s3://b/d0", 1).unwrap();
        assert_eq!((read.manifest.digest(), read.row_groups), (a.manifest.digest(), 1));
        assert_eq!((&read.column_bytes, &read.schema), (&a.column_bytes, &a.schema));
        assert!(files.frozen("s3://b/d0", 2).is_none() && files.frozen("s3://b/d2", 1).is_none());
        let path = files.frozen_path("s3://b/d0", 1);
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.iter().position(|b| *b == 33).unwrap();
        bytes[at] = 34;
        std::fs::write(&path, bytes).unwrap();
        assert!(files.frozen("s3://b/d0", 1).is_none() && !path.exists());
        (0..KEPT_MAX + 9).for_each(|n| files.keep_frozen(&frozen(n)).unwrap());
        let count = std::fs::read_dir(files.frozen_folder()).unwrap().count();
        assert_eq!(count, KEPT_MAX);
    }
}
