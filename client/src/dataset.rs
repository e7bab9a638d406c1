//! A dataset opened: its frozen manifest, its schema, and the columns that will be read.

use crate::access::Access;
use crate::direct::Direct;
use crate::node::Node;
use arrow::datatypes::SchemaRef;
use forebay_dataset::{View, schema, view};
use forebay_proto::manifest::Manifest;
use forebay_proto::plan::Order;
use forebay_proto::view::{MixPart, Split};
use forebay_proto::{Error, Kind, Result, v1};
use std::sync::Arc;

/// Which dataset, and which of its columns.
#[derive(Debug, Clone, Default, PartialEq)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
pub struct DatasetSpec {
    /// Dataset: s3://BUCKET/PREFIX or file:///PATH, a folder of Parquet objects or one of them
    #[cfg_attr(feature = "cli", arg(required_unless_present = "mix", conflicts_with = "mix"))]
    #[cfg_attr(feature = "cli", arg(default_value = "", hide_default_value = true))]
    pub uri: String,
    /// Read only some of its rows, in file order: shares as in 0:0.9, or rows as in 1000:5000
    #[cfg_attr(feature = "cli", arg(long, value_name = "FROM:TO", conflicts_with = "mix"))]
    pub split: Option<Split>,
    /// Several datasets in proportion instead of one, separated by commas, as in s3://b/x=0.7,s3://b/y=0.3
    #[cfg_attr(feature = "cli", arg(long, value_name = "URI=SHARE", value_delimiter = ','))]
    pub mix: Vec<MixPart>,
    /// Columns to read, separated by commas [default: all]
    #[cfg_attr(feature = "cli", arg(long, value_name = "NAMES", value_delimiter = ','))]
    pub columns: Option<Vec<String>>,
    /// Target size of a segment in decoded bytes, e.g. 8MiB; part of the dataset's version [default: 32MiB]
    #[cfg_attr(feature = "cli", arg(long, value_name = "BYTES", value_parser = crate::args::bytes))]
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
            split: self.split.map(|split| v1::Split { by: Some(split) }),
            mix: self.mix.clone(),
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
/// assert_eq!(dataset.projected_schema.fields().len(), 1);
/// assert_eq!(dataset.manifest.rows(), dataset.epoch_samples());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Dataset {
    /// Where its data comes from.
    pub access: Access,
    /// What was asked for.
    pub spec: DatasetSpec,
    /// The frozen dataset.
    pub manifest: Arc<Manifest>,
    /// All columns.
    pub schema: SchemaRef,
    /// The columns to read: ascending indices into `schema`.
    pub projection: Arc<[usize]>,
    /// The columns to read, in the schema's order: what batches look like.
    pub projected_schema: SchemaRef,
    /// Compressed bytes of the projected column chunks: what a cold epoch must read from the object store.
    pub projected_bytes: u64,
}

impl Dataset {
    /// Freezes the dataset as it is now. `NotFound` when there is none, `Invalid` when a column does not
    /// exist.
    pub async fn open(access: &Access, spec: &DatasetSpec) -> Result<Self> {
        let (manifest, projected_bytes) = match access {
            Access::Endpoint(nodes) => {
                match (nodes.ask(|node| async move { ask(&node, spec).await }).await, &nodes.fallback) {
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

    /// Samples of an epoch: the dataset's rows, or what a mix of them gives.
    pub fn epoch_samples(&self) -> u64 {
        Order::samples(&self.manifest)
    }

    /// The names of the columns to read, in the schema's order, for a ticket; empty = all.
    pub fn ticket_columns(&self) -> Vec<String> {
        match self.projection.len() == self.schema.fields().len() {
            true => Vec::new(),
            false => self.projected_schema.fields().iter().map(|f| f.name().clone()).collect(),
        }
    }
}

/// The manifest from a cache node.
async fn ask(node: &Node, spec: &DatasetSpec) -> Result<(Arc<Manifest>, u64)> {
    let request =
        v1::OpenRequest { dataset: Some(spec.to_wire()), columns: spec.columns.clone().unwrap_or_default() };
    let reply = node.reply(node.client().open(request)).await?;
    let manifest = Manifest::try_from(reply.manifest.unwrap_or_default())?;
    Ok((Arc::new(manifest), reply.projected_bytes))
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
