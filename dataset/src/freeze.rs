//! Freezing: a URI becomes a manifest, from a listing and the objects' footers.
//!
//! The same objects always give the same manifest, wherever it is made. Column data is not read.

use crate::parquet::cost::column_bytes;
use crate::parquet::footer::Footer;
use crate::parquet::footers::Footers;
use crate::schema::{to_ipc, unify};
use crate::source::{Source, SourceObject, blocking, normalise};
use crate::urgency::Urgency;
use arrow::datatypes::{Schema, SchemaRef};
use forebay_proto::manifest::{Object, SEGMENT_BYTES, SEGMENT_BYTES_MAX, SegmentSize};
use forebay_proto::{Error, Kind, Manifest, Result};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use std::sync::Arc;

/// A dataset frozen, with what its footers tell beyond the manifest.
#[derive(Debug, Clone)]
pub struct Frozen {
    /// Names objects in their versions, and cuts them into segments.
    pub manifest: Manifest,
    /// Its schema, decoded.
    pub schema: SchemaRef,
    /// Compressed bytes of each column in all objects.
    pub column_bytes: Vec<u64>,
    /// Row groups of all objects.
    pub row_groups: u64,
}

impl Frozen {
    /// Whether freezing these objects would give the same.
    fn is_of(&self, uri: &str, segment_bytes: u64, objects: &[Listed]) -> bool {
        let m = &self.manifest;
        let same = |(known, (key, o)): (&Object, &Listed)| {
            (&known.key, &known.etag, known.size) == (key, &o.etag, o.size)
        };
        (m.uri(), m.segment_bytes()) == (uri, segment_bytes)
            && m.objects().len() == objects.len()
            && m.objects().iter().zip(objects).all(same)
    }

    /// Compressed bytes of the projected column chunks: what a cold epoch must read.
    pub fn projected_bytes(&self, projection: &[usize]) -> u64 {
        projection.iter().filter_map(|i| self.column_bytes.get(*i)).sum()
    }
}

/// Freezes as [`SegmentReader::freeze_again`](crate::SegmentReader::freeze_again) says.
pub(crate) async fn freeze(
    source: &Source,
    footers: &Footers,
    uri: &str,
    segment_bytes: u64,
    known: Option<Arc<Frozen>>,
) -> Result<Arc<Frozen>> {
    let uri = uri.to_owned();
    let uri = blocking(move || normalise(&uri)).await?;
    let segment_bytes = if segment_bytes == 0 { SEGMENT_BYTES } else { segment_bytes };
    if segment_bytes > SEGMENT_BYTES_MAX {
        return Err(Error::invalid(format!(
            "{uri}: segments of {segment_bytes} bytes are too large: use {SEGMENT_BYTES_MAX} at most"
        )));
    }
    let objects = objects(source, &uri).await?;
    if let Some(known) = known.filter(|known| known.is_of(&uri, segment_bytes, &objects)) {
        return Ok(known);
    }
    let demand = Urgency::demand();
    // Boxed one by one: the compiler cannot see through the closure's lifetimes that the whole future is
    // Send.
    let reads: Vec<BoxFuture<'_, Result<Arc<Footer>>>> =
        objects.iter().map(|(_, object)| footers.get(object, &demand).boxed()).collect();
    // One after the other: the footers of a large dataset together are larger than memory.
    let mut footers = stream::iter(reads).buffered(source.settings().s3_max_requests);
    let (mut schema, mut column_bytes) = (Schema::empty(), Vec::new());
    let (mut sizes, mut row_groups) = (Vec::new(), 0);
    for (i, (_, object)) in objects.iter().enumerate() {
        let Some(footer) = footers.try_next().await? else { break };
        row_groups += footer.row_groups().len() as u64;
        if i == 0 {
            schema = footer.schema.as_ref().clone();
            column_bytes = vec![0u64; schema.fields().len()];
        } else if footer.schema.as_ref() != &schema {
            schema = unify(&schema, &footer.schema).map_err(|why| {
                let uri = &object.place.uri;
                Error::invalid(format!("{uri}: schema differs from that of the objects before it: {why}"))
            })?;
        }
        let mut groups = Vec::with_capacity(footer.row_groups().len());
        for group in footer.row_groups() {
            for (column, bytes) in column_bytes.iter_mut().enumerate() {
                *bytes += footer.chunks(group, column).map(|chunk| chunk.byte_range().1).sum::<u64>();
            }
            groups.push((group.num_rows() as u64, decoded_bytes(&footer, group)));
        }
        let object = u32::try_from(i).map_err(|_| Error::invalid(format!("{uri}: too many objects")))?;
        sizes.extend(cut(&groups, segment_bytes).map(|(row_groups, rows, decoded_bytes)| SegmentSize {
            object,
            row_groups,
            rows,
            decoded_bytes,
        }));
    }
    drop(footers);
    let named = objects.into_iter().map(|(key, o)| Object { key, etag: o.etag, size: o.size }).collect();
    let manifest = Manifest::new(uri, segment_bytes, to_ipc(&schema)?, named, &sizes)?;
    Ok(Arc::new(Frozen { manifest, schema: Arc::new(schema), column_bytes, row_groups }))
}

/// An object's key below the dataset's URI, and the object.
type Listed = (String, SourceObject);

/// The dataset's objects in byte order of their keys.
async fn objects(source: &Source, uri: &str) -> Result<Vec<Listed>> {
    let root = source.place(uri)?;
    let single = |object| vec![(String::new(), object)];
    // An object, by its name or by what the file system says. The error of a request names a fault best.
    let is_object = match root.is_file() {
        true => !tokio::fs::metadata(format!("/{}", root.path())).await.is_ok_and(|m| !m.is_file()),
        false => root.path().ends_with(".parquet"),
    };
    if is_object {
        match source.head(&root).await {
            Err(e) if e.kind == Kind::NotFound && !root.is_file() => {}
            head => return head.map(single),
        }
    }
    let mut objects = Vec::new();
    for meta in source.list(&root).await? {
        let full: &str = meta.location.as_ref();
        let Some(key) = full.strip_prefix(root.path()).map(|k| k.trim_start_matches('/')) else {
            continue;
        };
        if wanted(key) {
            objects.push((key.to_owned(), source.place(&object_uri(uri, key))?.object(&meta)?));
        }
    }
    if root.is_file() {
        let uri = uri.to_owned();
        let all_stay =
            move || objects.iter().try_for_each(|(_, o)| o.place.stays_under(&uri)).map(|()| objects);
        objects = blocking(all_stay).await?;
    }
    objects.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    drop_markers(&mut objects);
    if objects.is_empty() && !root.is_file() && !root.path().is_empty() && !is_object {
        // It may name an object with another ending.
        match source.head(&root).await {
            Err(e) if e.kind == Kind::NotFound => {}
            head => return head.map(single),
        }
    }
    match objects.is_empty() {
        true => Err(Error::not_found(format!("{uri}: no Parquet objects under it"))),
        false => Ok(objects),
    }
}

fn object_uri(uri: &str, key: &str) -> String {
    format!("{}/{key}", uri.trim_end_matches('/'))
}

/// Whether a key under the prefix belongs to the dataset: `.parquet`, and no part of it hidden
/// (`_delta_log/...`).
fn wanted(key: &str) -> bool {
    key.ends_with(".parquet") && !key.split('/').any(|part| part.starts_with(['_', '.']))
}

/// Drops what some tools leave to mark a directory `x.parquet/`: an object without bytes, whose key others go
/// on from.
fn drop_markers(objects: &mut Vec<Listed>) {
    let markers: Vec<bool> = objects
        .iter()
        .map(|(key, object)| {
            let inside = format!("{key}/");
            let next = objects.partition_point(|(other, _)| *other < inside);
            object.size == 0 && objects.get(next).is_some_and(|(other, _)| other.starts_with(&inside))
        })
        .collect();
    let mut markers = markers.into_iter();
    objects.retain(|_| !markers.next().unwrap_or(false));
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

/// Estimated decoded bytes of a row group.
fn decoded_bytes(footer: &Footer, group: &parquet::file::metadata::RowGroupMetaData) -> u64 {
    let columns = 0..footer.schema.fields().len();
    columns.map(|column| column_bytes(footer, group, column)).fold(0, u64::saturating_add)
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

    #[test]
    fn hidden_names_are_left_out() {
        assert!(wanted("a.parquet") && wanted("x=1/a.parquet"));
        for key in ["_a.parquet", ".a.parquet", "_log/a.parquet", "a.csv", "", "a.parquet/"] {
            assert!(!wanted(key), "{key}");
        }
    }
}
