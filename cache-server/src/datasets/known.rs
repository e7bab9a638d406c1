//! The datasets in memory, bounded in bytes: a client that opens splits without end must not fill a node with
//! manifests.
//!
//! The one used longest ago goes. Its readers are told that it is not known, and open it again, as loaders do
//! by themselves; open streams keep their manifest.
//!
//! The key is the version *and* its URI: a copy of a dataset in another bucket has the same version, and must
//! not redirect those who read the first. Estimated sizes are no part of either. So another node's manifest
//! replaces none, and serves only tickets that state the same sizes.
//!
//! No `quick_cache`: it does not say which had to go, and turns away a dataset that is larger than the limit.

use super::dataset::Dataset;
use forebay_proto::manifest::{DatasetId, Digest, Manifest, Object};
use forebay_proto::{Error, Result};
use prost::Message as _;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Bytes of all known manifests together: a dataset of a million segments is about 100 MB. Where the node's
/// status is asked for, the disk cache counts their segments too, in some 80 bytes each.
pub(super) const LIMIT: usize = 512 << 20;

/// Datasets by version and URI.
#[derive(Debug, Default)]
pub(super) struct Known {
    entries: HashMap<DatasetId, KnownDataset>,
    /// By when they were used, as `used` of each says.
    by_use: BTreeMap<u64, DatasetId>,
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
    let name_bytes = |o: &Object| o.key.len() + o.etag.len() + o.version_id.len();
    let names: usize = m.objects().iter().map(name_bytes).sum();
    // Counts of row groups, and a place for each segment's.
    let filter = m.filter().map_or(0, |filter| size_of_val(filter.rows()) + 8 * m.segments().len());
    let shape = m.shape().map_or(0, |shape| shape.encoded_len());
    size_of_val(m.segments()) + size_of_val(m.objects()) + names + m.schema().len() + filter + 4 * shape
}

/// A dataset with the version ids that a copy of it has.
fn with_ids_of(dataset: &Dataset, copy: &Dataset) -> Dataset {
    let ids = copy.manifest.objects().iter().map(|object| object.version_id.clone()).collect();
    let manifest = Arc::new(dataset.manifest.as_ref().clone().with_version_ids(ids));
    Dataset { manifest, schema: dataset.schema.clone() }
}

impl KnownDataset {
    /// It is used now.
    fn touch(&mut self, by_use: &mut BTreeMap<u64, DatasetId>, now: u64) {
        by_use.remove(&self.used);
        by_use.insert(now, self.dataset.manifest.id());
        self.used = now;
    }
}

impl Known {
    /// Adds a dataset, and returns whether it has something new and which had to go for it. One that was told
    /// replaces none. Ids of versions stay known, from wherever they come: objects are read by their tags.
    pub fn insert(&mut self, mut dataset: Dataset, made_by: MadeBy, limit: usize) -> (bool, Vec<DatasetId>) {
        self.clock += 1;
        let id = dataset.manifest.id();
        let has_ids = dataset.manifest.has_version_ids();
        let old = self.entries.get_mut(&id);
        let gains_ids = has_ids && old.as_ref().is_some_and(|old| !old.dataset.manifest.has_version_ids());
        if let Some(old) = old {
            if made_by == MadeBy::Another {
                old.touch(&mut self.by_use, self.clock);
                if gains_ids {
                    self.bytes -= memory_bytes(&old.dataset);
                    old.dataset = with_ids_of(&old.dataset, &dataset);
                    self.bytes += memory_bytes(&old.dataset);
                }
                return (gains_ids, Vec::new());
            }
            if !has_ids && old.dataset.manifest.has_version_ids() {
                dataset = with_ids_of(&dataset, &old.dataset);
            }
        }
        self.bytes += memory_bytes(&dataset);
        let sizes_hash = dataset.manifest.sizes_hash();
        let before = self.entries.get(&id).map_or(0, |old| old.current);
        let current = if made_by == MadeBy::ThisNodeOfList { before } else { self.clock };
        let old = self.entries.insert(id, KnownDataset { dataset, made_by, used: self.clock, current });
        self.by_use.insert(self.clock, id);
        if let Some(old) = &old {
            self.by_use.remove(&old.used);
            self.bytes -= memory_bytes(&old.dataset);
        }
        let mut gone = Vec::new();
        while self.bytes > limit && self.entries.len() > 1 {
            let oldest = self.by_use.first_key_value().map(|(_, id)| *id);
            gone.extend(oldest.filter(|id| self.remove(id)));
        }
        let is_new = old.is_none_or(|old| old.dataset.manifest.sizes_hash() != sizes_hash);
        (is_new || gains_ids, gone)
    }

    /// A dataset, which counts as used. If another process told it, its sizes must be those of `sizes_hash`.
    /// One without ids of versions is not known where they are needed.
    pub fn get(&mut self, id: DatasetId, sizes_hash: Option<u64>, needs_ids: bool) -> Option<Dataset> {
        self.clock += 1;
        let entry = self.entries.get_mut(&id)?;
        if needs_ids && !entry.dataset.manifest.has_version_ids() {
            return None;
        }
        let is_as_stated = sizes_hash.is_none_or(|hash| hash == entry.dataset.manifest.sizes_hash());
        if entry.made_by == MadeBy::Another && !is_as_stated {
            return None;
        }
        entry.touch(&mut self.by_use, self.clock);
        Some(entry.dataset.clone())
    }

    /// The only dataset of a version among those that `counts`, if any is known; `Invalid` if several are.
    pub fn only(&self, digest: Digest, counts: impl Fn(&Manifest) -> bool) -> Result<Option<DatasetId>> {
        let all = self.entries.values().map(|entry| &entry.dataset.manifest);
        let mut all = all.filter(|m| m.digest() == digest && counts(m));
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
            entry.current > current && other.uri() == m.uri() && !other.has_objects_of(m)
        };
        self.entries.values().any(is_later)
    }

    /// All of them, in no order.
    pub fn list(&self) -> Vec<Dataset> {
        self.entries.values().map(|entry| entry.dataset.clone()).collect()
    }

    /// Forgets a dataset; false if it was not known.
    pub fn remove(&mut self, id: &DatasetId) -> bool {
        let Some(gone) = self.entries.remove(id) else { return false };
        self.by_use.remove(&gone.used);
        self.bytes -= memory_bytes(&gone.dataset);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::Schema;
    use forebay_proto::manifest::SegmentSize;

    fn dataset(uri: &str, key: &str, segments: usize, decoded_bytes: u64) -> Dataset {
        let object = Object { key: key.into(), etag: "e".into(), size: 1, ..Default::default() };
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
        assert!(known.get(id(&a), None, false).is_some());
        let mut insert = |d: &Dataset| known.insert(d.clone(), MadeBy::ThisNode, limit);
        assert_eq!(insert(&c), (true, vec![id(&b)]));
        let huge = dataset("d", 100);
        let mut gone = insert(&huge).1;
        gone.sort_unstable();
        let mut all = vec![id(&a), id(&c)];
        all.sort_unstable();
        assert_eq!(gone, all);
        assert!(known.get(id(&huge), None, false).is_some() && known.remove(&id(&huge)));
        assert_eq!((known.bytes, known.list().len(), known.by_use.len()), (0, 0, 0));
    }

    #[test]
    fn a_copy_elsewhere_does_not_redirect_the_first() {
        let mut known = Known::default();
        let (first, copy) = (dataset("s3://b/p", "a", 4, 1), dataset("s3://other/p", "a", 4, 1));
        assert_eq!(first.manifest.digest(), copy.manifest.digest());
        known.insert(first.clone(), MadeBy::ThisNode, LIMIT);
        assert_eq!(known.only(first.manifest.digest(), |_| true).unwrap(), Some(id(&first)));
        assert!(known.insert(copy.clone(), MadeBy::ThisNode, LIMIT).0);
        for d in [&first, &copy] {
            assert_eq!(known.get(id(d), None, false).unwrap().manifest.uri(), d.manifest.uri());
        }
        let message = known.only(first.manifest.digest(), |_| true).unwrap_err().message;
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
            known.get(id(&old), None, false).unwrap();
        }
        let mut known = Known::default();
        known.insert(new.clone(), MadeBy::Another, LIMIT);
        known.insert(old.clone(), MadeBy::ThisNodeOfList, LIMIT);
        assert!(known.is_superseded(&old) && !known.is_superseded(&new));
    }

    #[test]
    fn ids_of_versions_stay_known_and_are_asked_for_where_they_are_needed() {
        let plain = dataset("s3://b/p", "a", 4, 1);
        let named = with_version_id(&plain, "v1");
        assert_eq!(id(&plain), id(&named));
        for made_by in [MadeBy::Another, MadeBy::ThisNodeOfList] {
            let mut known = Known::default();
            assert!(known.insert(plain.clone(), MadeBy::ThisNode, LIMIT).0);
            assert!(known.get(id(&plain), None, false).is_some());
            assert!(known.get(id(&plain), None, true).is_none(), "a reader has to tell them");
            assert!(known.insert(named.clone(), made_by, LIMIT).0, "they are news");
            assert!(!known.insert(named.clone(), made_by, LIMIT).0);
            assert!(!known.insert(plain.clone(), MadeBy::ThisNode, LIMIT).0);
            let read = known.get(id(&plain), None, true).expect("they stay");
            assert_eq!(read.manifest.objects()[0].version_id, "v1");
            assert_eq!(known.bytes, memory_bytes(&named));
            assert_eq!(known.by_use.into_iter().collect::<Vec<_>>(), [(known.clock, id(&named))]);
        }
    }

    fn with_version_id(dataset: &Dataset, version_id: &str) -> Dataset {
        let manifest = dataset.manifest.as_ref().clone().with_version_ids(vec![version_id.to_owned()]);
        Dataset { manifest: Arc::new(manifest), schema: dataset.schema.clone() }
    }

    #[test]
    fn another_process_cannot_set_the_sizes() {
        let (right, wrong) = (dataset("s3://b/p", "a", 4, 8), dataset("s3://b/p", "a", 4, u64::MAX / 4));
        let (id, stated) = (id(&right), Some(right.manifest.sizes_hash()));
        let size =
            |known: &mut Known| known.get(id, stated, false).map(|d| d.manifest.segments()[0].decoded_bytes);
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
