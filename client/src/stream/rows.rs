//! A part of a message whose rows lie in files of a node on this host.

use forebay_dataset::shared::{LentRows, LentSegments, RowRuns, RowsDone};
use forebay_proto::Result;
use std::any::Any;
use std::sync::Arc;

/// Rows of a message in files of a node on this host, which stay as they are while there is a clone of this.
#[derive(Debug, Clone)]
pub struct SharedRows(Arc<RowsPart>);

#[derive(Debug)]
struct RowsPart {
    rows: LentRows,
    /// Until it is dropped the node keeps the files as they are.
    _lease: Arc<dyn Any + Send + Sync>,
}

/// A body of rows that the plan says, out of files of a node on this host.
#[derive(Debug, Clone)]
pub struct SharedSegments {
    segments: Arc<LentSegments>,
    lease: Arc<dyn Any + Send + Sync>,
}

impl PartialEq for SharedSegments {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.segments, &other.segments)
    }
}

impl SharedSegments {
    /// A message's segments, which is given back when `lease` is dropped.
    pub fn new(segments: LentSegments, lease: Arc<dyn Any + Send + Sync>) -> Self {
        Self { segments: Arc::new(segments), lease }
    }

    /// Bytes of a row.
    pub fn width(&self) -> usize {
        self.segments.width()
    }

    /// The number that a segment has as a source of rows.
    pub fn source(&self, segment: u32) -> Option<usize> {
        self.segments.source(segment)
    }

    /// Whether what was copied is right: to be asked before anything is made of it.
    pub fn is_sound(&self) -> bool {
        self.segments.is_sound()
    }

    /// These rows. `Retry` if one lies behind the end of its file.
    pub fn rows(&self, runs: RowRuns) -> Result<SharedRows> {
        Ok(SharedRows::new(self.segments.rows(runs)?, self.lease.clone()))
    }
}

impl PartialEq for SharedRows {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl SharedRows {
    /// Rows of a message that is given back when `lease` is dropped.
    pub fn new(rows: LentRows, lease: Arc<dyn Any + Send + Sync>) -> Self {
        Self(Arc::new(RowsPart { rows, _lease: lease }))
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> usize {
        self.0.rows.bytes()
    }

    /// Copies the bytes behind those that are `done`, as many as `to` has room for.
    pub fn copy(&self, done: &mut RowsDone, to: &mut [u8]) {
        self.0.rows.copy(done, to);
    }

    /// Copies the next `bytes` bytes as many at a time as `tile` holds, and has `take` look at them there.
    pub fn copy_tiles(&self, done: &mut RowsDone, bytes: usize, tile: &mut [u8], take: impl FnMut(&[u8])) {
        self.0.rows.copy_tiles(done, bytes, tile, take);
    }

    /// Passes over the next bytes.
    pub fn skip(&self, done: &mut RowsDone, bytes: usize) {
        self.0.rows.skip(done, bytes);
    }

    /// Whether what was copied is right: to be asked before anything is made of it.
    pub fn is_sound(&self) -> bool {
        self.0.rows.is_sound()
    }
}
