//! Segment files as mapped Arrow: the one place that knows `mmap`.
//!
//! A map lives as long as any batch over it. Evicting a file unlinks it; the bytes stay until the last map goes, so a
//! reader never sees them change. Files are never truncated or rewritten by us.
#![expect(unsafe_code, reason = "mapping a file is unsafe: somebody else could change it")]

use super::disk::{Disk, Stamp, Stat};
use super::file::{Unreadable, read_header, verify_body};
use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use bytes::Bytes;
use forebay_segment::wire;
use std::path::Path;
use std::sync::Arc;

/// A mapped segment file.
#[derive(Debug)]
pub struct Mapped {
    /// Its columns.
    pub batch: Arc<RecordBatch>,
    /// The file, as it was when it was mapped or checked.
    pub stat: Stat,
    body: Buffer,
    /// Holders of the body when nobody reads it: the batch's own arrays and `body`.
    holders: usize,
}

impl Mapped {
    /// Whether anybody but the store holds any of it.
    pub fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.batch) > 1 || self.body.strong_count() > self.holders
    }

    /// Whether the file is still the one that was mapped.
    pub fn is_of(&self, stamp: &Stamp) -> bool {
        self.stat.stamp == *stamp
    }
}

/// Opens a segment file as a batch over its mapping. With `verify` every byte is checked first; call it off the async
/// threads.
pub fn open(disk: &dyn Disk, path: &Path, verify: bool) -> Result<Mapped, Unreadable> {
    let damaged = |why: &str| Unreadable::Damaged(why.into());
    let file = disk.open(path)?;
    let stat = disk.stat(&file)?;
    let (header, body_offset) = read_header(disk, &file, stat.stamp.bytes)?;
    if verify {
        verify_body(disk, &file, &header, body_offset)?;
    }
    // SAFETY: the file is private to this store, immutable once renamed into place, and only ever unlinked (see above).
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(Unreadable::Disk)?;
    // Whoever changed it since must not have what we mapped taken for what we checked.
    if map.len() as u64 != stat.stamp.bytes || disk.stat(&file)?.stamp != stat.stamp {
        return Err(damaged("it was changed while it was read"));
    }
    let body = Buffer::from(Bytes::from_owner(map).slice(body_offset as usize..));
    let schema = arrow_ipc::root_as_message(&header.schema)
        .ok()
        .and_then(|m| m.header_as_schema())
        .and_then(|s| arrow_ipc::convert::try_fb_to_schema(s).ok())
        .ok_or_else(|| damaged("its schema cannot be read"))?;
    let batch =
        wire::decode(&header.batch, &body, &Arc::new(schema)).map_err(|e| Unreadable::Damaged(e.message))?;
    if batch.num_rows() as u64 != header.rows {
        return Err(damaged("it holds another number of rows than its header says"));
    }
    let holders = body.strong_count();
    Ok(Mapped { batch: Arc::new(batch), stat, body, holders })
}
