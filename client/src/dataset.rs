//! A dataset opened: its frozen manifest, its schema, and the columns that will be read.

use crate::access::Access;
use crate::direct::Direct;
use crate::node::Node;
use arrow::datatypes::SchemaRef;
use forebay_dataset::stream::SegmentSource;
use forebay_dataset::{View, schema, view};
use forebay_proto::manifest::Manifest;
use forebay_proto::plan::Order;
use forebay_proto::view::{MixPart, Split};
use forebay_proto::{Error, Kind, Result, v1};
use std::sync::Arc;

/// Which dataset, and which of its columns.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DatasetSpec {
    /// All Parquet objects under this URI, or the one object that it names; empty for a mix.
    pub uri: String,
    /// Only these rows of it; `None` = all. Part of the dataset's version.
    pub split: Option<Split>,
    /// Several datasets in proportion, instead of one. Part of the dataset's version.
    pub mix: Vec<MixPart>,
    /// Columns to read; `None` = all. They are read in the schema's order, whatever the order here.
    pub columns: Option<Vec<String>>,
    /// Decoded bytes that a segment aims at; `None` = the default, 32 MiB. Part of the dataset's version.
    pub segment_bytes: Option<u64>,
}

impl DatasetSpec {
    /// All rows and columns of one dataset.
    pub fn new(uri: impl Into<String>) -> Self {
        Self { uri: uri.into(), ..Self::default() }
    }

    /// What a node is asked for.
    pub fn to_wire(&self) -> v1::DatasetSpec {
        v1::DatasetSpec {
            uri: self.uri.clone(),
            segment_bytes: self.segment_bytes.unwrap_or(0),
            split: self.split.map(Into::into),
            mix: self.mix.iter().cloned().map(Into::into).collect(),
        }
    }

    /// For messages: the URI, or those of the mix.
    fn name(&self) -> String {
        match self.mix.as_slice() {
            [] => self.uri.clone(),
            mix => mix.iter().map(|p| p.uri.as_str()).collect::<Vec<_>>().join(", "),
        }
    }
}

/// A dataset, open for reading. Cheap to clone.
///
/// ```
/// use forebay_client::{Access, Dataset, DatasetSpec, SourceSettings};
///
/// # #[tokio::main]
/// # async fn main() -> forebay_client::Result<()> {
/// let access = Access::direct(SourceSettings::default())?;
/// let folder = std::fs::canonicalize("../tests/data/mnist/test").expect("the test data");
/// let uri = format!("file://{}", folder.display());
/// let spec = DatasetSpec { columns: Some(vec!["label".into()]), ..DatasetSpec::new(uri) };
/// let dataset = Dataset::open(&access, &spec).await?;
/// assert_eq!(dataset.projected_schema().fields().len(), 1);
/// assert_eq!(dataset.manifest().rows(), dataset.epoch_samples());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Dataset {
    access: Access,
    spec: DatasetSpec,
    manifest: Arc<Manifest>,
    schema: SchemaRef,
    projection: Arc<[usize]>,
    projected_schema: SchemaRef,
    projected_bytes: u64,
}

impl Dataset {
    /// Freezes the dataset as it is now. `NotFound` when there is none, `Invalid` when a column does not
    /// exist.
    pub async fn open(access: &Access, spec: &DatasetSpec) -> Result<Self> {
        let (manifest, projected_bytes) = match access {
            Access::Endpoint(nodes) => {
                match (nodes.ask(|node| async move { ask(&node, spec).await }).await, nodes.fallback()) {
                    (Err(e), Some(direct)) if e.kind == Kind::Retry => read(direct, spec).await?,
                    (answer, _) => answer?,
                }
            }
            Access::Direct(direct) => read(direct, spec).await?,
        };
        let schema = schema::from_ipc(manifest.schema()).map_err(|e| e.context(spec.name()))?;
        let columns = spec.columns.as_deref().unwrap_or_default();
        let projection = schema::projection(&schema, columns).map_err(|e| e.context(spec.name()))?;
        let projected_schema = Arc::new(
            schema.project(&projection).map_err(|e| Error::invalid(format!("{}: {e}", spec.name())))?,
        );
        Ok(Self {
            access: access.clone(),
            spec: spec.clone(),
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

    /// What was asked for.
    pub fn spec(&self) -> &DatasetSpec {
        &self.spec
    }

    /// Samples of an epoch: the dataset's rows, or what a mix of them gives.
    pub fn epoch_samples(&self) -> u64 {
        Order::samples(&self.manifest)
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

    /// Compressed bytes of the projected column chunks: what a cold epoch must read from the object store.
    pub fn projected_bytes(&self) -> u64 {
        self.projected_bytes
    }

    /// Where an answer made in this process gets its segments; `Invalid` when the data comes through a cache.
    pub fn segments(&self) -> Result<Arc<dyn SegmentSource>> {
        match &self.access {
            Access::Direct(direct) => Ok(Arc::new(direct.clone())),
            Access::Endpoint(nodes) => Err(Error::invalid(format!(
                "{} is read through the cache at {}",
                self.manifest.uri(),
                nodes.url()
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
    let request =
        v1::OpenRequest { dataset: Some(spec.to_wire()), columns: spec.columns.clone().unwrap_or_default() };
    let reply = node.client().open(request).await.map_err(|s| node.error(s))?.into_inner();
    let manifest = reply.manifest.ok_or_else(|| {
        Error::invalid(format!(
            "{}: {} sent no manifest: use equal versions of Forebay",
            spec.name(),
            node.url()
        ))
    })?;
    Ok((Arc::new(Manifest::try_from(manifest)?), reply.projected_bytes))
}

/// The manifest from the object store.
async fn read(direct: &Direct, spec: &DatasetSpec) -> Result<(Arc<Manifest>, u64)> {
    let wire = spec.to_wire();
    let mut frozen = Vec::new();
    for uri in view::uris(&wire)? {
        frozen.push(direct.source().freeze(uri, wire.segment_bytes).await?);
    }
    let view = View::of(&wire, frozen)?;
    let projection = schema::projection(&view.schema, spec.columns.as_deref().unwrap_or_default())
        .map_err(|e| e.context(spec.name()))?;
    Ok((view.manifest.clone(), view.projected_bytes(&projection)))
}
