//! The manifest: a dataset frozen, and the ids derived from it.
//!
//! Order, placement and caching all start here: two processes that hold manifests of equal digest agree on
//! every sample's place. The manifest is built by `forebay-dataset`; this module gives it meaning and checks
//! it.

mod filter;
mod identity;
mod layout;
mod table;
#[cfg(test)]
mod tests;
mod wire;

use crate::error::{Error, Result};
use crate::v1;

pub use crate::v1::{Object, Shape};
pub use filter::{FILTER_BYTES_MAX, Filter, FilteredSegment};
pub use identity::{DatasetId, Digest, SegmentId};
pub use layout::{Part, Segment, SegmentSize};
pub use table::{DELETED_RUNS_MAX, DELTA};

/// Decoded bytes that a segment aims at unless the dataset says otherwise: large enough that a fill is a few
/// big ranged reads, small enough that eviction and replication stay fine-grained.
pub const SEGMENT_BYTES: u64 = 32 << 20;

/// Decoded bytes that a segment may aim at: the reader chooses, and a node decodes a segment at once.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// Rows that a dataset may have: enough for anything, and far from overflow.
pub const MAX_ROWS: u64 = 1 << 60;

/// Slots that a part of a mix may have.
pub const BLOCK_MAX: u32 = 1000;

/// A dataset frozen: schema, objects with versions, segments with row counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    uri: String,
    segment_bytes: u64,
    schema: Vec<u8>,
    objects: Vec<Object>,
    segments: Vec<Segment>,
    parts: Vec<Part>,
    shape: Option<Shape>,
    filter: Option<Filter>,
    rows: u64,
    decoded_bytes: u64,
    digest: Digest,
    id: DatasetId,
    /// Of the objects in their versions, and of nothing else.
    objects_digest: Digest,
    is_whole: bool,
}

impl Manifest {
    /// Freezes: segments must be in order of object and together hold all row groups of each; a segment
    /// without rows is `Invalid` (leave empty row groups to a neighbour, or out when the object has no rows
    /// at all).
    pub fn new(
        uri: impl Into<String>,
        segment_bytes: u64,
        schema: Vec<u8>,
        objects: Vec<Object>,
        sizes: &[SegmentSize],
    ) -> Result<Self> {
        let columns = v1::Segments {
            object: sizes.iter().map(|s| s.object).collect(),
            row_groups: sizes.iter().map(|s| s.row_groups).collect(),
            rows: sizes.iter().map(|s| s.rows).collect(),
            decoded_bytes: sizes.iter().map(|s| s.decoded_bytes).collect(),
            ..Default::default()
        };
        let (uri, parts) = (uri.into(), Vec::new());
        let segments = layout::segments(&uri, columns)?;
        Self::build(uri, segment_bytes, schema, objects, segments, parts, (None, None))
    }

    /// The manifest of objects whose schemas are not all the manifest's; `Invalid` if the shape does not fit
    /// the objects.
    pub fn shaped(mut self, shape: Option<Shape>) -> Result<Self> {
        if shape == self.shape {
            return Ok(self);
        }
        check_forms(shape.as_ref(), &self.objects).map_err(|why| malformed(&self.uri, why))?;
        self.shape = shape;
        Ok(self.identified())
    }

    /// Freezes a dataset that has only the rows for which a predicate is true, and that the table of its
    /// shape has not deleted. The predicate may be empty if it deleted some.
    ///
    /// # Errors
    /// `Invalid` if the segments do not fit the objects, or have other rows than their row groups.
    pub fn new_filtered(
        uri: impl Into<String>,
        segment_bytes: u64,
        schema: Vec<u8>,
        objects: Vec<Object>,
        (predicate, kept, shape): (String, Vec<FilteredSegment>, Option<Shape>),
    ) -> Result<Self> {
        let sizes = || kept.iter().map(|s| s.size);
        let columns = v1::Segments {
            object: sizes().map(|s| s.object).collect(),
            row_groups: sizes().map(|s| s.row_groups).collect(),
            rows: sizes().map(|s| s.rows).collect(),
            decoded_bytes: sizes().map(|s| s.decoded_bytes).collect(),
            first_row_group: kept.iter().map(|s| s.first_row_group).collect(),
            skip: vec![0; kept.len()],
            total_rows: sizes().map(|s| s.rows).collect(),
        };
        let uri = uri.into();
        let segments = layout::segments(&uri, columns)?;
        let rows = kept.into_iter().flat_map(|s| s.rows).collect();
        let filter = v1::Filter { predicate, rows };
        Self::build(uri, segment_bytes, schema, objects, segments, Vec::new(), (shape, Some(filter)))
    }

    /// With the digest and the id of what it has now: a pass over all of it.
    fn identified(mut self) -> Self {
        let Self { schema, objects, segments, parts, shape, filter, .. } = &self;
        let more = (shape.as_ref(), filter.as_ref());
        let (objects_digest, is_whole) = (identity::objects(objects), layout::is_whole(segments));
        self.digest = identity::version(schema, objects, segments, parts, more);
        (self.objects_digest, self.is_whole) = (objects_digest, is_whole);
        self.id = DatasetId::new(self.digest, &self.uri);
        self
    }

    /// Numbers the rows, checks everything, computes the digest, once. No parts: all segments are one.
    pub(crate) fn build(
        uri: String,
        segment_bytes: u64,
        schema: Vec<u8>,
        objects: Vec<Object>,
        mut segments: Vec<Segment>,
        mut parts: Vec<Part>,
        (shape, filter): (Option<Shape>, Option<v1::Filter>),
    ) -> Result<Self> {
        let malformed = |why| malformed(&uri, why);
        let rows = number_rows(&mut segments, objects.len()).map_err(malformed)?;
        if parts.is_empty() {
            parts.push(Part { uri: uri.clone(), segments: 0..segments.len() as u32, rows, slots: 1 });
        }
        count_rows(&mut parts, &segments).map_err(malformed)?;
        if let Some(empty) = parts.iter().find(|p| p.rows == 0).filter(|_| parts.len() > 1) {
            return Err(Error::invalid(format!("{} has no rows to mix", empty.uri)));
        }
        check_forms(shape.as_ref(), &objects).map_err(malformed)?;
        let filter = filter.map(|wire| Filter::new(wire, &segments)).transpose().map_err(malformed)?;
        check_rows(shape.as_ref(), filter.as_ref()).map_err(malformed)?;
        let decoded_bytes = segments.iter().map(|s| s.decoded_bytes).sum();
        let manifest = Self {
            digest: Digest::default(),
            id: DatasetId::new(Digest::default(), &uri),
            objects_digest: Digest::default(),
            is_whole: false,
            uri,
            segment_bytes,
            schema,
            objects,
            segments,
            parts,
            shape,
            filter,
            rows,
            decoded_bytes,
        };
        Ok(manifest.identified())
    }

    /// Where the dataset lies, in normal form; of a mix `mix(...)`, which names all of its datasets.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// The URI that names this version: of a Delta table with its version, else [`Manifest::uri`].
    pub fn version_uri(&self) -> String {
        match self.shape.as_ref().and_then(|shape| shape.table.as_ref()) {
            Some(table) if self.parts.len() == 1 => format!("{DELTA}{}@{}", self.uri, table.version),
            _ => self.uri.clone(),
        }
    }

    /// Decoded bytes that segments aim at.
    pub fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// The Arrow schema of all columns, an encapsulated IPC Schema message.
    pub fn schema(&self) -> &[u8] {
        &self.schema
    }

    /// The objects, in byte order of their keys.
    pub fn objects(&self) -> &[Object] {
        &self.objects
    }

    /// The segments, in file order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The datasets of a mix, in order; one for a dataset that is not mixed.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// How objects of different schemas become one dataset; none where all have the manifest's.
    pub fn shape(&self) -> Option<&Shape> {
        self.shape.as_ref()
    }

    /// Which rows of its objects it has; none where it has all.
    pub fn filter(&self) -> Option<&Filter> {
        self.filter.as_ref()
    }

    /// Whether it names objects by the object store's ids of their versions.
    pub fn has_version_ids(&self) -> bool {
        self.objects.iter().any(|object| !object.version_id.is_empty())
    }

    /// The same dataset with version ids, one for each object; an empty one leaves what there is.
    pub fn with_version_ids(mut self, ids: Vec<String>) -> Self {
        let named = self.objects.iter_mut().zip(ids).filter(|(_, id)| !id.is_empty());
        named.for_each(|(object, id)| object.version_id = id);
        self
    }

    /// Whether another one has the same objects in the same versions, with or without ids of them.
    pub fn has_objects_of(&self, other: &Self) -> bool {
        self.objects_digest == other.objects_digest
    }

    /// Whether its segments are whole, and follow each other from the start of each object.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Rows of the whole dataset; of a mix, of all its parts together.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Estimated bytes of all segments, decoded, with all columns.
    pub fn decoded_bytes(&self) -> u64 {
        self.decoded_bytes
    }

    /// The dataset's version: what decides the order of its samples. A copy of the dataset in another bucket
    /// has an equal digest, so that a run may go on with it; [`Manifest::id`] tells the two apart.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Which copy of the version this is.
    pub fn id(&self) -> DatasetId {
        self.id
    }

    /// A hash of the segments' estimated sizes, which neither the digest nor the id covers.
    pub fn sizes_hash(&self) -> u64 {
        identity::sizes_hash(&self.segments)
    }

    /// The URI by which an object is read, whether it is named by its key or by its own URI.
    pub fn object_uri(&self, object: &Object) -> String {
        object_uri(&self.uri, &object.key)
    }

    /// The id of a segment, the same whichever dataset or segment size led to it, as long as its columns have
    /// the same types and values there, and the same rows belong to it. `Invalid` if there is none.
    pub fn segment_id(&self, segment: u32) -> Result<SegmentId> {
        let s = self.segment(segment)?;
        let object = &self.objects[s.object as usize];
        let form = self.shape.as_ref().and_then(|shape| shape.forms.get(s.object as usize));
        let filter = self.filter.as_ref().map(|filter| (filter.predicate(), filter.rows_of(segment)));
        Ok(SegmentId::new(&self.object_uri(object), object, &s, form.copied().unwrap_or(0), filter))
    }

    /// Segment number `segment`; `Invalid` if there is none.
    pub fn segment(&self, segment: u32) -> Result<Segment> {
        self.segments.get(segment as usize).copied().ok_or_else(|| {
            Error::invalid(format!("{}: no segment {segment}, there are {}", self.uri, self.segments.len()))
        })
    }
}

/// The full URI of an object that is named by its key below the dataset at `uri`, or by its own URI. Without
/// a key it is the dataset itself.
pub fn object_uri(uri: &str, key: &str) -> String {
    match key {
        "" => uri.to_owned(),
        key if key.contains("://") => key.to_owned(),
        key => uri_below(uri, key),
    }
}

/// The URI of what lies at `key` below `uri`.
pub fn uri_below(uri: &str, key: &str) -> String {
    match uri.trim_end_matches('/') {
        // The root of the file system.
        "file:" => format!("file:///{key}"),
        uri => format!("{uri}/{key}"),
    }
}

fn malformed(uri: &str, why: String) -> Error {
    Error::invalid(format!("{uri}: malformed manifest: {why}"))
}

/// Why the shape cannot be that of the objects.
fn check_forms(shape: Option<&Shape>, objects: &[Object]) -> Result<(), String> {
    match shape.is_some_and(|shape| shape.forms.len() != objects.len()) {
        true => Err("ragged forms".into()),
        false => shape.map_or(Ok(()), |shape| table::check(shape, objects)),
    }
}

/// Why a filter has no predicate, if no table deleted rows.
fn check_rows(shape: Option<&Shape>, filter: Option<&Filter>) -> Result<(), String> {
    let is_empty = filter.is_some_and(|filter| filter.predicate().is_empty());
    match is_empty && !shape.is_some_and(Shape::has_deleted) {
        true => Err("a filter of 0 bytes".into()),
        false => Ok(()),
    }
}

/// Numbers the rows of segments and returns how many there are, or why the segments cannot be those of a
/// dataset with `objects` objects. Sums over segments need not be checked after this.
fn number_rows(segments: &mut [Segment], objects: usize) -> Result<u64, String> {
    if segments.len() > u32::MAX as usize {
        return Err("more than 2^32 segments".into());
    }
    let (mut rows, mut bytes, mut before) = (0u64, 0u64, (0u32, 0u32));
    for (i, s) in segments.iter_mut().enumerate() {
        if s.object < before.0 || s.object as usize >= objects {
            return Err(format!("segment {i} names object {} of {objects}", s.object));
        }
        let end = s.first_row_group.checked_add(s.row_groups);
        if s.row_groups == 0 || end.is_none() || (s.object == before.0 && s.first_row_group < before.1) {
            return Err(format!("segment {i} has row groups {} + {}", s.first_row_group, s.row_groups));
        }
        let fits = s.skip.checked_add(s.rows).is_some_and(|end| end <= s.total_rows);
        if s.rows == 0 || s.total_rows > u64::from(u32::MAX) || !fits {
            return Err(format!("segment {i} has rows {} + {} of {}", s.skip, s.rows, s.total_rows));
        }
        s.first_row = rows;
        bytes = bytes.checked_add(s.decoded_bytes).ok_or_else(|| format!("segment {i} overflows"))?;
        before = (s.object, end.unwrap_or(u32::MAX));
        rows = match rows.checked_add(s.rows) {
            Some(rows) if rows <= MAX_ROWS => rows,
            _ => return Err(format!("more than {MAX_ROWS} rows")),
        };
    }
    Ok(rows)
}

/// Sets the rows of each part, or says why the parts do not divide the segments.
fn count_rows(parts: &mut [Part], segments: &[Segment]) -> Result<(), String> {
    let mut at = 0;
    for p in parts {
        if p.segments.start != at || p.segments.end < at || p.segments.end as usize > segments.len() {
            return Err(format!("part {} has segments {:?}", p.uri, p.segments));
        }
        if p.slots == 0 || p.slots > BLOCK_MAX {
            return Err(format!("part {} has {} slots", p.uri, p.slots));
        }
        at = p.segments.end;
        let own = &segments[p.segments.start as usize..p.segments.end as usize];
        p.rows = own.iter().map(|s| s.rows).sum();
    }
    match at as usize == segments.len() {
        true => Ok(()),
        false => Err("some segments belong to no part".into()),
    }
}
