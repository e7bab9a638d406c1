//! The buckets and objects of the S3 server, in memory. No HTTP, no S3 types: only objects and listings.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use forebay_proto::hex;
use md5::{Digest, Md5};

use super::object::{Object, ObjectData};
use super::versions::{Bucket, Deleted, Version};
use crate::harness::made::MadeObject;

/// A handle on all buckets; clones share them.
#[derive(Clone, Default)]
pub struct Objects(Arc<Mutex<BTreeMap<String, Bucket>>>);

/// One page of a listing.
#[derive(Default)]
pub(super) struct Page {
    pub(super) objects: Vec<(String, Object)>,
    pub(super) prefixes: Vec<String>,
    /// Where the next page starts after; none on the last page.
    pub(super) next: Option<String>,
}

impl Objects {
    /// Puts an object, in place of an older one; the bucket is made if there is none.
    pub fn put(&self, bucket: &str, key: &str, data: impl Into<Bytes>) {
        let data = data.into();
        let etag = hex::encode(&Md5::digest(&data));
        self.insert(bucket, key, ObjectData::Kept(data), etag);
    }

    /// Puts an object whose bytes are made when they are asked for.
    pub fn put_made(&self, bucket: &str, key: &str, object: MadeObject) {
        self.insert(bucket, key, ObjectData::Made(object), object.etag());
    }

    /// The bytes of an object.
    pub fn get(&self, bucket: &str, key: &str) -> Option<Bytes> {
        let data = self.0.lock().get(bucket)?.get(key)?.data.clone();
        Some(data.slice(0..data.len()))
    }

    /// Removes an object; no matter if there is none. A bucket that keeps versions only marks that.
    pub fn delete(&self, bucket: &str, key: &str) {
        self.remove(bucket, key, None);
    }

    /// Has a bucket keep versions from now on.
    pub fn keep_versions(&self, bucket: &str) {
        if let Some(bucket) = self.0.lock().get_mut(bucket) {
            bucket.keep_versions();
        }
    }

    /// Removes all versions of an object but the one that is there, for good.
    pub fn forget_versions(&self, bucket: &str, key: &str) {
        let mut buckets = self.0.lock();
        let Some(bucket) = buckets.get_mut(bucket) else { return };
        let current = bucket.get(key).and_then(|object| object.version_id.clone());
        let (versions, _) = bucket.versions(key, None, usize::MAX);
        for Version { id, .. } in
            versions.into_iter().filter(|(other, _)| other == key).flat_map(|(_, all)| all)
        {
            if Some(&id) != current.as_ref() {
                bucket.remove_version(key, &id);
            }
        }
    }

    /// Removes an object, or one of its versions.
    pub(super) fn remove(&self, bucket: &str, key: &str, version_id: Option<&str>) -> Deleted {
        match (self.0.lock().get_mut(bucket), version_id) {
            (None, _) => Deleted::default(),
            (Some(bucket), None) => bucket.remove(key),
            (Some(bucket), Some(id)) => bucket.remove_version(key, id),
        }
    }

    /// Names of all buckets.
    pub(super) fn buckets(&self) -> Vec<String> {
        self.0.lock().keys().cloned().collect()
    }

    /// Removes a bucket; none if there is none, false if it has objects.
    pub(super) fn delete_bucket(&self, bucket: &str) -> Option<bool> {
        let mut buckets = self.0.lock();
        let is_empty = buckets.get(bucket)?.is_empty();
        if is_empty {
            buckets.remove(bucket);
        }
        Some(is_empty)
    }

    pub(super) fn create_bucket(&self, bucket: &str) {
        self.0.lock().entry(bucket.to_owned()).or_default();
    }

    /// None if there is no such bucket.
    pub(super) fn with_bucket<T>(&self, bucket: &str, f: impl FnOnce(&mut Bucket) -> T) -> Option<T> {
        self.0.lock().get_mut(bucket).map(f)
    }

    #[expect(clippy::disallowed_methods, reason = "S3 tells when an object was written")]
    fn insert(&self, bucket: &str, key: &str, data: ObjectData, etag: String) {
        let object =
            Object { data, etag, modified: SystemTime::now(), about: Arc::default(), version_id: None };
        self.0.lock().entry(bucket.to_owned()).or_default().insert(key.to_owned(), object);
    }
}

/// At most `max` entries of `bucket` under `prefix` after key or prefix `after`, folded at `delimiter`.
pub(super) fn list(
    bucket: &Bucket,
    prefix: &str,
    delimiter: Option<&str>,
    after: Option<&str>,
    max: usize,
) -> Page {
    let mut page = Page::default();
    let mut last = String::new();
    let start = after.filter(|after| *after > prefix).unwrap_or(prefix);
    for (key, object) in bucket.range(start.to_owned()..).take_while(|(key, _)| key.starts_with(prefix)) {
        let folded = delimiter.filter(|d| !d.is_empty()).and_then(|delimiter| {
            let end = key[prefix.len()..].find(delimiter)? + prefix.len() + delimiter.len();
            Some(key[..end].to_owned())
        });
        let entry = folded.as_deref().unwrap_or(key);
        if after.is_some_and(|after| entry <= after) || (folded.is_some() && entry == last) {
            continue;
        }
        if page.objects.len() + page.prefixes.len() == max {
            page.next = Some(last);
            break;
        }
        entry.clone_into(&mut last);
        match folded {
            Some(prefix) => page.prefixes.push(prefix),
            None => page.objects.push((key.clone(), object.clone())),
        }
    }
    page
}
