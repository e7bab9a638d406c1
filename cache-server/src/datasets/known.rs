//! The datasets in memory, bounded in bytes: a client that opens splits without end must not fill a node with
//! manifests.
//!
//! The one used longest ago goes. Its readers are told that it is not known, and open it again, as loaders do
//! by themselves; open streams keep their manifest.
//!
//! The key is the version *and* its URI: a copy of a dataset in another bucket has the same version, and must
//! not redirect those who read the first. Estimated sizes are no part of either. So another node's manifest
//! replaces none, and serves only tickets that state the same sizes.

use super::dataset::Dataset;
use forebay_proto::manifest::{DatasetId, Digest};
use forebay_proto::{Error, Result};
use prost::Message as _;
use std::collections::HashMap;

/// Bytes of all known manifests together: a dataset of a million segments is about 100 MB.
pub(super) const LIMIT: usize = 512 << 20;

/// Datasets by version and URI.
#[derive(Debug, Default)]
pub(super) struct Known {
    entries: HashMap<DatasetId, KnownDataset>,
    clock: u64,
    bytes: usize,
}

/// Who made a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MadeBy {
    /// This node, from the footers of the objects that a listing gave.
    ThisNode,
    /// This node, from those that a list names: a snapshot, say, of an earlier version.
    ThisNodeOfList,
    /// Another process.
    Another,
}

#[derive(Debug)]
struct KnownDataset {
    dataset: Dataset,
    made_by: MadeBy,
    used: u64,
    /// When a listing gave it last, or another process told of it first; 0: only a list ever named it.
    current: u64,
}

/// Bytes of memory that a dataset takes.
fn memory_bytes(dataset: &Dataset) -> usize {
    let m = &dataset.manifest;
    let names: usize = m.objects().iter().map(|object| object.key.len() + object.etag.len()).sum();
    // Counts of row groups, and a place for each segment's.
    let filter = m.filter().map_or(0, |filter| size_of_val(filter.rows()) + 8 * m.segments().len());
    let shape = m.shape().map_or(0, |shape| shape.encoded_len());
    size_of_val(m.segments()) + size_of_val(m.objects()) + names + m.schema().len() + filter + 4 * shape
}

impl Known {
    /// Adds a dataset, and returns whether it is new and which had to go for it. One that was told replaces
    /// none.
    pub fn insert(&mut self, dataset: Dataset, made_by: MadeBy, limit: usize) -> (bool, Vec<DatasetId>) {
        self.clock += 1;
        let id = dataset.manifest.id();
        if made_by == MadeBy::Another
            && let Some(old) = self.entries.get_mut(&id)
        {
            old.used = self.clock;
            return (false, Vec::new());
        }
        self.bytes += memory_bytes(&dataset);
        let sizes_hash = dataset.manifest.sizes_hash();
        let before = self.entries.get(&id).map_or(0, |old| old.current);
        let current = if made_by == MadeBy::ThisNodeOfList { before } else { self.clock };
        let old = self.entries.insert(id, KnownDataset { dataset, made_by, used: self.clock, current });
        self.bytes -= old.as_ref().map_or(0, |old| memory_bytes(&old.dataset));
        let mut gone = Vec::new();
        while self.bytes > limit && self.entries.len() > 1 {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(id, _)| *id);
            gone.extend(oldest.filter(|id| self.remove(id)));
        }
        (old.is_none_or(|old| old.dataset.manifest.sizes_hash() != sizes_hash), gone)
    }

    /// A dataset, which counts as used. If another process told it, its sizes must be those of `sizes_hash`.
    pub fn get(&mut self, id: DatasetId, sizes_hash: Option<u64>) -> Option<Dataset> {
        self.clock += 1;
        let entry = self.entries.get_mut(&id)?;
        let is_as_stated = sizes_hash.is_none_or(|hash| hash == entry.dataset.manifest.sizes_hash());
        if entry.made_by == MadeBy::Another && !is_as_stated {
            return None;
        }
        entry.used = self.clock;
        Some(entry.dataset.clone())
    }

    /// The only dataset of a version, if any is known; `Invalid` if several are.
    pub fn only(&self, digest: Digest) -> Result<Option<DatasetId>> {
        let mut all =
            self.entries.values().map(|entry| &entry.dataset.manifest).filter(|m| m.digest() == digest);
        let first = all.next();
        match (first, all.next()) {
            (Some(a), Some(b)) => Err(Error::invalid(format!(
                "dataset version {digest} lies at {} and at {}: say in the ticket's `uri` which of them to read",
                a.uri(),
                b.uri()
            ))),
            _ => Ok(first.map(|manifest| manifest.id())),
        }
    }

    /// Whether there is a newer version of the same dataset: one of other objects.
    pub fn is_superseded(&self, dataset: &Dataset) -> bool {
        let m = &dataset.manifest;
        let current = self.entries.get(&m.id()).map_or(0, |entry| entry.current);
        let is_later = |entry: &KnownDataset| {
            let other = &entry.dataset.manifest;
            entry.current > current && other.uri() == m.uri() && other.objects() != m.objects()
        };
        self.entries.values().any(is_later)
    }

    /// All of them.
    pub fn list(&self) -> Vec<Dataset> {
        self.entries.values().map(|entry| entry.dataset.clone()).collect()
    }

    /// Forgets a dataset; false if it was not known.
    pub fn remove(&mut self, id: &DatasetId) -> bool {
        let gone = self.entries.remove(id);
        self.bytes -= gone.as_ref().map_or(0, |gone| memory_bytes(&gone.dataset));
        gone.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::Schema;
    use forebay_proto::manifest::{Manifest, Object, SegmentSize};
    use std::sync::Arc;

    fn dataset(uri: &str, key: &str, segments: usize, decoded_bytes: u64) -> Dataset {
        let object = Object { key: key.into(), etag: "e".into(), size: 1 };
        let size = SegmentSize { object: 0, row_groups: 1, rows: 1, decoded_bytes };
        let manifest = Manifest::new(uri, 1, vec![], vec![object], &vec![size; segments]).unwrap();
        Dataset { manifest: Arc::new(manifest), schema: Arc::new(Schema::empty()) }
    }

    fn id(dataset: &Dataset) -> DatasetId {
        dataset.manifest.id()
    }

    #[test]
    fn the_one_used_longest_ago_goes_and_the_newest_stays() {
        let dataset = |name: &str, segments: usize| dataset("s3://b", name, segments, 1);
        let mut known = Known::default();
        let (a, b, c) = (dataset("a", 4), dataset("b", 4), dataset("c", 4));
        let limit = memory_bytes(&a) * 5 / 2;
        let mut insert = |d: &Dataset| known.insert(d.clone(), MadeBy::ThisNode, limit);
        assert_eq!(insert(&a), (true, vec![]));
        assert_eq!(insert(&a), (false, vec![]));
        assert_eq!(insert(&b), (true, vec![]));
        assert!(known.get(id(&a), None).is_some());
        let mut insert = |d: &Dataset| known.insert(d.clone(), MadeBy::ThisNode, limit);
        assert_eq!(insert(&c), (true, vec![id(&b)]));
        let huge = dataset("d", 100);
        let mut gone = insert(&huge).1;
        gone.sort_unstable();
        let mut all = vec![id(&a), id(&c)];
        all.sort_unstable();
        assert_eq!(gone, all);
        assert!(known.get(id(&huge), None).is_some() && known.remove(&id(&huge)));
        assert_eq!((known.bytes, known.list().len()), (0, 0));
    }

    #[test]
    fn a_copy_elsewhere_does_not_redirect_the_first() {
        let mut known = Known::default();
        let (first, copy) = (dataset("s3://b/p", "a", 4, 1), dataset("s3://other/p", "a", 4, 1));
        assert_eq!(first.manifest.digest(), copy.manifest.digest());
        known.insert(first.clone(), MadeBy::ThisNode, LIMIT);
        assert_eq!(known.only(first.manifest.digest()).unwrap(), Some(id(&first)));
        assert!(known.insert(copy.clone(), MadeBy::ThisNode, LIMIT).0);
        for d in [&first, &copy] {
            assert_eq!(known.get(id(d), None).unwrap().manifest.uri(), d.manifest.uri());
        }
        let message = known.only(first.manifest.digest()).unwrap_err().message;
        assert!(message.contains("s3://b/p") && message.contains("s3://other/p"), "{message}");
    }

    #[test]
    fn a_snapshot_that_is_read_makes_no_newer_version_old() {
        let (old, new) = (dataset("s3://b/p", "a", 4, 1), dataset("s3://b/p", "b", 4, 1));
        let mut known = Known::default();
        known.insert(old.clone(), MadeBy::ThisNode, LIMIT);
        assert!(!known.is_superseded(&old));
        known.insert(new.clone(), MadeBy::ThisNode, LIMIT);
        for _ in 0..2 {
            assert!(known.is_superseded(&old) && !known.is_superseded(&new));
            known.insert(old.clone(), MadeBy::ThisNodeOfList, LIMIT);
            known.get(id(&old), None).unwrap();
        }
        let mut known = Known::default();
        known.insert(new.clone(), MadeBy::Another, LIMIT);
        known.insert(old.clone(), MadeBy::ThisNodeOfList, LIMIT);
        assert!(known.is_superseded(&old) && !known.is_superseded(&new));
    }

    #[test]
    fn another_process_cannot_set_the_sizes() {
        let (right, wrong) = (dataset("s3://b/p", "a", 4, 8), dataset("s3://b/p", "a", 4, u64::MAX / 4));
        let (id, stated) = (id(&right), Some(right.manifest.sizes_hash()));
        let size = |known: &mut Known| known.get(id, stated).map(|d| d.manifest.segments()[0].decoded_bytes);
        // After the node has frozen it.
        let mut known = Known::default();
        known.insert(right.clone(), MadeBy::ThisNode, LIMIT);
        assert!(!known.insert(wrong.clone(), MadeBy::Another, LIMIT).0);
        assert_eq!(size(&mut known), Some(8));
        // Before: a reader's ticket is refused until the node has frozen it.
        let mut known = Known::default();
        assert!(known.insert(wrong, MadeBy::Another, LIMIT).0);
        assert_eq!(size(&mut known), None);
        assert!(known.insert(right, MadeBy::ThisNode, LIMIT).0);
        assert_eq!(size(&mut known), Some(8));
    }
}
