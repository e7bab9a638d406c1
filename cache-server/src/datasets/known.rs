//! The datasets in memory, bounded: whoever opens splits without end must not fill a node with manifests.
//!
//! The one used longest ago goes. Who reads it then is told that it is not known, and opens it anew, as loaders do by
//! themselves; streams that are open keep what they need.

use super::Dataset;
use forebay_proto::manifest::Digest;
use std::collections::HashMap;

/// Segments and objects of all known datasets together, at about 100 bytes each.
pub(super) const LIMIT: usize = 4 << 20;

/// Datasets by digest.
#[derive(Debug, Default)]
pub(super) struct Known {
    entries: HashMap<Digest, Entry>,
    clock: u64,
    weight: usize,
}

#[derive(Debug)]
struct Entry {
    dataset: Dataset,
    used: u64,
}

fn weight(dataset: &Dataset) -> usize {
    dataset.manifest.segments().len() + dataset.manifest.objects().len()
}

impl Known {
    /// Adds a dataset. Answers whether it is new, and which had to go for it.
    pub fn insert(&mut self, dataset: Dataset, limit: usize) -> (bool, Vec<Digest>) {
        self.clock += 1;
        self.weight += weight(&dataset);
        let digest = dataset.manifest.digest();
        let old = self.entries.insert(digest, Entry { dataset, used: self.clock });
        self.weight -= old.as_ref().map_or(0, |old| weight(&old.dataset));
        let mut gone = Vec::new();
        while self.weight > limit && self.entries.len() > 1 {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(digest, _)| *digest);
            gone.extend(oldest.filter(|digest| self.remove(digest)));
        }
        (old.is_none(), gone)
    }

    /// A dataset, which counts as used.
    pub fn get(&mut self, digest: &Digest) -> Option<Dataset> {
        self.clock += 1;
        let entry = self.entries.get_mut(digest)?;
        entry.used = self.clock;
        Some(entry.dataset.clone())
    }

    /// All of them.
    pub fn list(&self) -> Vec<Dataset> {
        self.entries.values().map(|entry| entry.dataset.clone()).collect()
    }

    /// Forgets a dataset; false if it was not known.
    pub fn remove(&mut self, digest: &Digest) -> bool {
        let gone = self.entries.remove(digest);
        self.weight -= gone.as_ref().map_or(0, |gone| weight(&gone.dataset));
        gone.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::Schema;
    use forebay_proto::manifest::{Manifest, Object, SegmentSize};
    use std::sync::Arc;

    #[test]
    fn the_one_used_longest_ago_goes_and_the_newest_stays() {
        let dataset = |name: &str, segments: usize| {
            let object = Object { key: name.into(), etag: "e".into(), size: 1 };
            let size = SegmentSize { object: 0, row_groups: 1, rows: 1, decoded_bytes: 1 };
            let manifest = Manifest::new("s3://b", 1, vec![], vec![object], &vec![size; segments]).unwrap();
            Dataset { manifest: Arc::new(manifest), schema: Arc::new(Schema::empty()) }
        };
        let mut known = Known::default();
        let (a, b, c) = (dataset("a", 4), dataset("b", 4), dataset("c", 4));
        let digest = |d: &Dataset| d.manifest.digest();
        assert_eq!(known.insert(a.clone(), 12), (true, vec![]));
        assert_eq!(known.insert(a.clone(), 12), (false, vec![]));
        assert_eq!(known.insert(b.clone(), 12), (true, vec![]));
        assert!(known.get(&digest(&a)).is_some());
        assert_eq!(known.insert(c.clone(), 12), (true, vec![digest(&b)]));
        let huge = dataset("d", 100);
        let mut gone = known.insert(huge.clone(), 12).1;
        gone.sort_unstable();
        let mut all = vec![digest(&a), digest(&c)];
        all.sort_unstable();
        assert_eq!(gone, all);
        assert!(known.get(&digest(&huge)).is_some() && known.remove(&digest(&huge)));
        assert_eq!((known.weight, known.list().len()), (0, 0));
    }
}
