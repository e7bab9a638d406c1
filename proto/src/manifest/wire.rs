//! Manifests as messages.

use super::Manifest;
use super::identity::{Digest, FORMAT};
use super::layout::{Object, Part, Segment, is_whole};
use crate::error::{Error, Result};
use crate::v1;

impl v1::Ticket {
    /// A ticket that asks for rows of exactly this dataset.
    pub fn new(manifest: &Manifest, kind: v1::ticket::Kind) -> Self {
        Self { uri: manifest.uri.clone(), sizes_hash: Some(manifest.sizes_hash()), kind: Some(kind) }
    }
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
