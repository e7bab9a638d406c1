//! Objects by where they are and which version they have.

use super::faults::Endpoint;
use super::uri::{locate, spell};
use forebay_proto::ring::is_under;
use forebay_proto::{Error, Result};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};
use std::sync::Arc;

/// A bucket, or the file system.
pub(super) struct Bucket {
    pub objects: Box<dyn ObjectStore>,
    pub endpoint: Endpoint,
}

/// An object or a prefix in its bucket.
#[derive(Clone)]
pub(crate) struct Place {
    pub(super) bucket: Arc<Bucket>,
    pub(super) path: Path,
    pub(super) uri: String,
}

/// The version of an object: its tag without quotes, and its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    pub etag: String,
    pub size: u64,
}

/// Which counters a request belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Footer,
    /// Column chunks.
    Data,
}

impl Place {
    /// The URI that the place was opened by.
    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// The path in the bucket: a listed object's key starts with it.
    pub(crate) fn path(&self) -> &str {
        self.path.as_ref()
    }

    /// Whether the place is in the file system.
    pub(crate) fn is_file(&self) -> bool {
        self.bucket.endpoint.bucket.is_none()
    }

    /// `Denied` if the object, symbolic links resolved, lies outside of its dataset's normalised URI. Not for
    /// an async thread where it is a file.
    pub(crate) fn stays_under(&self, dataset: &str) -> Result<()> {
        if !self.is_file() || is_under(&spell(&self.uri, locate(&self.uri)?)?, dataset) {
            return Ok(());
        }
        Err(Error::denied(format!(
            "{}: is a link that leads out of {dataset}: name the target itself",
            self.uri
        )))
    }

    /// The version that a listing or an answer names.
    pub(crate) fn version(&self, meta: &ObjectMeta) -> Result<Version> {
        let etag = meta.e_tag.as_deref().map(|e| e.trim_matches('"')).filter(|e| !e.is_empty());
        let etag = etag.ok_or_else(|| {
            Error::invalid(format!(
                "{}: the object store gives no ETag, so versions cannot be told apart",
                self.uri
            ))
        })?;
        Ok(Version { etag: etag.to_owned(), size: meta.size })
    }
}
