//! The manifest: a dataset frozen, and the ids derived from it.
//!
//! Order, placement and caching all start here: two processes that hold manifests of equal digest agree on every
//! sample's place. The manifest is built by `forebay-segment`; this module gives it meaning and checks it.

use crate::error::{Error, Result};
use crate::v1;
use std::fmt;
use xxhash_rust::xxh3::Xxh3;

/// The manifest format that this build writes and understands.
pub const FORMAT: u32 = 1;

/// Decoded bytes that a segment aims at unless the dataset says otherwise: large enough that a fill is a few big
/// ranged reads, small enough that eviction and replication stay fine-grained.
pub const SEGMENT_BYTES: u64 = 32 << 20;

/// Decoded bytes that a segment may aim at: whoever opens a dataset chooses, and a node decodes a segment at once.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 30;

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
    /// Rows, fewer than 2^32.
    pub rows: u64,
    /// The dataset's rows before this segment, in file order.
    pub first_row: u64,
    /// Estimated decoded bytes of all columns.
    pub decoded_bytes: u64,
}

/// A dataset frozen: schema, objects with versions, segments with row counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    uri: String,
    segment_bytes: u64,
    schema: Vec<u8>,
    objects: Vec<Object>,
    segments: Vec<Segment>,
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
        let uri = uri.into();
        let bad = |why: String| Err(Error::invalid(format!("{uri}: malformed manifest: {why}")));
        let mut segments = Vec::with_capacity(sizes.len());
        let (mut rows, mut bytes, mut row_group, mut object) = (0u64, 0u64, 0u32, 0u32);
        for (i, s) in sizes.iter().enumerate() {
            if s.object < object || s.object as usize >= objects.len() {
                return bad(format!("segment {i} names object {} of {}", s.object, objects.len()));
            }
            if s.object > object {
                (object, row_group) = (s.object, 0);
            }
            if s.rows == 0 || s.rows > u32::MAX as u64 || s.row_groups == 0 {
                return bad(format!("segment {i} has {} rows in {} row groups", s.rows, s.row_groups));
            }
            segments.push(Segment {
                object,
                first_row_group: row_group,
                row_groups: s.row_groups,
                rows: s.rows,
                first_row: rows,
                decoded_bytes: s.decoded_bytes,
            });
            // Sums over segments, here and elsewhere, need not be checked after this.
            let (Some(next_group), Some(next_rows), Some(next_bytes)) = (
                row_group.checked_add(s.row_groups),
                rows.checked_add(s.rows),
                bytes.checked_add(s.decoded_bytes),
            ) else {
                return bad(format!("segment {i} overflows"));
            };
            (row_group, rows, bytes) = (next_group, next_rows, next_bytes);
        }
        if segments.len() > u32::MAX as usize {
            return bad("more than 2^32 segments".into());
        }
        let digest = digest(&schema, &objects, sizes);
        Ok(Self { uri, segment_bytes, schema, objects, segments, rows, digest })
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

    /// Rows of the whole dataset.
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
/// size, the number of segments and each one's object (u32), row groups (u32) and rows (u64). Integers are little
/// endian, u64 unless said; texts and bytes are preceded by their length. Sizes that are estimates stay out.
fn digest(schema: &[u8], objects: &[Object], sizes: &[SegmentSize]) -> Digest {
    let mut h = Xxh3::new();
    h.update(&FORMAT.to_le_bytes());
    put(&mut h, schema);
    h.update(&(objects.len() as u64).to_le_bytes());
    for o in objects {
        put(&mut h, o.key.as_bytes());
        put(&mut h, o.etag.as_bytes());
        h.update(&o.size.to_le_bytes());
    }
    h.update(&(sizes.len() as u64).to_le_bytes());
    for s in sizes {
        h.update(&s.object.to_le_bytes());
        h.update(&s.row_groups.to_le_bytes());
        h.update(&s.rows.to_le_bytes());
    }
    Digest(h.digest128())
}

impl From<&Manifest> for v1::Manifest {
    fn from(m: &Manifest) -> Self {
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
                object: m.segments.iter().map(|s| s.object).collect(),
                row_groups: m.segments.iter().map(|s| s.row_groups).collect(),
                rows: m.segments.iter().map(|s| s.rows).collect(),
                decoded_bytes: m.segments.iter().map(|s| s.decoded_bytes).collect(),
            }),
            digest: m.digest.to_bytes().to_vec().into(),
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
        let s = w.segments.unwrap_or_default();
        let n = s.object.len();
        if [s.row_groups.len(), s.rows.len(), s.decoded_bytes.len()] != [n; 3] {
            return Err(Error::corrupt(format!("{}: malformed manifest: ragged segments", w.uri)));
        }
        let sizes: Vec<_> = (0..n)
            .map(|i| SegmentSize {
                object: s.object[i],
                row_groups: s.row_groups[i],
                rows: s.rows[i],
                decoded_bytes: s.decoded_bytes[i],
            })
            .collect();
        let objects =
            w.objects.into_iter().map(|o| Object { key: o.key, etag: o.etag, size: o.size }).collect();
        let m = Manifest::new(w.uri, w.segment_bytes, w.schema.to_vec(), objects, &sizes)?;
        match m.digest == claimed {
            true => Ok(m),
            false => Err(Error::corrupt(format!(
                "{}: manifest says digest {claimed} but its content has {}",
                m.uri, m.digest
            ))),
        }
    }
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
