//! A dataset that a node knows.

use arrow::datatypes::SchemaRef;
use forebay_dataset::source;
use forebay_proto::Manifest;
use std::sync::Arc;

/// A frozen dataset with its decoded schema.
#[derive(Debug, Clone)]
pub struct Dataset {
    pub manifest: Arc<Manifest>,
    /// All columns.
    pub schema: SchemaRef,
}

impl Dataset {
    /// Whether it reads anything under a URI.
    pub fn is_of(&self, uri: &str) -> bool {
        self.manifest.parts().iter().any(|p| source::is_under(&p.uri, uri))
    }
}
