//! Digests, and what each identifies: a dataset's version, one copy of it, a segment.

use super::filter::Filter;
use super::layout::{Part, Segment, is_whole};
use super::table;
use crate::error::{Error, Result};
use crate::hash::{Hash64, Hash128};
use crate::v1::{Object, Shape};
use std::fmt;
use std::str::FromStr;

/// The manifest format of datasets whose objects have one schema.
pub const FORMAT: u32 = 1;

/// The manifest format of datasets that have a [`Shape`].
pub const SHAPED_FORMAT: u32 = 2;

/// The manifest format of datasets that have a [`Filter`](super::Filter).
pub const FILTERED_FORMAT: u32 = 3;

/// The manifest format of Delta tables, and the highest that this build knows.
pub const TABLE_FORMAT: u32 = 4;

/// A 128-bit digest, printed as 32 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Digest(pub u128);

impl Digest {
    /// The 16 bytes, big endian.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// From the 16 bytes of [`Digest::to_bytes`]; `Invalid` for any other length.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let bytes = bytes.try_into().map_err(|_| Error::invalid("a digest has 16 bytes"))?;
        Ok(Self(u128::from_be_bytes(bytes)))
    }
}

impl FromStr for Digest {
    type Err = Error;

    /// From the 32 hex digits that it is printed as.
    fn from_str(text: &str) -> Result<Self> {
        let is_hex = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let digest = u128::from_str_radix(text, 16).ok().filter(|_| is_hex);
        digest.map(Self).ok_or_else(|| Error::invalid(format!("`{text}` is no digest: it has 32 hex digits")))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One copy of a dataset version: its digest and its URI. Two buckets may hold equal objects, and so datasets
/// of equal digest; who asks for one must not be given the other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct DatasetId(Digest);

impl DatasetId {
    /// The id of the version `digest` at `uri`, written as the manifest writes it.
    pub fn new(digest: Digest, uri: &str) -> Self {
        let mut h = Hash128::default();
        h.update(&digest.to_bytes());
        put(&mut h, uri.as_bytes());
        Self(Digest(h.digest()))
    }
}

impl fmt::Display for DatasetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A segment's identity on every node: object URI, version and row groups.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SegmentId(pub Digest);

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl SegmentId {
    /// The id of a segment of `object`, which lies at `uri` and has `form` in its dataset's [`Shape`]. Of a
    /// filter: the predicate, and how many rows of each row group it leaves.
    pub(super) fn new(
        uri: &str,
        object: &Object,
        segment: &Segment,
        form: u64,
        filter: Option<(&str, &[u32])>,
    ) -> Self {
        let mut h = Hash128::default();
        put(&mut h, uri.as_bytes());
        put(&mut h, object.etag.as_bytes());
        for n in [object.size, u64::from(segment.first_row_group), u64::from(segment.row_groups)] {
            h.update(&n.to_le_bytes());
        }
        if form != 0 {
            h.update(&form.to_le_bytes());
        }
        if let Some((predicate, rows)) = filter {
            put(&mut h, predicate.as_bytes());
            rows.iter().for_each(|rows| h.update(&rows.to_le_bytes()));
        }
        Self(Digest(h.digest()))
    }

    /// The id of a raw block: of the object at `uri` in the version that `etag` and `size` name, block
    /// `index` of `block_bytes`.
    pub(crate) fn block(uri: &str, etag: &str, [size, block_bytes, index]: [u64; 3]) -> Self {
        let mut h = Hash128::default();
        // A segment's begins with the length of a URI, which no URI has.
        h.update(b"raw1\xff\xff\xff\xff");
        put(&mut h, uri.as_bytes());
        put(&mut h, etag.as_bytes());
        [size, block_bytes, index].iter().for_each(|n| h.update(&n.to_le_bytes()));
        Self(Digest(h.digest()))
    }
}

/// xxh3-128 over, in this order: the format (u32), the schema, the number of objects and each one's key, etag
/// and size, the number of segments and each one's object (u32), row groups (u32) and rows (u64); then, only
/// if a split or mix made it something else than whole objects, each segment's first row group (u32), skip
/// and total rows, the number of parts and each one's number of segments (u32) and slots (u32); then, only if
/// there is a shape, the number of partitions and each one's name, the number of forms and each one, and of a
/// table what [`table::hash`] says; then, only if there is a filter, the predicate, the number of row groups
/// and the rows (u32) of each. Integers are little endian, u64 unless said; texts and bytes are preceded by
/// their length. Sizes that are estimates stay out.
pub(super) fn version(
    schema: &[u8],
    objects: &[Object],
    segments: &[Segment],
    parts: &[Part],
    (shape, filter): (Option<&Shape>, Option<&Filter>),
) -> Digest {
    let mut h = Hash128::default();
    h.update(&format_of(shape, filter).to_le_bytes());
    put(&mut h, schema);
    put_objects(&mut h, objects);
    h.update(&(segments.len() as u64).to_le_bytes());
    for s in segments {
        h.update(&s.object.to_le_bytes());
        h.update(&s.row_groups.to_le_bytes());
        h.update(&s.rows.to_le_bytes());
    }
    if !is_whole(segments) || parts.len() > 1 {
        for s in segments {
            h.update(&s.first_row_group.to_le_bytes());
            h.update(&s.skip.to_le_bytes());
            h.update(&s.total_rows.to_le_bytes());
        }
        h.update(&(parts.len() as u64).to_le_bytes());
        for p in parts {
            h.update(&(p.segments.end - p.segments.start).to_le_bytes());
            h.update(&p.slots.to_le_bytes());
        }
    }
    if let Some(shape) = shape {
        h.update(&(shape.partitions.len() as u64).to_le_bytes());
        shape.partitions.iter().for_each(|name| put(&mut h, name.as_bytes()));
        h.update(&(shape.forms.len() as u64).to_le_bytes());
        shape.forms.iter().for_each(|form| h.update(&form.to_le_bytes()));
        if let Some(of) = &shape.table {
            table::hash(&mut h, of);
        }
    }
    if let Some(filter) = filter {
        put(&mut h, filter.predicate().as_bytes());
        h.update(&(filter.rows().len() as u64).to_le_bytes());
        filter.rows().iter().for_each(|rows| h.update(&rows.to_le_bytes()));
    }
    Digest(h.digest())
}

/// xxh3-128 over the objects, as in [`version`].
pub(super) fn objects(objects: &[Object]) -> Digest {
    let mut h = Hash128::default();
    put_objects(&mut h, objects);
    Digest(h.digest())
}

/// The format of a manifest with this shape and this filter.
pub(super) fn format_of(shape: Option<&Shape>, filter: Option<&Filter>) -> u32 {
    match (filter, shape) {
        (_, Some(shape)) if shape.table.is_some() => TABLE_FORMAT,
        (Some(_), _) => FILTERED_FORMAT,
        (None, Some(_)) => SHAPED_FORMAT,
        (None, None) => FORMAT,
    }
}

/// xxh3-64 over the estimated sizes of the segments, which the version leaves out.
pub(super) fn sizes_hash(segments: &[Segment]) -> u64 {
    let mut h = Hash64::default();
    segments.iter().for_each(|s| h.update(&s.decoded_bytes.to_le_bytes()));
    h.digest()
}

fn put_objects(h: &mut Hash128, objects: &[Object]) {
    h.update(&(objects.len() as u64).to_le_bytes());
    for o in objects {
        put(h, o.key.as_bytes());
        put(h, o.etag.as_bytes());
        h.update(&o.size.to_le_bytes());
    }
}

fn put(h: &mut Hash128, bytes: &[u8]) {
    h.update(&(bytes.len() as u64).to_le_bytes());
    h.update(bytes);
}
