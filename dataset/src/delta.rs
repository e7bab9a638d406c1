//! Delta tables: which objects a version of a table has, and what its log says about them.
//!
//! The log is read by the crate `delta_kernel`, through [`log_files`] and so within the limits of the source.
//! Nothing is written, and the objects themselves are read as those of any dataset.

mod log_files;
mod recent_files;
mod unreadable;
mod url;
mod vectors;

use crate::parquet::quiet::quietly;
use crate::schema::merge::in_zones;
use crate::schema::plain;
use crate::schema::union::Conflict;
use crate::source::{Source, TableUri};
use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use delta_kernel::actions::deletion_vector::DeletionVectorDescriptor;
use delta_kernel::engine::arrow_conversion::TryIntoArrow as _;
use delta_kernel::scan::StatsOptions;
use delta_kernel::scan::state::ScanFile;
use delta_kernel::table_features::ColumnMappingMode;
use delta_kernel::{Engine as _, KernelError, Snapshot, SnapshotRef};
use forebay_proto::manifest::{DELETED_RUNS_MAX, DELTA};
use forebay_proto::v1::{PartitionValue, RenamedColumn, TableObject};
use forebay_proto::{Error, Result};
use log_files::LogEngine;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tracing::subscriber::NoSubscriber;

/// Logs that are read at once in a process: each holds a thread that waits for others.
static READERS: Semaphore = Semaphore::const_new(8);

/// Deleted rows of an object at most: to go through them takes seconds.
const DELETED_ROWS_MAX: i64 = 1 << 32;

/// A table in one version, as its log has it.
#[derive(Debug)]
pub(crate) struct TableLog {
    pub version: TableVersion,
    /// The plain form of the table's schema, partitions included.
    pub schema: Schema,
    /// The columns whose values the log has.
    pub partitions: Vec<String>,
    pub renamed: Vec<RenamedColumn>,
    /// Where columns are found by ids (`delta.columnMapping.mode = id`): of those that objects have the name
    /// there, and the id.
    pub ids: Vec<(String, Option<i64>)>,
    /// Columns that cannot be read.
    pub unreadable: Vec<Conflict>,
    /// In byte order of their keys.
    pub files: Vec<TableFile>,
}

/// Which table, and which state of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableVersion {
    /// Another one if the table was dropped, and one made in its place.
    pub id: String,
    pub number: u64,
}

/// One of the objects.
#[derive(Debug)]
pub(crate) struct TableFile {
    /// Below the table's root.
    pub key: String,
    pub size: u64,
    /// The log's word on it.
    pub object: TableObject,
}

/// Reads the log of the table that a normalised URI names. None if the version is `known`.
///
/// # Errors
/// `NotFound` if there is no such table or version, `Invalid` if it has features that cannot be read.
pub(crate) async fn read(
    source: &Source,
    uri: &str,
    known: Option<TableVersion>,
) -> Result<Option<TableLog>> {
    let (source, uri, runtime) = (source.clone(), uri.to_owned(), Handle::current());
    let turn = READERS.acquire().await.map_err(|_| Error::closed("no log is read any more"))?;
    // It waits for other work, so it must not have a slot of `off_thread`.
    let reading = tokio::task::spawn_blocking(move || {
        // Until the work ends, even if nobody waits for it any more.
        let _turn = turn;
        let Some(TableUri { root, version }) = TableUri::of(&uri) else {
            return Err(Error::invalid(format!("{uri}: names no Delta table")));
        };
        let engine = LogEngine::new(source, root.to_owned(), runtime);
        let read = || {
            let builder = Snapshot::builder_for(url::of_directory(root)?);
            let builder = match version {
                Some(version) => builder.at_version(version),
                None => builder,
            };
            let snapshot = builder.build(&engine)?;
            let id = snapshot.table_configuration().metadata().id().to_owned();
            let version = TableVersion { id, number: snapshot.version() };
            if known.as_ref() == Some(&version) {
                return Ok(None);
            }
            table(&engine, &uri, (&snapshot, version)).map(Some)
        };
        // The kernel logs each error and each step: the error that is returned says it once.
        // The parquet crate may panic over a damaged checkpoint.
        let read = quietly(|| tracing::subscriber::with_default(NoSubscriber::default(), read));
        let read = read.map_err(|why| Error::corrupt(format!("{uri}: its log cannot be read: {why}")))?;
        read.map_err(|fault| explain(&uri, &engine, fault))
    });
    reading.await.unwrap_or_else(|e| Err(Error::closed(format!("reading a table's log: {e}"))))
}

/// Why a log cannot be read.
#[derive(Debug)]
enum LogFault {
    Kernel(KernelError),
    Own(Error),
}

impl From<KernelError> for LogFault {
    fn from(e: KernelError) -> Self {
        Self::Kernel(e)
    }
}

impl From<Error> for LogFault {
    fn from(e: Error) -> Self {
        Self::Own(e)
    }
}

fn explain(uri: &str, engine: &LogEngine, fault: LogFault) -> Error {
    let e = match fault {
        LogFault::Own(e) => return e.context(uri),
        LogFault::Kernel(e) => e,
    };
    // What the object store said tells more than what the kernel made of it.
    if let Some(e) = engine.fault() {
        return e.context(uri);
    }
    match e.without_backtrace() {
        KernelError::Unsupported(why) => Error::invalid(format!(
            "{uri}: the table has a feature that cannot be read: {why}: drop the feature (ALTER TABLE .. DROP FEATURE), or \
             write the rows to a table without it"
        )),
        KernelError::MaxCatalogVersion(_) => Error::invalid(format!(
            "{uri}: a catalog manages the table (its feature catalogManaged), and only the catalog knows its versions: write \
             the rows to another table, or drop the feature (ALTER TABLE .. DROP FEATURE)"
        )),
        // Types that are not known belong to features that are not.
        KernelError::Schema(why) | KernelError::InvalidProtocol(why) => Error::invalid(format!(
            "{uri}: the table has a feature that cannot be read: {why}: write the rows to a table without it"
        )),
        KernelError::EmptyLog | KernelError::FileNotFound(_) | KernelError::InvalidTableLocation(_) => {
            Error::not_found(format!(
                "{uri}: no Delta table is there, as it has no _delta_log with a version in it: name the table's root, or leave \
             {DELTA} out for plain Parquet"
            ))
        }
        KernelError::MissingVersion(_) => Error::not_found(format!(
            "{uri}: its log has not this version yet, or not all before it any more: name another version"
        )),
        e => Error::invalid(format!("{uri}: its log cannot be read: {e}")),
    }
}

fn table(
    engine: &LogEngine,
    uri: &str,
    (snapshot, version): (&SnapshotRef, TableVersion),
) -> Result<TableLog, LogFault> {
    let configuration = snapshot.table_configuration();
    let mode = configuration.column_mapping_mode();
    let logical = snapshot.schema();
    let schema: Schema = logical.as_ref().try_into_arrow().map_err(KernelError::from)?;
    let names = |field: &delta_kernel::schema::StructField| {
        (field.name().to_owned(), field.physical_name(mode).to_owned())
    };
    let names: Vec<(String, String)> = logical.fields().map(names).collect();
    let partitions = configuration.metadata().partition_columns().to_vec();
    let source_of = |column: &String| names.iter().find(|(name, _)| name == column).map(|(_, source)| source);
    let sources: Vec<_> = partitions.iter().map(|name| source_of(name).unwrap_or(name).clone()).collect();
    let renamed = names.iter().filter(|(column, source)| column != source && !partitions.contains(column));
    let renamed = renamed.cloned().map(|(column, source)| RenamedColumn { column, source }).collect();
    let id = |field: &delta_kernel::schema::StructField| {
        let is_own = mode == ColumnMappingMode::Id && !partitions.contains(field.name());
        is_own.then(|| (field.physical_name(mode).to_owned(), field.column_mapping_id()))
    };
    let ids = logical.fields().filter_map(id).collect();
    let conflict = |field: &delta_kernel::schema::StructField| {
        let why = unreadable::why(field, mode)?;
        Some(Conflict { column: field.name().to_owned(), why })
    };
    let unreadable = logical.fields().filter_map(conflict).collect();
    let files = files(engine, uri, snapshot, &sources)?;
    Ok(TableLog { version, schema: plain(&schema), partitions, renamed, ids, unreadable, files })
}

/// The objects; `partitions` are the columns' names in the log.
fn files(
    engine: &LogEngine,
    uri: &str,
    snapshot: &SnapshotRef,
    partitions: &[String],
) -> Result<Vec<TableFile>, LogFault> {
    let stats = StatsOptions::none();
    let scan = snapshot.clone().scan_builder().with_stats(stats).without_row_transforms().build()?;
    let (mut files, mut runs, root) = (Vec::new(), 0, snapshot.table_root());
    for part in scan.scan_metadata(engine)? {
        let part = part?;
        let found = part.visit_scan_files(Vec::new(), |all: &mut Vec<ScanFile>, file| all.push(file))?;
        let vectors = vectors::of(&part.scan_files)?;
        if vectors.len() != found.len() {
            return Err(Error::corrupt("the log's objects and their deletion vectors differ").into());
        }
        let places = vectors.iter().flatten().map(|vector| vector.absolute_path(root));
        let mut places: Vec<_> = places.filter_map(|place| place.ok().flatten()).collect();
        places.sort_unstable();
        places.dedup();
        engine.prepare(places);
        for (file, vector) in found.into_iter().zip(vectors) {
            let deleted = match vector {
                Some(vector) => deleted(engine, &file.path, &vector, (root, DELETED_RUNS_MAX - runs))?,
                None => Vec::new(),
            };
            runs += deleted.len() / 2;
            let value = |name: &String| {
                let text = file.partition_values.get(name).filter(|text| !text.is_empty());
                PartitionValue { text: text.cloned() }
            };
            let object = TableObject { values: partitions.iter().map(value).collect(), deleted };
            let key = url::key(engine.root(), &file.path)?;
            let size = u64::try_from(file.size);
            let size = size.map_err(|_| Error::corrupt(format!("{uri}: '{key}' has {} bytes", file.size)))?;
            files.push(TableFile { key, size, object });
        }
    }
    files.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    match files.windows(2).find(|pair| pair[0].key == pair[1].key) {
        Some(pair) => Err(Error::corrupt(format!("the log has '{}' twice", pair[0].key)).into()),
        None => Ok(files),
    }
}

/// The deleted rows of an object of a table at `root`, as at most `most` runs. They are never all held as
/// rows.
fn deleted(
    engine: &LogEngine,
    path: &str,
    vector: &DeletionVectorDescriptor,
    (root, most): (&::url::Url, usize),
) -> Result<Vec<u64>, LogFault> {
    let count = vector.cardinality;
    let too_many = |what: String| {
        Error::invalid(format!(
            "{what} are deleted but not removed: rewrite its files (REORG TABLE .. APPLY (PURGE))"
        ))
    };
    let bad = || Error::corrupt(format!("'{path}': its deletion vector does not have {count} rows"));
    if count > DELETED_ROWS_MAX {
        return Err(too_many(format!("{count} rows of '{path}'")).into());
    }
    let rows = vector.read(engine.storage_handler(), root)?;
    if i64::try_from(rows.len()) != Ok(count) {
        return Err(bad().into());
    }
    let mut next = None;
    let begins = |row: &u64| {
        let begins = next != Some(*row);
        next = row.checked_add(1);
        begins
    };
    if rows.iter().filter(begins).take(most + 1).count() > most {
        return Err(too_many(format!("more than {DELETED_RUNS_MAX} runs of rows")).into());
    }
    Ok(TableObject::runs_of(rows.iter()).ok_or_else(bad)?)
}

impl TableLog {
    /// `Invalid` if an object's columns would be others by their ids than by their names. Writers give both;
    /// objects that came from elsewhere may have other names, or no ids. `columns` are the object's names and
    /// ids.
    pub(crate) fn check_ids(&self, uri: &str, columns: &[(&str, Option<i64>)]) -> Result<()> {
        let name_of = |id: i64| columns.iter().find(|(_, own)| *own == Some(id)).map(|(name, _)| *name);
        let id_of = |name: &str| columns.iter().find(|(own, _)| *own == name).map(|(_, id)| *id);
        for (name, id) in &self.ids {
            let found = match (id_of(name), id.and_then(name_of)) {
                (None, None) => continue,
                (Some(own), _) if own.is_some() && own == *id => continue,
                (_, Some(other)) => format!("there '{other}'"),
                (Some(Some(own)), None) => format!("and '{name}' has the id {own}"),
                (Some(None), None) => format!("and '{name}' has no id"),
            };
            let id = id.map_or_else(|| "none".to_owned(), |id| id.to_string());
            return Err(Error::invalid(format!(
                "{uri}: the table finds columns by ids (delta.columnMapping.mode = id): the column '{name}' of the log has \
                 the id {id}, {found}, which is not supported: rewrite the object (REORG TABLE .. APPLY (PURGE)), or write \
                 the rows to another table"
            )));
        }
        Ok(())
    }

    /// The schema of an object with the table's names for its columns, as the table takes it and with the
    /// object's own types. A column that the table has not gets a name that no column has. Moments without a
    /// time zone, as Spark wrote them in 96 bits, are in UTC where the table says so.
    pub(crate) fn named(&self, own: &SchemaRef) -> (SchemaRef, SchemaRef) {
        let named = |field: &FieldRef| {
            let column = self.renamed.iter().find(|r| r.source == *field.name()).map(|r| r.column.clone());
            let is_other = self.renamed.iter().any(|r| r.column == *field.name());
            let name = match column {
                Some(column) => column,
                None if is_other => format!("\0{}", field.name()),
                None => field.name().clone(),
            };
            Arc::new(field.as_ref().clone().with_name(name))
        };
        let zoned = |field: &FieldRef| match self.schema.field_with_name(field.name()) {
            Ok(wanted) => {
                let data_type = in_zones(field.data_type(), wanted.data_type());
                Arc::new(field.as_ref().clone().with_data_type(data_type))
            }
            Err(_) => field.clone(),
        };
        let named: Vec<FieldRef> = own.fields().iter().map(named).collect();
        let zoned: Vec<FieldRef> = named.iter().map(zoned).collect();
        (Arc::new(Schema::new(zoned)), Arc::new(Schema::new(named)))
    }
}
