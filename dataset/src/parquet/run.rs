//! Runs: consecutive segments of one object that are read in one request.
//!
//! An object store takes its time for each request, however long the request is. Where few may be under way
//! at once ([`SegmentReader::prefers_runs`]), fewer and longer ones are faster.

use crate::parquet::chunks::Chunks;
use crate::parquet::fetch::fetch_pieces;
use crate::parquet::reader::{SegmentLayout, SegmentReader};
use crate::parquet::run_buffers::RunBuffers;
use crate::urgency::Urgency;
use arrow::array::RecordBatch;
use forebay_proto::{Error, Manifest, Result};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

/// Bytes of one request at most.
const REQUEST_BYTES_MAX: u64 = 32 << 20;

/// Consecutive segments of one object. The one that is read first has the bytes of all fetched; each is
/// decoded as soon as its own are here.
///
/// A prefetcher that [prefers runs](SegmentReader::prefers_runs) makes one for segments that it starts
/// together and that follow each other in an object, and reads each of them by [`SegmentRun::read`] in place
/// of [`SegmentReader::read_segment`]: flight, memory and placement stay those of the single segment. The
/// fetch ends with the run.
pub struct SegmentRun {
    reader: SegmentReader,
    manifest: Arc<Manifest>,
    segments: Range<u32>,
    projection: Vec<usize>,
    /// Raised as soon as somebody waits for one of the segments.
    urgency: Urgency,
    /// None until one is read.
    fetch: Mutex<Option<Fetch>>,
}

/// What brings the bytes of all segments.
struct Fetch {
    task: AbortHandle,
    /// The bytes of each; none where they were taken.
    chunks: Vec<Option<oneshot::Receiver<Result<Chunks>>>>,
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
        let urgency = Urgency::prefetch();
        Ok(Self { reader, manifest, segments, projection, urgency, fetch: Mutex::new(None) })
    }

    /// Reads one segment, as [`SegmentReader::read_segment_within`] does. One whose bytes do not decode, or
    /// that is read a second time, is read by itself.
    pub async fn read<M, F: Future<Output = M>>(
        &self,
        segment: u32,
        urgency: &Urgency,
        memory: impl Fn() -> F,
    ) -> Result<(RecordBatch, M)> {
        if !self.segments.contains(&segment) {
            return Err(Error::invalid(format!("segment {segment} is not in the run {:?}", self.segments)));
        }
        let Some(mut chunks) = self.chunks(segment) else {
            return self.by_itself(segment, urgency, memory).await;
        };
        let fetched = tokio::select! {
            biased;
            fetched = &mut chunks => fetched,
            () = urgency.raised() => {
                self.urgency.raise();
                chunks.await
            }
        };
        // The task that fetches them has ended without a word: it failed in a way that no read should.
        let Ok(chunks) = fetched else { return self.by_itself(segment, urgency, memory).await };
        let chunks = chunks?;
        let layout = self.reader.layout(&self.manifest, segment, &self.projection, urgency).await?;
        let held = memory().await;
        match self.reader.decode(layout, chunks, urgency).await {
            Ok(batch) => Ok((batch, held)),
            Err(e) => {
                tracing::info!(error = %e, "a segment of a run does not decode: it is fetched again");
                self.reader.counters().damaged.fetch_add(1, Relaxed);
                drop(held);
                self.by_itself(segment, urgency, memory).await
            }
        }
    }

    async fn by_itself<M, F: Future<Output = M>>(
        &self,
        segment: u32,
        urgency: &Urgency,
        memory: impl Fn() -> F,
    ) -> Result<(RecordBatch, M)> {
        let (manifest, projection) = (&self.manifest, &self.projection);
        self.reader.read_segment_within(manifest, segment, projection, urgency, memory).await
    }

    /// What a segment's bytes come by, once; the first call begins to fetch those of all.
    fn chunks(&self, segment: u32) -> Option<oneshot::Receiver<Result<Chunks>>> {
        let mut fetch = self.fetch.lock();
        let fetch = fetch.get_or_insert_with(|| {
            let channels = self.segments.clone().map(|_| oneshot::channel());
            let (senders, chunks): (Vec<_>, Vec<_>) = channels.unzip();
            let (reader, manifest) = (self.reader.clone(), self.manifest.clone());
            let (segments, projection) = (self.segments.clone(), self.projection.clone());
            let urgency = self.urgency.clone();
            let task = tokio::spawn(async move {
                fetch_all(&reader, &manifest, segments, &projection, &urgency, senders).await;
            });
            Fetch { task: task.abort_handle(), chunks: chunks.into_iter().map(Some).collect() }
        });
        fetch.chunks[(segment - self.segments.start) as usize].take()
    }
}

impl Drop for SegmentRun {
    fn drop(&mut self) {
        if let Some(fetch) = self.fetch.get_mut() {
            fetch.task.abort();
        }
    }
}

/// Fetches the bytes of all segments and sends each its own as soon as they are here.
async fn fetch_all(
    reader: &SegmentReader,
    manifest: &Manifest,
    segments: Range<u32>,
    projection: &[usize],
    urgency: &Urgency,
    senders: Vec<oneshot::Sender<Result<Chunks>>>,
) {
    let layouts = async {
        let mut layouts = Vec::new();
        for segment in segments {
            layouts.push(reader.layout(manifest, segment, projection, urgency).await?);
        }
        Ok::<_, Error>(layouts)
    };
    let layouts = match layouts.await {
        Ok(layouts) => layouts,
        Err(e) => return senders.into_iter().for_each(|sender| drop(sender.send(Err(e.clone())))),
    };
    let Some(SegmentLayout { object, .. }) = layouts.first() else { return };
    let buffers = RunBuffers::new(object.size, layouts.iter().map(SegmentLayout::ranges), senders);
    let put = |at, bytes: &[u8]| buffers.put(at, bytes);
    let ranges = buffers.ranges();
    if let Err(e) = fetch_pieces(&reader.source, object, ranges, REQUEST_BYTES_MAX, urgency, put).await {
        buffers.fail(&e);
    }
}
