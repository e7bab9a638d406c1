//! A dataset opened: its frozen manifest, its schema, and the columns that will be read.

use crate::access::Access;
use crate::direct::Direct;
use crate::idle_slot::IdleSlot;
use crate::list::{self, List};
use crate::node::Node;
use crate::snapshot;
use arrow::datatypes::SchemaRef;
use forebay_dataset::pool::Pool;
use forebay_dataset::{View, schema, view};
use forebay_proto::manifest::{Digest, Filter, Manifest, Object};
use forebay_proto::plan::Order;
use forebay_proto::snapshot::SCHEME;
use forebay_proto::view::{MixPart, Split};
use forebay_proto::{Error, Kind, Result, protocol, v1};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Which dataset, and which of its columns.
#[derive(Debug, Clone, Default, PartialEq)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
pub struct DatasetSpec {
    /// Dataset: s3://BUCKET/PREFIX or file:///PATH, a folder of Parquet objects, one of them, or a pattern
    /// (*, **, {a,b}); delta+s3://BUCKET/PATH@VERSION, a Delta table, as it is now without @VERSION; @FILE, a
    /// list of objects or what `forebay inspect --json` printed; or snapshot:NAME
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
    /// Take the schema of this object (a key below the dataset's URI) instead of the union of all schemas
    #[cfg_attr(feature = "cli", arg(long, value_name = "OBJECT"))]
    pub schema_of: Option<String>,
    /// Make no columns of directories such as year=2024/
    #[cfg_attr(feature = "cli", arg(long))]
    pub no_partitions: bool,
    /// Read only rows for which this is true, as in 'price > 3 and country = "ch"' (docs/datasets.md)
    #[cfg_attr(feature = "cli", arg(long = "where", value_name = "FILTER"))]
    pub filter: Option<String>,
    /// Exactly these objects, in this order, instead of all under the URI: keys below it, or full URIs. One
    /// without a tag is taken as it is now.
    #[cfg_attr(feature = "cli", arg(skip))]
    pub objects: Vec<Object>,
    /// Name the objects with the object store's ids of their versions too, if it keeps any: with them a
    /// snapshot can be read after its objects were overwritten. A request for each object.
    #[cfg_attr(feature = "cli", arg(skip))]
    pub version_ids: bool,
}

impl DatasetSpec {
    /// All rows and columns of one dataset.
    pub fn new(uri: impl Into<String>) -> Self {
        Self { uri: uri.into(), ..Self::default() }
    }

    /// With the objects of a list (`@FILE`) or a snapshot (`snapshot:NAME`) if [`DatasetSpec::uri`] names
    /// one, and their common prefix for a URI; and the digest that all of it must have, where that is known.
    async fn resolved(&self, access: &Access) -> Result<(Self, Option<Digest>)> {
        if self.filter.as_ref().is_some_and(|filter| filter.trim().is_empty()) {
            let why = "the filter is empty: write a condition, as in price > 3, or leave it out";
            return Err(Error::invalid(format!("{}: {why}", self.name())));
        }
        self.check_mix()?;
        let listed = match self.uri.strip_prefix('@') {
            Some(path) => list_file(path).await.map_err(|e| e.context(&self.uri))?,
            None if self.uri.starts_with(SCHEME) => List::from(snapshot::named(access, &self.uri).await?),
            None => return Ok((self.clone(), None)),
        };
        if self.filter.is_some() && listed.filter.is_some() {
            let why = "it is a version that has a filter: leave --where out, or read the URI instead";
            return Err(Error::invalid(format!("{}: {why}", self.uri)));
        }
        let is_all = self.split.is_none()
            && self.filter.is_none()
            && self.segment_bytes.is_none_or(|bytes| Some(bytes) == listed.segment_bytes)
            && self.schema_of.is_none()
            && (!self.no_partitions || listed.no_partitions);
        let digest = listed.digest.filter(|_| is_all);
        let spec = Self {
            uri: listed.uri,
            filter: self.filter.clone().or(listed.filter),
            objects: listed.objects,
            segment_bytes: self.segment_bytes.or(listed.segment_bytes),
            schema_of: self.schema_of.clone().or(listed.schema_of),
            no_partitions: self.no_partitions || listed.no_partitions,
            ..self.clone()
        };
        Ok((spec, digest))
    }

    /// The parts of a mix are URIs: a list or a snapshot is a dataset by itself.
    fn check_mix(&self) -> Result<()> {
        let is_version = |part: &&MixPart| part.uri.starts_with('@') || part.uri.starts_with(SCHEME);
        match self.mix.iter().find(is_version) {
            None => Ok(()),
            Some(part) => Err(Error::invalid(format!(
                "{}: a mix has no lists and no snapshots: give its parts by their URIs",
                part.uri
            ))),
        }
    }

    /// What a node is asked for.
    pub fn to_wire(&self) -> v1::DatasetSpec {
        v1::DatasetSpec {
            uri: self.uri.clone(),
            segment_bytes: self.segment_bytes.unwrap_or(0),
            split: self.split.map(|split| v1::Split { by: Some(split) }),
            mix: self.mix.clone(),
            schema_of: self.schema_of.clone().unwrap_or_default(),
            no_partitions: self.no_partitions,
            objects: self.objects.clone(),
            filter: self.filter.clone().unwrap_or_default(),
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
    /// What was asked for, lists and snapshots resolved.
    pub spec: DatasetSpec,
    /// Names its objects in their versions, and how they are cut into segments.
    pub manifest: Arc<Manifest>,
    /// All columns, whether they are read or not.
    pub schema: SchemaRef,
    /// The columns to read: ascending indices into `schema`.
    pub projection: Arc<[usize]>,
    /// The columns to read, in the schema's order: what batches look like.
    pub projected_schema: SchemaRef,
    /// Compressed bytes of the projected column chunks: what a cold epoch must read from the object store.
    pub projected_bytes: u64,
    /// For people: objects that were left out, and what else they may not expect.
    pub notes: Vec<String>,
    /// Memory for batches that the last loader left to the next one.
    pub(crate) left: IdleSlot<Pool>,
}

/// What a node, or this process itself, says of a dataset that is opened.
struct Answer {
    manifest: Arc<Manifest>,
    projected_bytes: u64,
    notes: Vec<String>,
}

impl Dataset {
    /// Freezes the dataset as it is now, or as its list says. `NotFound` when there is none, `Invalid` when a
    /// column does not exist or objects do not agree on its type.
    pub async fn open(access: &Access, spec: &DatasetSpec) -> Result<Self> {
        let asked = spec.uri.as_str();
        let (spec, digest) = &spec.resolved(access).await?;
        let answer = match access {
            Access::Endpoint(nodes) => {
                match (nodes.ask(|node| async move { ask(&node, spec).await }).await, &nodes.fallback) {
                    (Err(e), Some(direct)) if e.kind == Kind::Retry => read(direct, spec).await,
                    (answer, _) => answer,
                }
            }
            Access::Direct(direct) => read(direct, spec).await,
        };
        let Answer { manifest, projected_bytes, notes } = match spec.uri == asked {
            true => answer?,
            false => answer.map_err(|e| e.context(asked))?,
        };
        if let Some(saved) = digest.filter(|saved| *saved != manifest.digest()) {
            return Err(Error::changed(format!(
                "{asked}: it was saved as version {saved}, and opens as {}: its text was changed, it was made of a split, or \
                 another version of Forebay made it; save it again",
                manifest.digest()
            )));
        }
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
            notes,
            left: IdleSlot::default(),
        })
    }

    /// Its version under a name, to be kept.
    ///
    /// # Errors
    /// `Invalid` for a split and for a mix.
    #[expect(clippy::disallowed_methods, reason = "people want to know when a snapshot was saved")]
    pub fn snapshot(&self, name: &str) -> Result<v1::Snapshot> {
        let (m, spec) = (&self.manifest, &self.spec);
        if spec.split.is_some() || !spec.mix.is_empty() {
            let why = "a snapshot keeps all rows of one dataset: give --split and --mix to what reads it";
            return Err(Error::invalid(format!("{}: {why}", m.uri())));
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(v1::Snapshot {
            name: name.to_owned(),
            digest: m.digest().to_bytes().to_vec().into(),
            rows: m.rows(),
            objects: m.objects().len() as u64,
            object_bytes: m.objects().iter().map(|object| object.size).sum(),
            saved_unix_s: now.as_secs(),
            dataset: Some(self.exact_spec().to_wire()),
            ..Default::default()
        })
    }

    /// What opens as this version whatever was added to its URI since: it names the objects with their tags.
    /// Of a mix it is the spec as it is, as the parts of a mix are URIs.
    fn exact_spec(&self) -> DatasetSpec {
        let (m, spec) = (&self.manifest, self.spec.clone());
        if !spec.mix.is_empty() {
            return spec;
        }
        let uri = m.version_uri();
        DatasetSpec {
            // The log of a table keeps which objects a version has.
            objects: if uri == m.uri() { m.objects().to_vec() } else { Vec::new() },
            uri,
            segment_bytes: Some(m.segment_bytes()),
            filter: m.filter().map(Filter::predicate).filter(|text| !text.is_empty()).map(str::to_owned),
            ..spec
        }
    }

    /// Tells a node of this version, which it does not know or has forgotten. `Changed` if objects of it were
    /// overwritten or deleted since.
    pub(crate) async fn tell(&self, node: &Node) -> Result<()> {
        let is_this = |answer: &Answer| answer.manifest.digest() == self.manifest.digest();
        // As it was opened first: a short request, and mostly what the node has frozen before.
        let told = ask(node, &self.spec).await;
        let exact = self.exact_spec();
        let told = match told {
            Ok(answer) if is_this(&answer) => return Ok(()),
            Err(e) if e.kind == Kind::Retry => return Err(e),
            told if exact == self.spec => told,
            // Objects were added or overwritten, or a table has a later version.
            _ => ask(node, &exact).await,
        };
        let (uri, version) = (self.manifest.uri(), self.manifest.digest());
        let changed = |why: String| {
            Error::changed(format!(
                "{uri} has changed since it was opened as version {version}: open it again, or start a new run from \
                 it: {why}"
            ))
        };
        match told {
            Ok(answer) if is_this(&answer) => Ok(()),
            Ok(answer) => Err(changed(format!("it is version {} now", answer.manifest.digest()))),
            Err(e) if matches!(e.kind, Kind::Changed | Kind::NotFound) => Err(changed(e.message)),
            Err(e) => Err(e),
        }
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

/// A list of objects, or a version, in a file.
async fn list_file(path: &str) -> Result<List> {
    let text = tokio::fs::read(path).await.map_err(|e| Error::invalid(e.to_string()))?;
    let listed = tokio::task::spawn_blocking(move || list::read(&text)).await;
    listed.map_err(|e| Error::closed(format!("reading a list broke off: {e}")))?
}

/// The manifest from a cache node.
async fn ask(node: &Node, spec: &DatasetSpec) -> Result<Answer> {
    let request = v1::OpenRequest {
        dataset: Some(spec.to_wire()),
        columns: spec.columns.clone().unwrap_or_default(),
        version_ids: spec.version_ids,
        protocol: Some(protocol::ours()),
    };
    let v1::OpenReply { manifest, projected_bytes, notes, protocol } = node.open(request).await?;
    protocol::check_node(node.url(), protocol.as_ref())?;
    let manifest = Manifest::try_from(manifest.unwrap_or_default())?;
    // A node of before knows no lists, and would answer with all that lies under the URI.
    let is_listed = || manifest.objects().iter().map(|o| &o.key).eq(spec.objects.iter().map(|o| &o.key));
    if !spec.objects.is_empty() && !is_listed() {
        return Err(Error::invalid(format!(
            "{}: the node did not take the list of objects: use equal versions of Forebay",
            spec.name()
        )));
    }
    if spec.filter.is_some() && manifest.filter().is_none() {
        return Err(Error::invalid(format!(
            "{}: the node did not take the filter: use equal versions of Forebay",
            spec.name()
        )));
    }
    Ok(Answer { manifest: Arc::new(manifest), projected_bytes, notes })
}

/// The manifest from the object store.
async fn read(direct: &Direct, spec: &DatasetSpec) -> Result<Answer> {
    let wire = spec.to_wire();
    let mut frozen = Vec::new();
    for selection in view::selections(&wire)? {
        frozen.push(direct.source().freeze_again(&selection, None).await?);
    }
    let view = View::of(&wire, frozen)?;
    let projection = view.projection(spec.columns.as_deref().unwrap_or_default())?;
    let projected_bytes = view.projected_bytes(&projection);
    let manifest = match spec.version_ids && !view.manifest.has_version_ids() {
        true => Arc::new(direct.source().with_version_ids(&view.manifest).await?),
        false => view.manifest.clone(),
    };
    Ok(Answer { manifest, projected_bytes, notes: view.notes() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_dataset::SourceSettings;

    #[tokio::test]
    async fn the_exact_spec_of_a_version_opens_as_it_split_and_filtered_too() {
        let access = Access::direct(SourceSettings::default()).unwrap();
        let folder = std::fs::canonicalize("../tests/data/mnist/test").unwrap();
        let whole = DatasetSpec::new(format!("file://{}", folder.display()));
        let split = Some("1234:5678".parse().unwrap());
        let (filter, segment_bytes) = (Some("label > 3".to_owned()), Some(1 << 20));
        for spec in [
            whole.clone(),
            DatasetSpec { split, ..whole.clone() },
            DatasetSpec { split, filter, segment_bytes, ..whole },
        ] {
            let dataset = Dataset::open(&access, &spec).await.unwrap();
            let exact = dataset.exact_spec();
            assert!(exact.objects.len() == 2 && exact.objects.iter().all(|object| !object.etag.is_empty()));
            let again = Dataset::open(&access, &exact).await.unwrap();
            assert_eq!(again.manifest.digest(), dataset.manifest.digest(), "{spec:?}");
            assert_eq!(again.exact_spec(), exact);
        }
    }
}
