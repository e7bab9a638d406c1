//! Runs: consecutive segments of one object that are read in one request.
//!
//! An object store takes its time for each request, however long the request is. Where few may be under way
//! at once ([`SegmentReader::prefers_runs`]), fewer and longer ones are faster.

use crate::parquet::chunks::Chunks;
use crate::parquet::reader::SegmentReader;
use crate::urgency::Urgency;
use arrow::array::RecordBatch;
use forebay_proto::{Error, Manifest, Result};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::OnceCell;

/// Bytes of one request at most: the first segment waits for all of them.
const REQUEST_BYTES_MAX: u64 = 32 << 20;

/// Consecutive segments of one object. The one that is read first fetches the bytes of all.
///
/// A prefetcher that [prefers runs](SegmentReader::prefers_runs) makes one for segments that it starts
/// together and that follow each other in an object, and reads each of them by [`SegmentRun::read`] in place
/// of [`SegmentReader::read_segment`]: flight, memory and placement stay those of the single segment. The
/// fetched bytes are let go with the run.
pub struct SegmentRun {
    reader: SegmentReader,
    manifest: Arc<Manifest>,
    segments: Range<u32>,
    projection: Vec<usize>,
    /// Raised as soon as somebody waits for one of the segments.
    urgency: Urgency,
    fetched: OnceCell<Result<Chunks>>,
}

impl SegmentRun {
    /// A run of `segments`; reads nothing yet.
    ///
    /// # Errors
    /// `Invalid` if there are no such segments, or if they lie in several objects.
    pub fn new(
        reader: SegmentReader,
        manifest: Arc<Manifest>,
        segments: Range<u32>,
        projection: Vec<usize>,
    ) -> Result<Self> {
        let first = manifest.segment(segments.start)?.object;
        for segment in segments.clone() {
            if manifest.segment(segment)?.object != first {
                return Err(Error::invalid(format!(
                    "{}: segments {segments:?} lie in several objects",
                    manifest.uri()
                )));
            }
        }
        let (urgency, fetched) = (Urgency::prefetch(), OnceCell::new());
        Ok(Self { reader, manifest, segments, projection, urgency, fetched })
    }

    /// Reads one segment, as [`SegmentReader::read_segment`] does. One whose bytes do not decode is read by
    /// itself.
    pub async fn read(&self, segment: u32, urgency: &Urgency) -> Result<RecordBatch> {
        if !self.segments.contains(&segment) {
            return Err(Error::invalid(format!("segment {segment} is not in the run {:?}", self.segments)));
        }
        let fetched = self.fetched.get_or_init(|| self.fetch());
        tokio::pin!(fetched);
        let fetched = tokio::select! {
            biased;
            fetched = &mut fetched => fetched,
            () = urgency.raised() => {
                self.urgency.raise();
                fetched.await
            }
        };
        let chunks = fetched.clone()?;
        let layout = self.reader.layout(&self.manifest, segment, &self.projection, urgency).await?;
        match self.reader.decode(layout, chunks, urgency).await {
            Ok(batch) => Ok(batch),
            Err(e) => {
                tracing::info!(error = %e, "a segment of a run does not decode: it is fetched again");
                self.reader.counters().damaged.fetch_add(1, Relaxed);
                self.reader.read_segment(&self.manifest, segment, &self.projection, urgency).await
            }
        }
    }

    async fn fetch(&self) -> Result<Chunks> {
        let (mut ranges, mut first) = (Vec::new(), None);
        for segment in self.segments.clone() {
            let layout = self.reader.layout(&self.manifest, segment, &self.projection, &self.urgency).await?;
            ranges.extend(layout.ranges());
            first.get_or_insert(layout);
        }
        let first = first.ok_or_else(|| Error::invalid("a run without segments"))?;
        self.reader.fetch(&first, ranges, REQUEST_BYTES_MAX, &self.urgency).await
    }
}
