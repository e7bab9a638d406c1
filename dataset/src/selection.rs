//! A dataset before it is frozen: which objects, and how they become one table.

use forebay_proto::manifest::{Object, object_uri};
use forebay_proto::v1;

/// One dataset, before it is frozen. Equal ones freeze to equal manifests while their objects stay the same.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Selection {
    /// A prefix, an object, or a pattern (`*`, `**`, `{a,b}`).
    pub uri: String,
    /// Decoded bytes that a segment aims at; 0 = the default.
    pub segment_bytes: u64,
    /// The object whose schema the dataset has; empty = the union of all.
    pub schema_of: String,
    /// Whether directories such as `year=2024/` stay what they are instead of becoming columns.
    pub no_partitions: bool,
    /// These objects instead of those that a listing gives, if any: keys under `uri` or full URIs. An object
    /// without a tag is taken as it is now.
    pub objects: Vec<Object>,
    /// Only rows for which this is true; empty = all.
    pub filter: String,
}

impl Selection {
    /// All objects under `uri`.
    pub fn new(uri: impl Into<String>, segment_bytes: u64) -> Self {
        Self { uri: uri.into(), segment_bytes, ..Self::default() }
    }

    /// As `spec` has it, of the dataset at `uri`.
    pub(crate) fn of(spec: &v1::DatasetSpec, uri: &str) -> Self {
        Self {
            uri: uri.to_owned(),
            segment_bytes: spec.segment_bytes,
            schema_of: spec.schema_of.clone(),
            no_partitions: spec.no_partitions,
            objects: spec.objects.clone(),
            filter: spec.filter.clone(),
        }
    }

    /// Whether nothing is asked for but a URI and a size.
    pub fn is_plain(&self) -> bool {
        self.schema_of.is_empty() && !self.no_partitions && self.objects.is_empty() && self.filter.is_empty()
    }

    /// The full URI of an object that is named by its key below the dataset's URI or by its own.
    pub fn object_uri(&self, key: &str) -> String {
        object_uri(&self.uri, key)
    }
}
