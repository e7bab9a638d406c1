//! Where the buffers of a stream's messages come from: the shared region of its reader, if it has one with
//! room, else this process's own pool. Rows that lie in files need none, where the reader copies them itself.

use super::file_rows::{FileRows, RowFile, WhichRows};
use super::files::LentFiles;
use super::region::{SharedBuffer, SharedRegion};
use super::row_runs::{RUN_BYTES, RowRuns};
use crate::pool::{LARGE_BYTES, Pool, PoolBuffer};
use crate::ready::ReadySegment;
use arrow::buffer::Buffer;
use bytes::Bytes;
use std::sync::Arc;

/// Shorter parts travel as bytes: to say where they lie would cost as much.
const SHARED_BYTES: usize = 8 << 10;

/// Rows of fewer bytes, times this, are gathered for the reader: to say where each lies would cost as much.
const RUN_WORTH: usize = 4;

/// Memory for the messages of a stream.
#[derive(Debug, Clone)]
pub struct MessagePool {
    own: Pool,
    region: Option<SharedRegion>,
    /// Messages may share the buffers of the segments that they are made of.
    may_lend: bool,
    /// The segments that a message is gathered from, if its reader takes files.
    segments: Arc<[ReadySegment]>,
}

/// Where a message's body is written: memory of this process, or of the region that its reader shares.
#[derive(Debug)]
pub(crate) enum MessageBuffer {
    Own(PoolBuffer),
    Shared(SharedBuffer),
}

impl From<Pool> for MessagePool {
    fn from(own: Pool) -> Self {
        Self::new(own, None)
    }
}

impl MessagePool {
    /// A pool over `own` and, before it, the region of the stream's reader.
    pub fn new(own: Pool, region: Option<SharedRegion>) -> Self {
        Self { own, region, may_lend: false, segments: Arc::default() }
    }

    /// The same, for messages that may share the buffers of their segments.
    pub(crate) fn lending(&self) -> Self {
        Self { may_lend: true, ..self.clone() }
    }

    /// The same, for a message that is gathered from these segments: its reader may be told in which files
    /// its rows lie.
    pub(crate) fn over(&self, segments: &[ReadySegment]) -> Self {
        let segments = if self.takes_files() { segments.into() } else { Arc::default() };
        Self { segments, ..self.clone() }
    }

    /// Whether the reader takes files.
    pub(crate) fn takes_files(&self) -> bool {
        self.region.as_ref().is_some_and(SharedRegion::lends_files)
    }

    /// Whether the reader may be told so.
    pub(crate) fn refers(&self) -> bool {
        !self.segments.is_empty()
    }

    /// Rows of `width` bytes that the reader copies by itself, in place of their bytes: each pick is a run of
    /// rows (source, first row, rows) of the sources, which are those of the segments of [`Self::over`].
    /// `None` where the reader takes no files, some of the rows lie in none, or it is not worth it.
    pub(crate) fn refer(
        &self,
        sources: &[&Buffer],
        width: usize,
        picks: impl Iterator<Item = (usize, usize, usize)>,
    ) -> Option<Buffer> {
        let (region, files) = (self.region.as_ref()?, self.region.as_ref()?.files()?);
        if self.segments.len() != sources.len() {
            return None;
        }
        let mut runs = RowRuns::new(width, picks.size_hint().1.unwrap_or(0));
        let (mut used, mut places) = (Vec::new(), vec![None; sources.len()]);
        for (source, first, rows) in picks {
            let place = *places[source].get_or_insert_with(|| {
                used.push(source);
                used.len() - 1
            });
            runs.push(place, first, rows).then_some(())?;
        }
        let bytes = runs.bytes();
        if bytes < LARGE_BYTES || bytes < runs.count() * RUN_BYTES * RUN_WORTH {
            return None;
        }
        let used = used.into_iter().map(|source| self.row_file(files, source, sources[source]));
        let rows = FileRows::new(WhichRows::Told(runs), used.collect::<Option<_>>()?);
        Some(region.refer(rows)?.into())
    }

    /// Rows of `width` bytes that the reader copies by itself, and knows: `rows` of them, out of `sources`,
    /// which are those of the segments of [`Self::over`], and have these numbers in the dataset. `None`
    /// where the reader takes no files, a segment lies in none, or it is not worth it.
    pub(crate) fn refer_planned(
        &self,
        sources: &[&Buffer],
        segments: &[u32],
        width: usize,
        rows: usize,
    ) -> Option<Buffer> {
        let (region, files) = (self.region.as_ref()?, self.region.as_ref()?.files()?);
        if [sources.len(), segments.len()] != [self.segments.len(); 2] || rows * width < LARGE_BYTES {
            return None;
        }
        let all = sources.iter().enumerate().map(|(source, rows)| self.row_file(files, source, rows));
        let which = WhichRows::Planned { rows, width, segments: segments.to_vec() };
        Some(region.refer(FileRows::new(which, all.collect::<Option<_>>()?))?.into())
    }

    /// A segment's rows in their file, which the reader has or is sent now.
    fn row_file(&self, files: &LentFiles, source: usize, rows: &Buffer) -> Option<RowFile> {
        let (verifier, start) = self.segments[source].file_of(rows)?;
        Some(RowFile { rows: rows.clone(), file: files.lend(verifier)?, start })
    }

    /// Whether a message may share a segment's buffers. In memory that is shared with the reader it cannot.
    pub(crate) fn lends(&self) -> bool {
        self.may_lend && self.region.is_none()
    }

    /// A buffer of at least `bytes` bytes with arbitrary contents.
    pub(crate) fn take(&self, bytes: usize) -> MessageBuffer {
        let region = self.region.as_ref().filter(|_| bytes >= LARGE_BYTES);
        match region.and_then(|region| region.take(bytes)) {
            Some(buffer) => MessageBuffer::Shared(buffer),
            None => MessageBuffer::Own(self.own.take(bytes)),
        }
    }

    /// Ends writing: the first `bytes` bytes of a taken buffer.
    pub(crate) fn share(&self, buffer: MessageBuffer, bytes: usize) -> Buffer {
        match (buffer, &self.region) {
            (MessageBuffer::Own(buffer), _) => self.own.share(buffer, bytes),
            (MessageBuffer::Shared(buffer), Some(region)) => region.share(buffer, bytes).into(),
            // Only a pool with a region gives such buffers.
            (MessageBuffer::Shared(mut buffer), None) => Buffer::from(&buffer.as_slice_mut()[..bytes]),
        }
    }

    /// A message's body, its large parts in the region if there is room; true if all of them are there.
    pub(crate) fn place(&self, body: Vec<Bytes>) -> (Vec<Bytes>, bool) {
        let body: Vec<Bytes> = body.into_iter().map(|part| self.place_part(part)).collect();
        let mut large = body.iter().filter(|part| part.len() >= SHARED_BYTES).peekable();
        let is_shared = large.peek().is_some() && large.all(|part| self.is_shared(part));
        // What travels has bytes.
        let bytes = |part: Bytes| match self.region.as_ref().filter(|_| !is_shared) {
            Some(region) => region.copied_rows(&part).map_or(part, Bytes::from),
            None => part,
        };
        (body.into_iter().map(bytes).collect(), is_shared)
    }

    /// Copies a large part that lies elsewhere into the region.
    fn place_part(&self, part: Bytes) -> Bytes {
        let Some(region) = &self.region else { return part };
        if part.len() < SHARED_BYTES || region.has(&part) {
            return part;
        }
        let Some(mut buffer) = region.take(part.len()) else { return part };
        buffer.as_slice_mut()[..part.len()].copy_from_slice(&part);
        region.share(buffer, part.len())
    }

    /// Whether a part of a message lies in the region: its reader sees it there.
    pub(crate) fn is_shared(&self, part: &[u8]) -> bool {
        self.region.as_ref().is_some_and(|region| region.has(part))
    }
}

impl MessageBuffer {
    pub(crate) fn as_slice_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Own(buffer) => buffer.as_slice_mut(),
            Self::Shared(buffer) => buffer.as_slice_mut(),
        }
    }
}
