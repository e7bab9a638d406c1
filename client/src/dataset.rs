//! A dataset opened: its frozen manifest, its schema, and the columns that will be read.

use crate::access::{Access, Node};
use crate::direct::Direct;
use arrow::datatypes::SchemaRef;
use forebay_proto::manifest::Manifest;
use forebay_proto::{Error, Result, v1};
use forebay_segment::answer::Segments;
use forebay_segment::schema;
use std::sync::Arc;

/// Which dataset, and which of its columns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DatasetSpec {
    /// All Parquet objects under this URI, or the one object that it names.
    pub uri: String,
    /// Columns to read; `None` = all. They are read in the schema's order, whatever the order here.
    pub columns: Option<Vec<String>>,
    /// Decoded bytes that a segment aims at; `None` = the default, 32 MiB. Part of the dataset's version.
    pub segment_bytes: Option<u64>,
}

/// A dataset, open for reading. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Dataset {
    access: Access,
    manifest: Arc<Manifest>,
    schema: SchemaRef,
    projection: Arc<[usize]>,
    projected_schema: SchemaRef,
    projected_bytes: u64,
}

impl Dataset {
    /// Freezes the dataset as it is now. `NotFound` when there is none, `Invalid` when a column does not exist.
    pub async fn open(access: &Access, spec: &DatasetSpec) -> Result<Self> {
        let (manifest, projected_bytes) = match access {
            Access::Endpoint(node) => ask(node, spec).await?,
            Access::Direct(direct) => read(direct, spec).await?,
        };
        let schema = schema::from_ipc(manifest.schema()).map_err(|e| e.context(&spec.uri))?;
        let columns = spec.columns.as_deref().unwrap_or_default();
        let projection = schema::projection(&schema, columns).map_err(|e| e.context(&spec.uri))?;
        let projected_schema =
            Arc::new(schema.project(&projection).map_err(|e| Error::invalid(format!("{}: {e}", spec.uri)))?);
        Ok(Self {
            access: access.clone(),
            manifest,
            schema,
            projection: projection.into(),
            projected_schema,
            projected_bytes,
        })
    }

    /// The frozen dataset.
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    /// All columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The columns to read: ascending indices into [`Dataset::schema`].
    pub fn projection(&self) -> &[usize] {
        &self.projection
    }

    /// The columns to read, in the schema's order: what batches look like.
    pub fn projected_schema(&self) -> &SchemaRef {
        &self.projected_schema
    }

    /// The names of the columns to read, in the schema's order, for a ticket; empty = all.
    pub fn ticket_columns(&self) -> Vec<String> {
        match self.projection.len() == self.schema.fields().len() {
            true => Vec::new(),
            false => self.projected_schema.fields().iter().map(|f| f.name().clone()).collect(),
        }
    }

    /// Compressed bytes of the projected column chunks: what a cold epoch must read from the store.
    pub fn projected_bytes(&self) -> u64 {
        self.projected_bytes
    }

    /// Where an answer made in this process gets its segments; `Invalid` when the data comes through a cache.
    pub fn segments(&self) -> Result<Arc<dyn Segments>> {
        match &self.access {
            Access::Direct(direct) => Ok(Arc::new(direct.clone())),
            Access::Endpoint(node) => Err(Error::invalid(format!(
                "{} is read through the cache at {}",
                self.manifest.uri(),
                node.url()
            ))),
        }
    }

    /// Where its data comes from.
    pub fn access(&self) -> &Access {
        &self.access
    }
}

/// The manifest from a cache node.
async fn ask(node: &Node, spec: &DatasetSpec) -> Result<(Arc<Manifest>, u64)> {
    let request = v1::OpenRequest {
        dataset: Some(v1::DatasetSpec {
            uri: spec.uri.clone(),
            segment_bytes: spec.segment_bytes.unwrap_or(0),
        }),
        columns: spec.columns.clone().unwrap_or_default(),
    };
    let reply = node.client().open(request).await.map_err(|s| node.error(s))?.into_inner();
    let manifest = reply.manifest.ok_or_else(|| {
        Error::invalid(format!(
            "{}: {} sent no manifest: use equal versions of Forebay",
            spec.uri,
            node.url()
        ))
    })?;
    Ok((Arc::new(Manifest::try_from(manifest)?), reply.projected_bytes))
}

/// The manifest from the store itself.
async fn read(direct: &Direct, spec: &DatasetSpec) -> Result<(Arc<Manifest>, u64)> {
    let frozen = direct.source().freeze(&spec.uri, spec.segment_bytes.unwrap_or(0)).await?;
    let projection = frozen.projection(spec.columns.as_deref().unwrap_or_default())?;
    Ok((Arc::new(frozen.manifest.clone()), frozen.projected_bytes(&projection)))
}
