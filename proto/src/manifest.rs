//! The manifest: a dataset frozen, and the ids derived from it.
//!
//! Order, placement and caching all start here: two processes that hold manifests of equal digest agree on every
//! sample's place. The manifest is built by `forebay-dataset`; this module gives it meaning and checks it.

use crate::error::{Error, Result};
use crate::v1;
use std::fmt;
use std::ops::Range;
use xxhash_rust::xxh3::Xxh3;

/// The manifest format that this build writes and understands.
pub const FORMAT: u32 = 1;

/// Decoded bytes that a segment aims at unless the dataset says otherwise: large enough that a fill is a few big
/// ranged reads, small enough that eviction and replication stay fine-grained.
pub const SEGMENT_BYTES: u64 = 32 << 20;

/// Decoded bytes that a segment may aim at: whoever opens a dataset chooses, and a node decodes a segment at once.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// Rows that a dataset may have: enough for anything, and far from overflow.
pub const MAX_ROWS: u64 = 1 << 60;

/// Slots that a part of a mix may have.
pub const BLOCK_MAX: u32 = 1000;

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

/// One object of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Key relative to the manifest's URI; empty when the URI names the object itself.
    pub key: String,
    /// The store's version tag.
    pub etag: String,
    /// Bytes.
    pub size: u64,
}

/// One segment: consecutive row groups of one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Index into [`Manifest::objects`].
    pub object: u32,
    /// The first row group.
    pub first_row_group: u32,
    /// How many row groups.
    pub row_groups: u32,
    /// Rows that belong to the dataset: consecutive ones of the segment's.
    pub rows: u64,
    /// Rows of the segment before them: more than 0 only where a split begins.
    pub skip: u64,
    /// Rows of the whole segment, fewer than 2^32.
    pub total_rows: u64,
    /// The dataset's rows before this segment's, in file order.
    pub first_row: u64,
    /// Estimated decoded bytes of all columns.
    pub decoded_bytes: u64,
}

/// One dataset of a mix, or the only one: consecutive segments of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The dataset's URI.
    pub uri: String,
    /// Its segments.
    pub segments: Range<u32>,
    /// Its rows.
    pub rows: u64,
    /// Of each block of samples (the sum of all parts' slots), so many are of this part.
    pub slots: u32,
}

/// A dataset frozen: schema, objects with versions, segments with row counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    uri: String,
    segment_bytes: u64,
    schema: Vec<u8>,
    objects: Vec<Object>,
    segments: Vec<Segment>,
    parts: Vec<Part>,
    rows: u64,
    digest: Digest,
}

/// A segment before it has its place in a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentSize {
    /// Index of the object.
    pub object: u32,
    /// Consecutive row groups.
    pub row_groups: u32,
    /// Rows.
    pub rows: u64,
    /// Estimated decoded bytes of all columns.
    pub decoded_bytes: u64,
}

impl Manifest {
    /// Freezes: segments must be in order of object and together hold all row groups of each; a segment without
    /// rows is `Invalid` (leave empty row groups to a neighbour, or out when the object has no rows at all).
    pub fn new(
        uri: impl Into<String>,
        segment_bytes: u64,
        schema: Vec<u8>,
        objects: Vec<Object>,
        sizes: &[SegmentSize],
    ) -> Result<Self> {
        let mut next = (0, 0u32);
        let mut segments = Vec::with_capacity(sizes.len());
        for s in sizes {
            if s.object != next.0 {
                next = (s.object, 0);
            }
            segments.push(Segment {
                object: s.object,
                first_row_group: next.1,
                row_groups: s.row_groups,
                rows: s.rows,
                skip: 0,
                total_rows: s.rows,
                first_row: 0,
                decoded_bytes: s.decoded_bytes,
            });
            next.1 = next.1.saturating_add(s.row_groups);
        }
        Self::build(uri.into(), segment_bytes, schema, objects, segments, Vec::new())
    }

    /// Numbers the rows, checks everything, computes the digest. No parts: all segments are one.
    pub(crate) fn build(
        uri: String,
        segment_bytes: u64,
        schema: Vec<u8>,
        objects: Vec<Object>,
        mut segments: Vec<Segment>,
        mut parts: Vec<Part>,
    ) -> Result<Self> {
        let bad = |why: String| Err(Error::invalid(format!("{uri}: malformed manifest: {why}")));
        if segments.len() > u32::MAX as usize {
            return bad("more than 2^32 segments".into());
        }
        // Sums over segments, here and elsewhere, need not be checked after this.
        let (mut rows, mut bytes, mut before) = (0u64, 0u64, (0u32, 0u32));
        for (i, s) in segments.iter_mut().enumerate() {
            if s.object < before.0 || s.object as usize >= objects.len() {
                return bad(format!("segment {i} names object {} of {}", s.object, objects.len()));
            }
            let end = s.first_row_group.checked_add(s.row_groups);
            if s.row_groups == 0 || end.is_none() || (s.object == before.0 && s.first_row_group < before.1) {
                return bad(format!("segment {i} has row groups {} + {}", s.first_row_group, s.row_groups));
            }
            let fits = s.skip.checked_add(s.rows).is_some_and(|end| end <= s.total_rows);
            if s.rows == 0 || s.total_rows > u64::from(u32::MAX) || !fits {
                return bad(format!("segment {i} has rows {} + {} of {}", s.skip, s.rows, s.total_rows));
            }
            s.first_row = rows;
            bytes = match bytes.checked_add(s.decoded_bytes) {
                Some(bytes) => bytes,
                None => return bad(format!("segment {i} overflows")),
            };
            before = (s.object, end.unwrap_or(u32::MAX));
            rows = match rows.checked_add(s.rows) {
                Some(rows) if rows <= MAX_ROWS => rows,
                _ => return bad(format!("more than {MAX_ROWS} rows")),
            };
        }
        if parts.is_empty() {
            parts.push(Part { uri: uri.clone(), segments: 0..segments.len() as u32, rows, slots: 1 });
        }
        let mut at = 0;
        for p in &mut parts {
            if p.segments.start != at || p.segments.end < at || p.segments.end as usize > segments.len() {
                return bad(format!("part {} has segments {:?}", p.uri, p.segments));
            }
            if p.slots == 0 || p.slots > BLOCK_MAX {
                return bad(format!("part {} has {} slots", p.uri, p.slots));
            }
            at = p.segments.end;
            let own = &segments[p.segments.start as usize..p.segments.end as usize];
            p.rows = own.iter().map(|s| s.rows).sum();
        }
        if at as usize != segments.len() {
            return bad("some segments belong to no part".into());
        }
        if let Some(empty) = parts.iter().find(|p| p.rows == 0).filter(|_| parts.len() > 1) {
            return Err(Error::invalid(format!("{} has no rows to mix", empty.uri)));
        }
        let digest = digest(&schema, &objects, &segments, &parts);
        Ok(Self { uri, segment_bytes, schema, objects, segments, parts, rows, digest })
    }

    /// The dataset's URI.
    pub fn uri(&self) -> &str {
        &self.uri
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

    /// Rows of the whole dataset; of a mix, of all its parts together.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The dataset's version. It does not cover the URI: a mirror with equal objects has an equal digest.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The full URI of an object.
    pub fn object_uri(&self, object: &Object) -> String {
        match object.key.as_str() {
            "" => self.uri.clone(),
            key if key.contains("://") => key.to_owned(),
            key => format!("{}/{key}", self.uri.trim_end_matches('/')),
        }
    }

    /// The id of a segment, the same whichever dataset or segment size led to it. `Invalid` if there is none.
    pub fn segment_id(&self, segment: u32) -> Result<SegmentId> {
        let s = self.segment(segment)?;
        let o = &self.objects[s.object as usize];
        let mut h = Xxh3::new();
        put(&mut h, self.object_uri(o).as_bytes());
        put(&mut h, o.etag.as_bytes());
        for n in [o.size, u64::from(s.first_row_group), u64::from(s.row_groups)] {
            h.update(&n.to_le_bytes());
        }
        Ok(SegmentId(Digest(h.digest128())))
    }

    /// Segment number `segment`; `Invalid` if there is none.
    pub fn segment(&self, segment: u32) -> Result<Segment> {
        self.segments.get(segment as usize).copied().ok_or_else(|| {
            Error::invalid(format!("{}: no segment {segment}, there are {}", self.uri, self.segments.len()))
        })
    }
}

/// A segment's identity in every store: object URI, version and row groups.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SegmentId(pub Digest);

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn put(h: &mut Xxh3, bytes: &[u8]) {
    h.update(&(bytes.len() as u64).to_le_bytes());
    h.update(bytes);
}

/// xxh3-128 over, in this order: the format (u32), the schema, the number of objects and each one's key, etag and
/// size, the number of segments and each one's object (u32), row groups (u32) and rows (u64); then, only if a split or
/// mix made it something else than whole objects, each segment's first row group (u32), skip and total rows, the
/// number of parts and each one's number of segments (u32) and slots (u32). Integers are little endian, u64 unless
/// said; texts and bytes are preceded by their length. Sizes that are estimates stay out.
fn digest(schema: &[u8], objects: &[Object], segments: &[Segment], parts: &[Part]) -> Digest {
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

/// Whether segments are whole and follow each other from each object's start.
fn is_whole(segments: &[Segment]) -> bool {
    let mut next = (0, 0);
    segments.iter().all(|s| {
        let first = if s.object == next.0 { next.1 } else { 0 };
        next = (s.object, s.first_row_group + s.row_groups);
        s.first_row_group == first && s.skip == 0 && s.rows == s.total_rows
    })
}

impl From<&Manifest> for v1::Manifest {
    fn from(m: &Manifest) -> Self {
        let s = &m.segments;
        let whole = is_whole(s);
        let mixed = m.parts.len() > 1;
        v1::Manifest {
            format: FORMAT,
            uri: m.uri.clone(),
            segment_bytes: m.segment_bytes,
            schema: m.schema.clone().into(),
            objects: m
                .objects
                .iter()
                .map(|o| v1::Object { key: o.key.clone(), etag: o.etag.clone(), size: o.size })
                .collect(),
            segments: Some(v1::Segments {
                object: s.iter().map(|s| s.object).collect(),
                row_groups: s.iter().map(|s| s.row_groups).collect(),
                rows: s.iter().map(|s| s.rows).collect(),
                decoded_bytes: s.iter().map(|s| s.decoded_bytes).collect(),
                first_row_group: s.iter().filter(|_| !whole).map(|s| s.first_row_group).collect(),
                skip: s.iter().filter(|_| !whole).map(|s| s.skip).collect(),
                total_rows: s.iter().filter(|_| !whole).map(|s| s.total_rows).collect(),
            }),
            digest: m.digest.to_bytes().to_vec().into(),
            parts: m
                .parts
                .iter()
                .filter(|_| mixed)
                .map(|p| v1::Part {
                    uri: p.uri.clone(),
                    segments: p.segments.end - p.segments.start,
                    slots: p.slots,
                })
                .collect(),
        }
    }
}

impl TryFrom<v1::Manifest> for Manifest {
    type Error = Error;

    /// Rebuilds and checks: a manifest whose digest does not match its content is `Corrupt`.
    fn try_from(w: v1::Manifest) -> Result<Self> {
        if w.format != FORMAT {
            return Err(Error::invalid(format!(
                "{}: manifest format {} is unknown here, this build knows {FORMAT}: use equal versions of Forebay",
                w.uri, w.format
            )));
        }
        let claimed = Digest::from_bytes(&w.digest)?;
        let segments = segments(&w.uri, w.segments.unwrap_or_default())?;
        let objects =
            w.objects.into_iter().map(|o| Object { key: o.key, etag: o.etag, size: o.size }).collect();
        let mut at = 0u32;
        let mut parts = Vec::with_capacity(w.parts.len());
        for p in w.parts {
            let start = at;
            at = at.saturating_add(p.segments);
            parts.push(Part { uri: p.uri, segments: start..at, rows: 0, slots: p.slots });
        }
        let m = Manifest::build(w.uri, w.segment_bytes, w.schema.to_vec(), objects, segments, parts)?;
        match m.digest == claimed {
            true => Ok(m),
            false => Err(Error::corrupt(format!(
                "{}: manifest says digest {claimed} but its content has {}",
                m.uri, m.digest
            ))),
        }
    }
}

/// Segments from their columns; `Corrupt` if those are of different lengths.
fn segments(uri: &str, w: v1::Segments) -> Result<Vec<Segment>> {
    let n = w.object.len();
    let optional = [w.first_row_group.len(), w.skip.len(), w.total_rows.len()];
    if [w.row_groups.len(), w.rows.len(), w.decoded_bytes.len()] != [n; 3]
        || (optional != [0; 3] && optional != [n; 3])
    {
        return Err(Error::corrupt(format!("{uri}: malformed manifest: ragged segments")));
    }
    let mut next = (0, 0u32);
    let segment = |i: usize| {
        let (object, row_groups) = (w.object[i], w.row_groups[i]);
        let follows = if object == next.0 { next.1 } else { 0 };
        let first_row_group = w.first_row_group.get(i).copied().unwrap_or(follows);
        next = (object, first_row_group.saturating_add(row_groups));
        Segment {
            object,
            first_row_group,
            row_groups,
            rows: w.rows[i],
            skip: w.skip.get(i).copied().unwrap_or(0),
            total_rows: w.total_rows.get(i).copied().unwrap_or(w.rows[i]),
            first_row: 0,
            decoded_bytes: w.decoded_bytes[i],
        }
    };
    Ok((0..n).map(segment).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Manifest {
        let o = |k: &str| Object { key: k.into(), etag: format!("e-{k}"), size: 100 };
        let s = |object, row_groups, rows| SegmentSize { object, row_groups, rows, decoded_bytes: rows * 8 };
        let sizes = [s(0, 2, 10), s(0, 1, 5), s(2, 3, 7)];
        Manifest::new("s3://b/p", SEGMENT_BYTES, vec![1, 2], vec![o("a"), o("b"), o("c")], &sizes).unwrap()
    }

    #[test]
    fn segments_follow_each_other() {
        let m = sample();
        let places: Vec<_> =
            m.segments().iter().map(|s| (s.object, s.first_row_group, s.first_row)).collect();
        assert_eq!(places, [(0, 0, 0), (0, 2, 10), (2, 0, 15)]);
        assert_eq!(m.rows(), 22);
    }

    #[test]
    fn survives_the_wire_and_notices_tampering() {
        let m = sample();
        let w = v1::Manifest::from(&m);
        assert_eq!(Manifest::try_from(w.clone()).unwrap(), m);
        let mut bad = w;
        bad.segments.as_mut().unwrap().rows[0] += 1;
        assert_eq!(Manifest::try_from(bad).unwrap_err().kind, crate::Kind::Corrupt);
    }

    #[test]
    fn sums_over_segments_fit() {
        let size = SegmentSize { object: 0, row_groups: 1, rows: 1, decoded_bytes: u64::MAX };
        let object = Object { key: "a".into(), etag: "e".into(), size: 1 };
        let manifest = |sizes: &[_]| Manifest::new("s3://b/p", 1, vec![], vec![object.clone()], sizes);
        assert!(manifest(&[size]).is_ok());
        assert!(manifest(&[size, size]).unwrap_err().message.contains("segment 1 overflows"));
    }

    #[test]
    fn digest_is_pinned() {
        // A change here is a change of every dataset's version: it must be deliberate.
        assert_eq!(sample().digest().to_string(), "7cbd0ab01dca6bf8cb0bd653eec2b5bb");
    }

    #[test]
    fn ids_tell_versions_apart() {
        let m = sample();
        let mut w = v1::Manifest::from(&m);
        w.objects[0].etag = "other".into();
        let sizes: Vec<_> = m
            .segments()
            .iter()
            .map(|s| SegmentSize {
                object: s.object,
                row_groups: s.row_groups,
                rows: s.rows,
                decoded_bytes: s.decoded_bytes,
            })
            .collect();
        let objects =
            w.objects.into_iter().map(|o| Object { key: o.key, etag: o.etag, size: o.size }).collect();
        let n = Manifest::new(m.uri(), m.segment_bytes(), m.schema().to_vec(), objects, &sizes).unwrap();
        assert_ne!(m.segment_id(0).unwrap(), n.segment_id(0).unwrap());
        assert_eq!(m.segment_id(2).unwrap(), n.segment_id(2).unwrap());
        assert_ne!(m.segment_id(0).unwrap(), m.segment_id(1).unwrap());
        assert!(m.segment_id(3).is_err());
    }
}
