//! The columns that are read of a dataset.

use crate::packed::PackedSchema;
use arrow::datatypes::SchemaRef;
use forebay_proto::manifest::Manifest;
use forebay_proto::{Error, Result};
use std::sync::Arc;

/// A dataset and those of its columns that are read.
#[derive(Debug, Clone)]
pub struct Reading {
    /// The frozen dataset, whichever of its columns are read.
    pub manifest: Arc<Manifest>,
    /// All its columns.
    pub schema: SchemaRef,
    /// The columns that are read: ascending indices into `schema`.
    pub projection: Arc<[usize]>,
    /// The schema of these columns alone.
    pub projected: SchemaRef,
    /// The same, and how their narrow ones are packed.
    pub packed: Arc<PackedSchema>,
    /// Only some rows of a segment are read, not all of them sooner or later.
    pub is_sparse: bool,
    /// Its reader waits for leave before anything is fetched: nothing is fetched ahead for it.
    pub is_throttled: bool,
}

impl Reading {
    /// The named columns of a dataset whose columns are `schema`; no names mean all. `Invalid` names a column
    /// that does not exist.
    pub fn new(manifest: Arc<Manifest>, schema: &SchemaRef, columns: &[String]) -> Result<Self> {
        let projection = crate::schema::projection(schema, columns).map_err(|e| e.context(manifest.uri()))?;
        let projected = schema.project(&projection);
        let projected = projected.map_err(|e| Error::invalid(format!("project columns: {e}")))?;
        let (schema, projected) = (schema.clone(), Arc::new(projected));
        let packed = Arc::new(PackedSchema::new(projected.clone()));
        let projection = projection.into();
        Ok(Self { manifest, schema, projection, projected, packed, is_sparse: false, is_throttled: false })
    }

    /// The names of the columns that are read.
    pub fn columns(&self) -> impl Iterator<Item = &String> {
        self.projected.fields().iter().map(|f| f.name())
    }
}
