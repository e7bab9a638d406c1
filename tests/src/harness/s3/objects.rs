//! The buckets and objects of the S3 server, in memory. No HTTP, no S3 types: only objects and listings.

use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use md5::{Digest, Md5};

use crate::harness::made::MadeObject;

/// A handle on all buckets; clones share them.
#[derive(Clone, Default)]
pub struct Objects(Arc<Mutex<BTreeMap<String, Bucket>>>);

type Bucket = BTreeMap<String, Object>;

/// One stored object. Cloning shares the bytes.
#[derive(Clone)]
pub(super) struct Object {
    pub(super) data: Content,
    pub(super) etag: String,
    pub(super) modified: SystemTime,
    pub(super) about: Arc<About>,
}

/// The bytes of an object: kept, or made when they are asked for.
#[derive(Clone)]
pub(super) enum Content {
    Kept(Bytes),
    Made(MadeObject),
}

impl Content {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Kept(bytes) => bytes.len(),
            Self::Made(object) => object.size as usize,
        }
    }

    pub(super) fn slice(&self, range: Range<usize>) -> Bytes {
        match self {
            Self::Kept(bytes) => bytes.slice(range),
            Self::Made(object) => object.bytes(range.start as u64..range.end as u64),
        }
    }
}

/// What an object's writer said of it.
#[derive(Default)]
pub(super) struct About {
    pub(super) cache_control: Option<String>,
    pub(super) content_disposition: Option<String>,
    pub(super) content_encoding: Option<String>,
    pub(super) content_language: Option<String>,
    pub(super) content_type: Option<String>,
    pub(super) metadata: Option<HashMap<String, String>>,
    /// Bytes of the parts that it was uploaded in.
    pub(super) parts: Vec<usize>,
}

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
        let etag = hex(&Md5::digest(&data));
        self.insert(bucket, key, Content::Kept(data), etag);
    }

    /// Puts an object whose bytes are made when they are asked for.
    pub fn put_made(&self, bucket: &str, key: &str, object: MadeObject) {
        self.insert(bucket, key, Content::Made(object), object.etag());
    }

    /// The bytes of an object.
    pub fn get(&self, bucket: &str, key: &str) -> Option<Bytes> {
        let data = self.0.lock().get(bucket)?.get(key)?.data.clone();
        Some(data.slice(0..data.len()))
    }

    /// Removes an object; no matter if there is none.
    pub fn delete(&self, bucket: &str, key: &str) {
        if let Some(bucket) = self.0.lock().get_mut(bucket) {
            bucket.remove(key);
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
    fn insert(&self, bucket: &str, key: &str, data: Content, etag: String) {
        let object = Object { data, etag, modified: SystemTime::now(), about: Arc::default() };
        self.0.lock().entry(bucket.to_owned()).or_default().insert(key.to_owned(), object);
    }
}

impl Object {
    #[expect(clippy::disallowed_methods, reason = "S3 tells when an object was written")]
    pub(super) fn new(data: Bytes) -> Self {
        let (etag, data) = (hex(&Md5::digest(&data)), Content::Kept(data));
        Self { data, etag, modified: SystemTime::now(), about: Arc::default() }
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

pub(super) fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
