//! One object of the S3 server, in one version.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use forebay_proto::hex;
use md5::{Digest, Md5};

use crate::harness::made::MadeObject;

/// One stored object. Cloning shares the bytes.
#[derive(Clone)]
pub(super) struct Object {
    pub(super) data: ObjectData,
    pub(super) etag: String,
    pub(super) modified: SystemTime,
    pub(super) about: Arc<About>,
    /// Where the bucket keeps versions.
    pub(super) version_id: Option<String>,
}

/// The bytes of an object: kept, or made when they are asked for.
#[derive(Clone)]
pub(super) enum ObjectData {
    Kept(Bytes),
    Made(MadeObject),
}

impl ObjectData {
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

impl Object {
    #[expect(clippy::disallowed_methods, reason = "S3 tells when an object was written")]
    pub(super) fn new(data: Bytes) -> Self {
        let (etag, data) = (hex::encode(&Md5::digest(&data)), ObjectData::Kept(data));
        Self { data, etag, modified: SystemTime::now(), about: Arc::default(), version_id: None }
    }
}
