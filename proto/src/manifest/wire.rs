//! Manifests as messages.

use super::Manifest;
use super::identity::{Digest, TABLE_FORMAT, format_of};
use super::layout::{Part, is_whole, segments};
use crate::error::{Error, Result};
use crate::v1;

impl v1::Ticket {
    /// A ticket that asks for rows of exactly this dataset.
    pub fn new(manifest: &Manifest, kind: v1::ticket::Kind) -> Self {
        let sizes_hash = Some(manifest.sizes_hash());
        Self {
            uri: manifest.uri.clone(),
            sizes_hash,
            version_ids: manifest.has_version_ids(),
            kind: Some(kind),
        }
    }
}

impl From<&Manifest> for v1::Manifest {
    fn from(m: &Manifest) -> Self {
        let s = &m.segments;
        let whole = is_whole(s);
        let mixed = m.parts.len() > 1;
        v1::Manifest {
            format: format_of(m.shape.as_ref(), m.filter.as_ref()),
            uri: m.uri.clone(),
            segment_bytes: m.segment_bytes,
            schema: m.schema.clone().into(),
            objects: m.objects.clone(),
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
            parts: m.parts.iter().filter(|_| mixed).map(v1::Part::from).collect(),
            shape: m.shape.clone(),
            filter: m.filter.as_ref().map(v1::Filter::from),
        }
    }
}

impl From<&Part> for v1::Part {
    fn from(p: &Part) -> Self {
        let segments = p.segments.end - p.segments.start;
        Self { uri: p.uri.clone(), segments, slots: p.slots }
    }
}

impl TryFrom<v1::Manifest> for Manifest {
    type Error = Error;

    /// Rebuilds and checks: a manifest whose digest does not match its content is `Corrupt`.
    fn try_from(w: v1::Manifest) -> Result<Self> {
        let format = w.format;
        if !(1..=TABLE_FORMAT).contains(&format) {
            return Err(unknown(format, &w.uri));
        }
        let claimed = Digest::from_bytes(&w.digest)?;
        let segments = segments(&w.uri, w.segments.unwrap_or_default())?;
        let mut at = 0u32;
        let mut parts = Vec::with_capacity(w.parts.len());
        for p in w.parts {
            let start = at;
            at = at.saturating_add(p.segments);
            parts.push(Part { uri: p.uri, segments: start..at, rows: 0, slots: p.slots });
        }
        let (schema, more) = (w.schema.to_vec(), (w.shape, w.filter));
        let m = Manifest::build(w.uri, w.segment_bytes, schema, w.objects, segments, parts, more)?;
        if format != format_of(m.shape.as_ref(), m.filter.as_ref()) {
            return Err(unknown(format, &m.uri));
        }
        match m.digest == claimed {
            true => Ok(m),
            false => Err(Error::corrupt(format!(
                "{}: manifest says digest {claimed} but its content has {}",
                m.uri, m.digest
            ))),
        }
    }
}

fn unknown(format: u32, uri: &str) -> Error {
    Error::invalid(format!(
        "{uri}: manifest format {format} is unknown here, this build knows up to {TABLE_FORMAT}: use equal versions of \
         Forebay"
    ))
}
