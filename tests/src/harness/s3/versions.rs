//! A bucket: its objects as they are, and where it keeps versions, those of before.

use super::object::Object;
use std::collections::BTreeMap;
use std::collections::btree_map::Range;
use std::ops::RangeFrom;

/// What S3 calls a version that was written while the bucket kept none.
const NULL: &str = "null";

/// Objects, and their earlier versions.
#[derive(Default)]
pub(super) struct Bucket {
    current: BTreeMap<String, Object>,
    /// All versions of each key, oldest first, once the bucket keeps versions.
    history: BTreeMap<String, Vec<Version>>,
    keeps_versions: bool,
    written: u64,
}

/// One of a key.
#[derive(Clone)]
pub(super) struct Version {
    pub(super) id: String,
    /// None: it marks that the object was deleted.
    pub(super) object: Option<Object>,
}

/// What was deleted.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Deleted {
    /// The id of the version, or of the mark that hides all.
    pub(super) id: Option<String>,
    pub(super) is_marked: bool,
}

impl Bucket {
    pub(super) fn get(&self, key: &str) -> Option<&Object> {
        self.current.get(key)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.current.is_empty() && self.history.values().all(Vec::is_empty)
    }

    pub(super) fn range(&self, from: RangeFrom<String>) -> Range<'_, String, Object> {
        self.current.range(from)
    }

    pub(super) fn keeps_versions(&self) -> bool {
        self.keeps_versions
    }

    /// Keeps versions from now on. A current object becomes the version `null` of its key.
    pub(super) fn keep_versions(&mut self) {
        self.keeps_versions = true;
        for (key, object) in &mut self.current {
            object.version_id.get_or_insert_with(|| NULL.to_owned());
            let version = Version { id: NULL.to_owned(), object: Some(object.clone()) };
            self.history.entry(key.clone()).or_insert_with(|| vec![version]);
        }
    }

    /// Puts an object in place of the one before; the id of its version, if the bucket keeps them.
    pub(super) fn insert(&mut self, key: String, object: Object) -> Option<String> {
        let id = self.keeps_versions.then(|| self.new_id());
        let object = Object { version_id: id.clone(), ..object };
        if let Some(id) = &id {
            let version = Version { id: id.clone(), object: Some(object.clone()) };
            self.history.entry(key.clone()).or_default().push(version);
        }
        self.current.insert(key, object);
        id
    }

    /// Removes an object, for good where no versions are kept.
    pub(super) fn remove(&mut self, key: &str) -> Deleted {
        self.current.remove(key);
        if !self.keeps_versions {
            return Deleted::default();
        }
        let id = self.new_id();
        self.history.entry(key.to_owned()).or_default().push(Version { id: id.clone(), object: None });
        Deleted { id: Some(id), is_marked: true }
    }

    /// Removes one version for good. The one before it, if it was the last, becomes the current one.
    pub(super) fn remove_version(&mut self, key: &str, id: &str) -> Deleted {
        if !self.keeps_versions {
            return self.remove(key);
        }
        let versions = self.history.entry(key.to_owned()).or_default();
        let removed = versions.iter().position(|version| version.id == id).map(|at| versions.remove(at));
        match versions.last().and_then(|last| last.object.clone()) {
            Some(object) => self.current.insert(key.to_owned(), object),
            None => self.current.remove(key),
        };
        let is_marked = removed.is_some_and(|version| version.object.is_none());
        Deleted { id: Some(id.to_owned()), is_marked }
    }

    /// A version of a key; none if there is none of that id.
    pub(super) fn version(&self, key: &str, id: &str) -> Option<Version> {
        if !self.keeps_versions {
            let object = self.current.get(key).filter(|_| id == NULL)?;
            return Some(Version { id: NULL.to_owned(), object: Some(object.clone()) });
        }
        self.history.get(key)?.iter().find(|version| version.id == id).cloned()
    }

    /// All versions of the keys under a prefix after `after`, by key, the latest first; `max` keys at most,
    /// and whether there are more.
    pub(super) fn versions(
        &self,
        prefix: &str,
        after: Option<&str>,
        max: usize,
    ) -> (Vec<(String, Vec<Version>)>, bool) {
        let is_wanted =
            |key: &&String| key.starts_with(prefix) && after.is_none_or(|after| key.as_str() > after);
        let all: Vec<(String, Vec<Version>)> = match self.keeps_versions {
            true => {
                let latest_first = |key: &String| self.history[key].iter().rev().cloned().collect();
                self.history.keys().filter(is_wanted).map(|key| (key.clone(), latest_first(key))).collect()
            }
            false => {
                let only = |key: &String| self.version(key, NULL).into_iter().collect();
                self.current.keys().filter(is_wanted).map(|key| (key.clone(), only(key))).collect()
            }
        };
        let is_more = all.len() > max;
        (all.into_iter().take(max).collect(), is_more)
    }

    fn new_id(&mut self) -> String {
        self.written += 1;
        format!("v{:07}.Kx+/=", self.written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(object: &Object) -> String {
        String::from_utf8(object.data.slice(0..object.data.len()).to_vec()).expect("text")
    }

    fn bytes(bucket: &Bucket, key: &str) -> Option<String> {
        bucket.get(key).map(text)
    }

    #[test]
    fn versions_are_kept_from_when_the_bucket_is_told() {
        let mut bucket = Bucket::default();
        let put =
            |bucket: &mut Bucket, text: &'static str| bucket.insert("k".into(), Object::new(text.into()));
        assert_eq!((put(&mut bucket, "a"), put(&mut bucket, "b")), (None, None));
        assert_eq!(bucket.remove("none"), Deleted::default());
        bucket.keep_versions();
        let id = put(&mut bucket, "c").expect("an id");
        assert_eq!(bytes(&bucket, "k").as_deref(), Some("c"));
        let read = |bucket: &Bucket, id: &str| bucket.version("k", id).map(|v| v.object.as_ref().map(text));
        assert_eq!(read(&bucket, NULL), Some(Some("b".into())), "that of before");
        let mark = bucket.remove("k").id.expect("a mark");
        assert_eq!((bytes(&bucket, "k"), read(&bucket, &mark)), (None, Some(None)));
        assert_eq!(read(&bucket, &id), Some(Some("c".into())));
        assert!(!bucket.is_empty());
        bucket.remove_version("k", &mark);
        assert_eq!(bytes(&bucket, "k").as_deref(), Some("c"), "the mark is gone");
        bucket.remove_version("k", &id);
        assert_eq!((bytes(&bucket, "k").as_deref(), read(&bucket, &id)), (Some("b"), None));
    }
}
