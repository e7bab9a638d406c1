//! Frozen datasets on disk, one for each selection of objects: what a listing says is compared with them, so
//! that a dataset that has not changed is opened without reading its footers again, and one that is held can
//! be opened while the object store does not answer.

use crate::disk::{DiskCache, Sidecar};
use crate::runtime::{blocking, given_up};
use forebay_dataset::source::place_of;
use forebay_dataset::{Conflict, Frozen, SegmentReader, Selection, schema};
use forebay_proto::hash::{xxh3_64, xxh3_128};
use forebay_proto::manifest::{Manifest, Object};
use forebay_proto::{Error, Kind, Result, v1};
use prost::Message as _;
use std::sync::Arc;

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
    #[prost(message, repeated, tag = "5")]
    conflicts: Vec<StoredConflict>,
    #[prost(string, repeated, tag = "6")]
    left_out: Vec<String>,
    #[prost(string, repeated, tag = "7")]
    notes: Vec<String>,
}

/// A [`Conflict`].
#[derive(Clone, PartialEq, prost::Message)]
struct StoredConflict {
    #[prost(string, tag = "1")]
    column: String,
    #[prost(string, tag = "2")]
    why: String,
}

impl StoredFrozen {
    fn of(frozen: &Frozen) -> Self {
        let conflict = |c: &Conflict| StoredConflict { column: c.column.clone(), why: c.why.clone() };
        let mut kept = Self {
            manifest: Some((&frozen.manifest).into()),
            column_bytes: frozen.column_bytes.clone(),
            row_groups: frozen.row_groups,
            hash: 0,
            conflicts: frozen.conflicts.iter().map(conflict).collect(),
            left_out: frozen.left_out.clone(),
            notes: frozen.notes.clone(),
        };
        kept.hash = kept.right_hash();
        kept
    }

    fn right_hash(&self) -> u64 {
        let numbers = self.column_bytes.iter().chain([&self.row_groups]);
        let conflicts = self.conflicts.iter().flat_map(|c| [&c.column, &c.why]);
        let texts = conflicts.chain(&self.left_out).chain(&self.notes).flat_map(|text| text.bytes());
        xxh3_64(&numbers.flat_map(|n| n.to_le_bytes()).chain(texts).collect::<Vec<u8>>())
    }

    fn frozen(self) -> Result<Frozen> {
        if self.hash != self.right_hash() {
            return Err(Error::corrupt("its sizes do not match their checksum"));
        }
        let manifest = Manifest::try_from(self.manifest.unwrap_or_default())?;
        let schema = schema::from_ipc(manifest.schema())?;
        let conflict = |c: StoredConflict| Conflict { column: c.column, why: c.why };
        Ok(Frozen {
            manifest,
            schema,
            column_bytes: self.column_bytes,
            row_groups: self.row_groups,
            conflicts: self.conflicts.into_iter().map(conflict).collect(),
            left_out: self.left_out,
            notes: self.notes,
        })
    }
}

/// Freezes a dataset, with the footers of before if it has not changed. While the object store does not
/// answer, the dataset is opened as it was when the object store last did.
pub(super) async fn freeze(
    source: SegmentReader,
    files: FrozenFiles,
    selection: Selection,
) -> Result<Arc<Frozen>> {
    let (look, wanted) = (files.clone(), selection.clone());
    // Without a disk that answers nothing is known.
    let known = given_up(blocking(move || look.find(&wanted)).await, None)?;
    match (source.freeze_again(&selection, known.clone()).await, known) {
        (Ok(frozen), known) => {
            if !known.is_some_and(|known| Arc::ptr_eq(&known, &frozen)) {
                let kept = frozen.clone();
                let hangs = Err(Error::retry("its disk hangs"));
                if let Err(e) = given_up(blocking(move || files.keep(&selection, &kept)).await, hangs)? {
                    tracing::debug!(error = %e, "a frozen dataset could not be kept: its footers are read again when it is opened again");
                }
            }
            Ok(frozen)
        }
        (Err(e), Some(known)) if e.kind == Kind::Retry => {
            tracing::warn!(error = %e, uri = selection.uri, "the object store does not answer: the dataset is opened as it was when it last did");
            Ok(known)
        }
        (Err(e), _) => Err(e),
    }
}

/// The frozen datasets that a node keeps. All of it touches the disk: not for an async thread.
#[derive(Clone)]
pub(super) struct FrozenFiles {
    files: Sidecar,
}

impl FrozenFiles {
    pub fn new(disk: &DiskCache) -> Self {
        Self { files: disk.sidecar("v1/frozen") }
    }

    /// Forgets what such datasets were.
    pub fn forget(&self, such: impl Fn(&Manifest) -> bool) {
        let is_of = |name: &String| self.read(name).is_some_and(|f| such(&f.manifest));
        self.files.list().iter().filter(|name| is_of(name)).for_each(|name| self.files.remove(name));
    }

    /// A dataset as it was frozen last, if it is kept and sound.
    fn find(&self, selection: &Selection) -> Option<Arc<Frozen>> {
        let frozen = self.read(&name(selection))?;
        let m = &frozen.manifest;
        let is_it = (m.uri(), m.segment_bytes()) == (place_of(&selection.uri), selection.segment_bytes);
        is_it.then(|| Arc::new(frozen))
    }

    /// Keeps a dataset in place of what it was before, which stays if there is no room for both.
    fn keep(&self, selection: &Selection, frozen: &Frozen) -> Result<()> {
        self.files.write(&name(selection), &StoredFrozen::of(frozen).encode_to_vec())?;
        let all = self.files.list();
        let over = all.len().saturating_sub(KEPT_MAX);
        all[..over].iter().for_each(|name| self.files.remove(name));
        Ok(())
    }

    /// Reads a file. One that is damaged is removed.
    fn read(&self, name: &str) -> Option<Frozen> {
        let bytes = self.files.read(name)?;
        let stored = StoredFrozen::decode(&bytes[..]).map_err(|e| Error::corrupt(e.to_string()));
        stored
            .and_then(StoredFrozen::frozen)
            .map_err(|e| {
                tracing::info!(name, reason = %e, "a kept dataset is of no use: removed");
                self.files.remove(name);
            })
            .ok()
    }
}

fn name(selection: &Selection) -> String {
    let Selection { uri, segment_bytes, schema_of, no_partitions, objects, filter } = selection;
    let mut text = format!("{segment_bytes} {uri}");
    if !selection.is_plain() {
        let id =
            |o: &Object| if o.version_id.is_empty() { String::new() } else { format!(" {:?}", o.version_id) };
        let objects = objects.iter().map(|o| format!("{:?} {:?} {}{}", o.key, o.etag, o.size, id(o)));
        let objects = objects.collect::<Vec<_>>().join("\n");
        text = format!("{text}\n{no_partitions} {schema_of:?}\n{objects}");
    }
    if !filter.is_empty() {
        text = format!("{text}\n{filter:?}");
    }
    let hash = xxh3_128(text.as_bytes());
    format!("{hash:032x}.frozen")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::tests::NoForecast;
    use crate::disk::{DiskCache, DiskCacheSettings};
    use arrow::datatypes::{DataType, Field, Schema};
    use forebay_proto::manifest::SegmentSize;

    fn frozen(n: usize) -> Frozen {
        let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, true)]));
        let object = Object { key: "o".into(), etag: "e".into(), size: 1, ..Default::default() };
        let size = SegmentSize { object: 0, row_groups: 1, rows: 5, decoded_bytes: 40 };
        let ipc = schema::to_ipc(&schema).unwrap();
        let manifest = Manifest::new(format!("s3://b/d{n}"), 1, ipc, vec![object], &[size]).unwrap();
        let conflicts = vec![Conflict { column: "x".into(), why: "why".into() }];
        let (left_out, notes) = (vec!["one".into()], vec!["two".into()]);
        Frozen { manifest, schema, column_bytes: vec![33], row_groups: 1, conflicts, left_out, notes }
    }

    fn of(n: usize) -> Selection {
        Selection::new(format!("s3://b/d{n}"), 1)
    }

    #[test]
    fn what_was_frozen_is_kept_checked_and_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let settings = DiskCacheSettings::new(dir.path(), 16 << 20);
        let open = || DiskCache::open(&settings, Arc::new(NoForecast)).unwrap();
        let disk = open();
        let files = FrozenFiles::new(&disk);
        let empty = disk.used_bytes();
        let (a, b) = (frozen(0), frozen(1));
        files.keep(&of(0), &a).unwrap();
        files.keep(&of(1), &b).unwrap();
        let used = disk.used_bytes();
        files.keep(&of(1), &b).unwrap();
        assert!(
            used > empty && disk.used_bytes() == used,
            "one that is kept again takes the place of itself"
        );
        drop((files, disk));
        let disk = open();
        assert_eq!(disk.used_bytes(), used, "also after a restart");
        let files = FrozenFiles::new(&disk);
        let read = files.find(&of(0)).unwrap();
        assert_eq!((read.manifest.digest(), read.row_groups), (a.manifest.digest(), 1));
        assert_eq!((&read.column_bytes, &read.schema), (&a.column_bytes, &a.schema));
        assert_eq!((&read.conflicts, &read.left_out, &read.notes), (&a.conflicts, &a.left_out, &a.notes));
        assert!(files.find(&Selection { no_partitions: true, ..of(0) }).is_none());
        assert!(files.find(&Selection::new("s3://b/d0", 2)).is_none() && files.find(&of(2)).is_none());
        let folder = dir.path().join("v1/frozen");
        let path = folder.join(name(&of(0)));
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.iter().position(|b| *b == 33).unwrap();
        bytes[at] = 34;
        std::fs::write(&path, bytes).unwrap();
        assert!(files.find(&of(0)).is_none() && !path.exists());
        (0..KEPT_MAX + 9).for_each(|n| files.keep(&of(n), &frozen(n)).unwrap());
        let count = std::fs::read_dir(folder).unwrap().count();
        assert_eq!(count, KEPT_MAX);
    }

    #[test]
    fn a_dataset_stays_as_it_was_where_there_is_no_room_for_what_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let settings = DiskCacheSettings::new(dir.path(), 200 << 10);
        let disk = DiskCache::open(&settings, Arc::new(NoForecast)).unwrap();
        let files = FrozenFiles::new(&disk);
        let small = frozen(0);
        files.keep(&of(0), &small).unwrap();
        let large = Frozen { column_bytes: vec![1 << 60; 20_000], ..frozen(0) };
        assert_eq!(files.keep(&of(0), &large).unwrap_err().kind, Kind::Full);
        assert_eq!(files.find(&of(0)).unwrap().column_bytes, small.column_bytes);
    }

    #[test]
    fn what_is_freed_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let settings = DiskCacheSettings::new(dir.path(), 16 << 20);
        let disk = DiskCache::open(&settings, Arc::new(NoForecast)).unwrap();
        let files = FrozenFiles::new(&disk);
        (0..2).for_each(|n| files.keep(&of(n), &frozen(n)).unwrap());
        files.forget(|m| m.uri() == "s3://b/d1");
        assert!(files.find(&of(0)).is_some() && files.find(&of(1)).is_none());
        assert_eq!(std::fs::read_dir(dir.path().join("v1/frozen")).unwrap().count(), 1);
    }
}
