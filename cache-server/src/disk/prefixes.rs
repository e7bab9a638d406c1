//! Limits on what lies under some prefixes: of principals who may have only so much of the disk.

use forebay_dataset::source::is_under;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// How many bytes of objects under any of these prefixes may be on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefixLimit {
    /// URIs in normal form, or the start of a scheme (`s3://`) for all of its buckets.
    pub prefixes: Vec<String>,
    pub limit_bytes: u64,
}

/// What lies under the prefixes of each limit.
#[derive(Debug, Default)]
pub struct PrefixQuotas {
    all: Vec<PrefixQuota>,
    /// The numbers of the limits that name a prefix.
    by_prefix: HashMap<String, Vec<usize>>,
    /// Of files that are being written, by number: their objects and bytes.
    coming: HashMap<u64, (Arc<str>, u64)>,
    next: u64,
}

#[derive(Debug)]
struct PrefixQuota {
    limit: PrefixLimit,
    used_bytes: u64,
}

impl PrefixQuotas {
    /// Other limits from now on, where files of these objects and bytes are held.
    pub fn set<'a>(&mut self, limits: Vec<PrefixLimit>, held: impl Iterator<Item = (&'a str, u64)>) {
        self.by_prefix.clear();
        for (number, limit) in limits.iter().enumerate() {
            for prefix in &limit.prefixes {
                self.by_prefix.entry(prefix.clone()).or_default().push(number);
            }
        }
        self.all = limits.into_iter().map(|limit| PrefixQuota { limit, used_bytes: 0 }).collect();
        held.for_each(|(object, bytes)| self.add(object, bytes));
        let coming: Vec<_> = self.coming.values().cloned().collect();
        coming.iter().for_each(|(object, bytes)| self.add(object, *bytes));
    }

    /// Whether an object counts for a limit.
    pub fn covers(&self, number: usize, object: &str) -> bool {
        let quota = self.all.get(number);
        quota.is_some_and(|quota| quota.limit.prefixes.iter().any(|prefix| is_under(object, prefix)))
    }

    /// A file of an object is there.
    pub fn add(&mut self, object: &str, bytes: u64) {
        self.numbers_of(object).into_iter().for_each(|number| self.all[number].used_bytes += bytes);
    }

    /// A file of an object is gone.
    pub fn remove(&mut self, object: &str, bytes: u64) {
        for number in self.numbers_of(object) {
            let used = &mut self.all[number].used_bytes;
            *used = used.saturating_sub(bytes);
        }
    }

    /// The first limit that a file of an object would break, and by how many bytes.
    pub fn broken_by(&self, object: &str, bytes: u64) -> Option<(usize, u64)> {
        let short = |number: &usize| self.short_bytes(*number, bytes);
        self.numbers_of(object)
            .into_iter()
            .map(|number| (number, short(&number)))
            .find(|(_, short)| *short > 0)
    }

    /// How many bytes under the prefixes of a limit would have to go for `bytes` to fit.
    pub fn short_bytes(&self, number: usize, bytes: u64) -> u64 {
        // There may be other limits since the caller had the number.
        let Some(PrefixQuota { limit, used_bytes }) = self.all.get(number) else { return 0 };
        used_bytes.saturating_add(bytes).saturating_sub(limit.limit_bytes)
    }

    /// The least that a limit allows of what an object counts for.
    pub fn least_limit_bytes(&self, object: &str) -> Option<u64> {
        self.numbers_of(object).into_iter().map(|number| self.limit_bytes(number)).min()
    }

    /// What the limit of this number allows; `u64::MAX` if there is none.
    pub fn limit_bytes(&self, number: usize) -> u64 {
        self.all.get(number).map_or(u64::MAX, |quota| quota.limit.limit_bytes)
    }

    /// Counts a file that is about to be written. Returns what [`PrefixQuotas::arrived`] wants.
    pub fn expect(&mut self, object: &Arc<str>, bytes: u64) -> u64 {
        self.add(object, bytes);
        self.next += 1;
        self.coming.insert(self.next, (object.clone(), bytes));
        self.next
    }

    /// A file that was expected counts by itself now, or does not come.
    pub fn arrived(&mut self, number: u64) {
        if let Some((object, bytes)) = self.coming.remove(&number) {
            self.remove(&object, bytes);
        }
    }

    /// The limits that an object counts for, each once.
    fn numbers_of(&self, object: &str) -> BTreeSet<usize> {
        if self.by_prefix.is_empty() {
            return BTreeSet::new();
        }
        let scheme = object.find("://").map_or(0, |at| at + 3);
        let slashes = object.match_indices('/').map(|(at, _)| at).filter(|at| *at >= scheme);
        // Of the root of the file system the slash is a part.
        let ends = [scheme, scheme + 1, object.len()].into_iter().chain(slashes);
        let prefixes = ends.filter_map(|end| self.by_prefix.get(object.get(..end)?));
        prefixes.flatten().copied().filter(|number| self.covers(*number, object)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(prefixes: &[&str], limit_bytes: u64) -> PrefixLimit {
        PrefixLimit { prefixes: prefixes.iter().map(|prefix| (*prefix).to_owned()).collect(), limit_bytes }
    }

    #[test]
    fn files_count_for_each_limit_whose_prefixes_they_lie_under() {
        let mut quotas = PrefixQuotas::default();
        quotas.add("s3://b/x", 5);
        assert_eq!(quotas.broken_by("s3://b/x", u64::MAX), None, "nobody has a limit");
        let limits = vec![
            limit(&["s3://b/vision", "s3://b/vision/deep"], 100),
            limit(&["s3://b"], 150),
            limit(&["s3://"], 1000),
            limit(&["file:///"], 10),
        ];
        quotas.set(limits, [("s3://b/vision/deep/k", 60), ("s3://b/visionX/k", 7)].into_iter());
        let used = |quotas: &PrefixQuotas| (0..4).map(|n| quotas.short_bytes(n, 1000)).collect::<Vec<_>>();
        assert_eq!(used(&quotas), [960, 917, 67, 990]);
        assert_eq!(quotas.broken_by("s3://b/vision/k", 40), None);
        assert_eq!(quotas.broken_by("s3://b/vision/k", 41), Some((0, 1)));
        assert_eq!(quotas.broken_by("s3://b/vision", 41), Some((0, 1)), "an object at the prefix itself");
        assert_eq!(quotas.broken_by("s3://b/visionX/k", 90), Some((1, 7)));
        assert_eq!(quotas.broken_by("file:///etc/k", 11), Some((3, 1)));
        assert_eq!(quotas.broken_by("gs://b/k", u64::MAX), None);
        assert_eq!(quotas.least_limit_bytes("s3://b/k"), Some(150));
        assert_eq!(quotas.least_limit_bytes("gs://b/k"), None);
        assert!(quotas.covers(0, "s3://b/vision/a") && !quotas.covers(0, "s3://b/visionX/a"));
    }

    #[test]
    fn files_that_are_written_count_before_they_are_there() {
        let mut quotas = PrefixQuotas::default();
        quotas.set(vec![limit(&["s3://b"], 100)], std::iter::empty());
        let object: Arc<str> = "s3://b/k".into();
        let coming = quotas.expect(&object, 60);
        assert_eq!(quotas.broken_by(&object, 41), Some((0, 1)));
        quotas.set(vec![limit(&["s3://b"], 70)], std::iter::empty());
        assert_eq!(quotas.broken_by(&object, 41), Some((0, 31)), "other limits do not forget it");
        assert_eq!((quotas.short_bytes(7, 1), quotas.limit_bytes(7)), (0, u64::MAX), "a limit of before");
        quotas.arrived(coming);
        quotas.arrived(coming);
        quotas.add(&object, 60);
        assert_eq!(quotas.broken_by(&object, 11), Some((0, 1)));
        quotas.remove(&object, 60);
        assert_eq!(quotas.broken_by(&object, 70), None);
    }
}
