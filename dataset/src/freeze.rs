//! Freezing: a URI becomes a manifest, from a listing and the objects' footers.
//!
//! The same objects always give the same manifest, wherever it is made. Column data is not read, but for a
//! filter's ([`filtered`]).

mod directories;
mod filtered;
mod keys;
mod logged;
mod objects;
mod pattern;
mod shape;

use crate::delta::{self, TableLog, TableVersion};
use crate::filter::{Filter, Predicate};
use crate::off_thread::blocking;
use crate::parquet::cost::group_bytes;
use crate::parquet::counting::{FilteredTable, Tools};
use crate::parquet::footer::Footer;
use crate::schema::to_ipc;
use crate::schema::union::{Conflict, Sighting};
use crate::selection::Selection;
use crate::source::{TableUri, normalise, place_of};
use crate::urgency::Urgency;
use arrow::datatypes::SchemaRef;
use forebay_proto::manifest::{Object, SEGMENT_BYTES, SEGMENT_BYTES_MAX, SegmentSize};
use forebay_proto::{Error, Manifest, Result};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use keys::Keys;
use objects::{Found, Listed};
pub(crate) use pattern::base;
use shape::{Schemas, Table};
use std::sync::Arc;

/// A dataset frozen, with what its footers tell beyond the manifest.
#[derive(Debug, Clone)]
pub struct Frozen {
    /// Names objects in their versions, and cuts them into segments.
    pub manifest: Manifest,
    /// Its schema, decoded.
    pub schema: SchemaRef,
    /// Compressed bytes of each column in all objects, less row groups of which a filter or deletions leave
    /// no row.
    pub column_bytes: Vec<u64>,
    /// Row groups of all objects, less those of which a filter or deletions leave no row.
    pub row_groups: u64,
    /// Columns that the dataset has not, as the objects do not agree on their types.
    pub conflicts: Vec<Conflict>,
    /// For people: objects that were left out.
    pub left_out: Vec<String>,
    /// For people: what else they may not expect.
    pub notes: Vec<String>,
}

impl Frozen {
    fn of(manifest: Manifest, table: Table, column_bytes: Vec<u64>, row_groups: u64) -> Result<Self> {
        let Table { schema, shape, conflicts, notes } = table;
        let (manifest, schema) = (manifest.shaped(shape)?, Arc::new(schema));
        Ok(Self { manifest, schema, column_bytes, row_groups, conflicts, left_out: Vec::new(), notes })
    }

    /// Whether freezing these objects would give the same.
    fn is_of(&self, uri: &str, segment_bytes: u64, Found { objects, log, .. }: &Found) -> bool {
        let m = &self.manifest;
        if log.is_some() || self.table_version().is_some() {
            return false;
        }
        let same = |(known, (key, o)): (&Object, &Listed)| {
            (&known.key, &known.etag, known.size) == (key, &o.etag, o.size)
        };
        (m.uri(), m.segment_bytes()) == (uri, segment_bytes)
            && m.objects().len() == objects.len()
            && m.objects().iter().zip(objects).all(same)
    }

    /// The version of the Delta table that it is of.
    fn table_version(&self) -> Option<TableVersion> {
        let table = self.manifest.shape()?.table.as_ref()?;
        Some(TableVersion { id: table.id.clone(), number: table.version })
    }

    /// Compressed bytes of the projected column chunks: what a cold epoch must read.
    pub fn projected_bytes(&self, projection: &[usize]) -> u64 {
        projection.iter().filter_map(|i| self.column_bytes.get(*i)).sum()
    }
}

/// Freezes as [`SegmentReader::freeze_again`](crate::SegmentReader::freeze_again) says.
pub(crate) async fn freeze(
    tools: Tools<'_>,
    selection: &Selection,
    known: Option<Arc<Frozen>>,
) -> Result<Arc<Frozen>> {
    let uri = selection.uri.clone();
    let uri = blocking(move || normalise(&uri)).await?;
    let segment_bytes = if selection.segment_bytes == 0 { SEGMENT_BYTES } else { selection.segment_bytes };
    if segment_bytes > SEGMENT_BYTES_MAX {
        return Err(Error::invalid(format!(
            "{uri}: segments of {segment_bytes} bytes are too large: use {SEGMENT_BYTES_MAX} at most"
        )));
    }
    let filter = match selection.filter.as_str() {
        "" => None,
        filter => Some(Filter::parse(filter).map_err(|e| e.context(&uri))?),
    };
    let selection = Selection { uri: place_of(&uri).to_owned(), segment_bytes, ..selection.clone() };
    let found = match TableUri::of(&uri) {
        None => objects::find(tools.source, &selection).await?,
        Some(_) => {
            let is_same = |known: &&Arc<Frozen>| {
                let m = &known.manifest;
                (m.uri(), m.segment_bytes()) == (&selection.uri, segment_bytes)
            };
            let known = known.as_ref().filter(is_same);
            check_table(&uri, &selection)?;
            let version = known.and_then(|known| known.table_version());
            match (delta::read(tools.source, &uri, version).await?, known) {
                (Some(log), _) => objects::logged(tools.source, &selection.uri, log).await?,
                (None, Some(known)) => return Ok(known.clone()),
                (None, None) => return Err(Error::closed(format!("{uri}: its log was not read"))),
            }
        }
    };
    if let Some(known) = known.filter(|known| known.is_of(&uri, segment_bytes, &found)) {
        return Ok(match known.left_out == found.notes {
            true => known,
            false => Arc::new(Frozen { left_out: found.notes, ..known.as_ref().clone() }),
        });
    }
    let has_deleted = |log: &TableLog| log.files.iter().any(|file| !file.object.deleted.is_empty());
    let left_out = found.notes.clone();
    let frozen = match filter {
        None if !found.log.as_ref().is_some_and(has_deleted) => whole(tools, &selection, found).await?,
        filter => passing(tools, &selection, filter, found).await?,
    };
    Ok(Arc::new(Frozen { left_out, ..frozen }))
}

/// `Invalid` if more is asked for than a table's log leaves open.
fn check_table(uri: &str, selection: &Selection) -> Result<()> {
    let asked = [
        (!selection.schema_of.is_empty(), "--schema-of"),
        (selection.no_partitions, "--no-partitions"),
        (!selection.objects.is_empty(), "a list of objects"),
    ];
    match asked.into_iter().find(|(is_asked, _)| *is_asked) {
        None => Ok(()),
        Some((_, what)) => Err(Error::invalid(format!(
            "{uri}: the log of a Delta table says which objects and columns it has: leave {what} out"
        ))),
    }
}

/// All rows of the objects.
async fn whole(tools: Tools<'_>, selection: &Selection, found: Found) -> Result<Frozen> {
    let opened = vec![true; found.objects.len()];
    let scan = scan(tools, selection, &found, &opened).await?;
    let table = table_of(selection, &found, &scan.schemas)?;
    let mut column_bytes = vec![0; table.schema.fields().len()];
    for (own, bytes) in scan.schemas.distinct.iter().zip(&scan.chunk_bytes) {
        for (field, bytes) in own.schema.fields().iter().zip(bytes) {
            if let Ok(column) = table.schema.index_of(field.name()) {
                column_bytes[column] += bytes;
            }
        }
    }
    let (uri, ipc) = (selection.uri.clone(), to_ipc(&table.schema)?);
    let manifest = Manifest::new(uri, selection.segment_bytes, ipc, named(found.objects), &scan.sizes)?;
    Frozen::of(manifest, table, column_bytes, scan.row_groups)
}

/// The rows of the objects for which the filter is true, if there is one, and that no table deleted.
async fn passing(
    tools: Tools<'_>,
    selection: &Selection,
    filter: Option<Filter>,
    found: Found,
) -> Result<Frozen> {
    let uri = &selection.uri;
    let wanted = (filter.clone(), selection.clone());
    let (found, (mut opened, directories)) = blocking(move || {
        let opened = match &wanted.0 {
            Some(filter) => filtered::opened(filter, &wanted.1, &found)?,
            None => (vec![true; found.objects.len()], Vec::new()),
        };
        Ok((found, opened))
    })
    .await?;
    let mut scanned = scan(tools, selection, &found, &opened).await?;
    let is_own = |name: &String| scanned.schemas.distinct.iter().any(|s| s.schema.index_of(name).is_ok());
    if found.log.is_none() && opened.contains(&false) && directories.iter().any(is_own) {
        // Objects have such a column themselves, which may say something else than their directories.
        opened.fill(true);
        scanned = scan(tools, selection, &found, &opened).await?;
    }
    let table = table_of(selection, &found, &scanned.schemas)?;
    let predicate = filter.as_ref().map(|filter| bound(uri, filter, &table)).transpose()?.map(Arc::new);
    let (schema, shape, segment_bytes) = (&table.schema, table.shape.as_ref(), selection.segment_bytes);
    let of = FilteredTable { schema, shape, predicate: predicate.as_ref() };
    let passing = filtered::passing(tools, &found.objects, &opened, (of, segment_bytes)).await?;
    let text = predicate.map(|predicate| predicate.text.clone()).unwrap_or_default();
    if passing.segments.is_empty() && !text.is_empty() {
        return Err(Error::invalid(format!(
            "{uri}: filter `{text}` leaves no row: look at some values with `forebay cat --limit 10`"
        )));
    }
    let parts = (text, passing.segments, table.shape.clone());
    let ipc = to_ipc(&table.schema)?;
    let manifest = Manifest::new_filtered(uri.clone(), segment_bytes, ipc, named(found.objects), parts)?;
    Frozen::of(manifest, table, passing.column_bytes, passing.row_groups)
}

fn table_of(selection: &Selection, found: &Found, schemas: &Schemas) -> Result<Table> {
    match &found.log {
        Some(log) => logged::table(selection, found, (log, schemas)),
        None => shape::table(selection, found, schemas),
    }
}

/// The filter over the columns of the table.
fn bound(uri: &str, filter: &Filter, table: &Table) -> Result<Predicate> {
    let names = filter.names();
    if let Some(conflict) = table.conflicts.iter().find(|conflict| names.contains(&&*conflict.column)) {
        return Err(Error::invalid(format!(
            "the filter needs a column that objects disagree on: {}",
            conflict.why
        )));
    }
    let predicate = filter.bind(&table.schema).map_err(|e| e.context(uri))?;
    // Nodes read the normal form, which may be longer. Known before anything is counted.
    Filter::parse(&predicate.text).map_err(|e| e.context("the filter in normal form").context(uri))?;
    Ok(predicate)
}

fn named(objects: Vec<Listed>) -> Vec<Object> {
    let object = |(key, o): Listed| Object { key, etag: o.etag, size: o.size, version_id: o.version_id };
    objects.into_iter().map(object).collect()
}

/// What the footers of the objects say.
#[derive(Default)]
struct Scan {
    schemas: Schemas,
    /// Compressed bytes of each column, for each of the distinct schemas.
    chunk_bytes: Vec<Vec<u64>>,
    sizes: Vec<SegmentSize>,
    row_groups: u64,
}

/// Reads the footers of the objects that are to be opened.
async fn scan(tools: Tools<'_>, selection: &Selection, found: &Found, opened: &[bool]) -> Result<Scan> {
    let (Selection { uri, segment_bytes, .. }, Found { objects, log, .. }) = (selection, found);
    let demand = Urgency::demand();
    // Boxed one by one: the compiler cannot see through the closure's lifetimes that the whole future is
    // Send.
    let reads: Vec<BoxFuture<'_, Result<Arc<Footer>>>> = objects
        .iter()
        .zip(opened)
        .filter(|(_, opened)| **opened)
        .map(|((_, object), _)| tools.footers.get(object, &demand).boxed())
        .collect();
    // One after the other: the footers of a large dataset together are larger than memory.
    let mut footers = stream::iter(reads).buffered(tools.source.settings().s3_max_requests);
    let mut scan = Scan::default();
    scan.schemas.keys = Keys::of(selection, found)?;
    for (i, ((_, object), opened)) in objects.iter().zip(opened).enumerate() {
        if !opened {
            scan.schemas.of.push(None);
            continue;
        }
        let Some(footer) = footers.try_next().await? else { break };
        let schemas = match log {
            Some(log) => {
                log.check_ids(&object.place.uri, &footer.field_ids())?;
                log.named(&footer.schema)
            }
            None => (footer.schema.clone(), footer.schema.clone()),
        };
        let own = scan.own_schema(schemas, &object.place.uri);
        scan.schemas.keys.see(&object.place.uri, &footer)?;
        scan.row_groups += footer.row_groups().len() as u64;
        let mut groups = Vec::with_capacity(footer.row_groups().len());
        for group in footer.row_groups() {
            for (column, bytes) in scan.chunk_bytes[own].iter_mut().enumerate() {
                *bytes += footer.chunks(group, column).map(|chunk| chunk.byte_range().1).sum::<u64>();
            }
            groups.push((group.num_rows() as u64, group_bytes(&footer, group)));
        }
        let object = u32::try_from(i).map_err(|_| Error::invalid(format!("{uri}: too many objects")))?;
        let segments = cut(&groups, *segment_bytes);
        scan.sizes.extend(segments.map(|(row_groups, rows, decoded_bytes)| SegmentSize {
            object,
            row_groups,
            rows,
            decoded_bytes,
        }));
    }
    Ok(scan)
}

impl Scan {
    /// Which of the distinct schemas an object has: as others take it, and with its own types.
    fn own_schema(&mut self, (schema, types): (SchemaRef, SchemaRef), object: &str) -> usize {
        let Schemas { distinct, of, .. } = &mut self.schemas;
        let is_own = |known: &usize| distinct[*known].schema == schema && distinct[*known].own == types;
        // Most have that of the object before them.
        let known =
            of.iter().rev().find_map(|own| *own).filter(is_own).or_else(|| (0..distinct.len()).find(is_own));
        let own = known.unwrap_or_else(|| {
            self.chunk_bytes.push(vec![0; schema.fields().len()]);
            distinct.push(Sighting { schema, own: types, object: object.to_owned() });
            distinct.len() - 1
        });
        of.push(Some(own));
        own
    }
}

/// Row groups joined into segments: (row groups, rows, decoded bytes). A row group without rows joins a
/// neighbour.
fn cut(groups: &[(u64, u64)], aim: u64) -> impl Iterator<Item = (u32, u64, u64)> {
    let mut segments: Vec<(u32, u64, u64)> = Vec::new();
    let mut open = (0u32, 0u64, 0u64);
    for &(rows, bytes) in groups {
        let full = open.2.saturating_add(bytes) > aim || open.1.saturating_add(rows) > u64::from(u32::MAX);
        if open.1 > 0 && rows > 0 && full {
            segments.push(std::mem::take(&mut open));
        }
        open = (open.0 + 1, open.1.saturating_add(rows), open.2.saturating_add(bytes));
    }
    if open.1 > 0 {
        segments.push(open);
    }
    segments.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_groups_join_up_to_the_aim() {
        let run = |groups: &[(u64, u64)]| cut(groups, 100).collect::<Vec<_>>();
        assert_eq!(run(&[(1, 50), (1, 50), (1, 1)]), [(2, 2, 100), (1, 1, 1)]);
        assert_eq!(run(&[(1, 500), (1, 500)]), [(1, 1, 500), (1, 1, 500)]);
        assert_eq!(run(&[(0, 0), (1, 100), (0, 0), (1, 100), (0, 0)]), [(3, 1, 100), (2, 1, 100)]);
        assert_eq!(run(&[(0, 0), (0, 0)]), []);
        assert_eq!(run(&[]), []);
    }
}
