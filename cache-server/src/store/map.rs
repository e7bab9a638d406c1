//! Segment files as mapped Arrow: the one place that knows `mmap`.
//!
//! A map lives as long as any batch over it. Evicting a file unlinks it; the bytes stay until the last map goes, so a
//! reader never sees them change. Files are never truncated or rewritten by us; whoever does so from outside breaks the
//! mapping (SIGBUS), which is why a cache directory belongs to one server alone.
#![expect(unsafe_code, reason = "mapping a file is unsafe: somebody else could change it")]

use super::file::{read_header, verify_body};
use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use bytes::Bytes;
use forebay_proto::{Error, Result};
use forebay_segment::wire;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// Opens a segment file as a batch over its mapping. With `verify` every byte is checked first; call it off the async
/// threads. `Corrupt` when anything does not match.
pub fn open(path: &Path, verify: bool) -> Result<RecordBatch> {
    let (header, body_offset) = read_header(path)?;
    let damaged = |why: String| Error::corrupt(format!("{}: {why}", path.display()));
    let file = File::open(path).map_err(|e| damaged(format!("open: {e}")))?;
    // SAFETY: the file is private to this store, immutable once renamed into place, and only ever unlinked (see above).
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(|e| damaged(format!("map: {e}")))?;
    // The header was read by another call: the mapping must still be as long as it says.
    if map.len() as u64 != body_offset + header.body_bytes() {
        return Err(damaged("the file is not as long as its header says".into()));
    }
    let body = Bytes::from_owner(map).slice(body_offset as usize..);
    if verify && !verify_body(&header, &body) {
        return Err(damaged("a buffer does not match its checksum".into()));
    }
    let schema = arrow_ipc::root_as_message(&header.schema)
        .ok()
        .and_then(|m| m.header_as_schema())
        .and_then(|s| arrow_ipc::convert::try_fb_to_schema(s).ok())
        .ok_or_else(|| damaged("its schema cannot be read".into()))?;
    let batch = wire::decode(&header.batch, &Buffer::from(body), &Arc::new(schema))?;
    match batch.num_rows() as u64 == header.rows {
        true => Ok(batch),
        false => Err(damaged(format!("it holds {} rows, its header says {}", batch.num_rows(), header.rows))),
    }
}
