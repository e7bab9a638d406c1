//! Digests, and what each identifies: a dataset's version, one copy of it, a segment.

use super::layout::{Part, Segment, is_whole};
use crate::error::{Error, Result};
use crate::v1::Object;
use std::fmt;
use xxhash_rust::xxh3::Xxh3;

/// The manifest format that this build writes and understands.
pub const FORMAT: u32 = 1;

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
        let mut h = Xxh3::new();
        h.update(&digest.to_bytes());
        put(&mut h, uri.as_bytes());
        Self(Digest(h.digest128()))
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
    /// The id of a segment of `object`, which lies at `uri`.
    pub(super) fn new(uri: &str, object: &Object, segment: &Segment) -> Self {
        let mut h = Xxh3::new();
        put(&mut h, uri.as_bytes());
        put(&mut h, object.etag.as_bytes());
        for n in [object.size, u64::from(segment.first_row_group), u64::from(segment.row_groups)] {
            h.update(&n.to_le_bytes());
        }
        Self(Digest(h.digest128()))
    }
}

/// xxh3-128 over, in this order: the format (u32), the schema, the number of objects and each one's key, etag
/// and size, the number of segments and each one's object (u32), row groups (u32) and rows (u64); then, only
/// if a split or mix made it something else than whole objects, each segment's first row group (u32), skip
/// and total rows, the number of parts and each one's number of segments (u32) and slots (u32). Integers are
/// little endian, u64 unless said; texts and bytes are preceded by their length. Sizes that are estimates
/// stay out.
pub(super) fn version(schema: &[u8], objects: &[Object], segments: &[Segment], parts: &[Part]) -> Digest {
    let mut h = Xxh3::new();
    h.update(&FORMAT.to_le_bytes());
    put(&mut h, schema);
    h.update(&(objects.len() as u64).to_le_bytes());
    for o in objects {
        put(&mut h, o.key.as_bytes());
        put(&mut h, o.etag.as_bytes());
        h.update(&o.size.to_le_bytes());
    }
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
    Digest(h.digest128())
}

/// xxh3-64 over the estimated sizes of the segments, which the version leaves out.
pub(super) fn sizes_hash(segments: &[Segment]) -> u64 {
    let mut h = Xxh3::new();
    segments.iter().for_each(|s| h.update(&s.decoded_bytes.to_le_bytes()));
    h.digest()
}

fn put(h: &mut Xxh3, bytes: &[u8]) {
    h.update(&(bytes.len() as u64).to_le_bytes());
    h.update(bytes);
}
