//! Reading the object store without a cache: segments decoded in this process, kept in memory within a bound.
//!
//! A window of a shuffle comes back to each of its segments many times, so decoded segments are kept as long
//! as there is room for them. However many readers want a segment that is not there, it is read
//! once. Nothing is kept on disk, and nothing is shared between processes: that is the cache's work.

use forebay_dataset::stream::{Reading, SegmentSource, StreamSetup, Unwatched};
use forebay_dataset::{ReadySegment, SegmentBatch, SegmentReader, SourceSettings, Urgency};
use forebay_proto::manifest::{DatasetId, Manifest};
use forebay_proto::v1::Counters;
use forebay_proto::{Error, Result};
use futures::future::BoxFuture;
use futures::{FutureExt, TryFutureExt};
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Decoded bytes kept by default: a window of 32 segments of the default size.
pub const MEMORY_BYTES: u64 = 1 << 30;

/// Segments of a window of the default size, twice: sizes are estimates.
const WINDOW_SEGMENTS: u64 = 2 * 16;

/// Bytes of a segment of the default size: tells the cache how many entries to expect.
const SEGMENT_BYTES: u64 = 32 << 20;

/// The object store, read by this process. Cheap to clone; clones share the decoded segments.
#[derive(Clone)]
pub struct Direct(Arc<DirectInner>);

struct DirectInner {
    source: SegmentReader,
    segments: Cache<SegmentKey, Arc<SegmentBatch>, SegmentBytes>,
    hits: AtomicU64,
    joins: AtomicU64,
    misses: AtomicU64,
}

/// A segment's columns: manifest, segment, projection.
type SegmentKey = (DatasetId, u32, Vec<usize>);

/// Weighs decoded segments by the memory that they take.
#[derive(Clone)]
struct SegmentBytes;

impl Weighter<SegmentKey, Arc<SegmentBatch>> for SegmentBytes {
    fn weight(&self, _: &SegmentKey, batch: &Arc<SegmentBatch>) -> u64 {
        (batch.memory_bytes() as u64).max(1)
    }
}

impl Direct {
    /// Keeps up to `memory_bytes` of decoded segments. `Invalid` if the settings contradict each other.
    pub fn new(settings: SourceSettings, memory_bytes: u64) -> Result<Self> {
        let source = SegmentReader::new(settings)?;
        // One shard, for a share of the memory may be smaller than a segment; and half of it for segments
        // that were read more than once, so that those read last have the other half.
        let options = OptionsBuilder::new()
            .shards(1)
            .hot_allocation(0.5)
            .estimated_items_capacity((memory_bytes / SEGMENT_BYTES) as usize + 1)
            .weight_capacity(memory_bytes)
            .build()
            .map_err(|e| Error::invalid(format!("cannot keep {memory_bytes} bytes of segments: {e}")))?;
        let (hash, lifecycle) = (DefaultHashBuilder::default(), DefaultLifecycle::default());
        let segments = Cache::with_options(options, SegmentBytes, hash, lifecycle);
        let [hits, joins, misses] = [const { AtomicU64::new(0) }; 3];
        Ok(Self(Arc::new(DirectInner { source, segments, hits, joins, misses })))
    }

    /// Reads object stores, past the segments that are kept in memory.
    pub fn source(&self) -> &SegmentReader {
        &self.0.source
    }

    /// A stream of rows. It holds as many bytes of segments as are kept, or a window of the default size if
    /// that is more, as segments of one that does not fit would be read again for each message.
    pub(crate) fn stream(&self, reading: Reading) -> StreamSetup {
        let segments = reading.manifest.segments();
        let largest = segments.iter().map(|segment| segment.decoded_bytes).max().unwrap_or_default();
        let window = largest.saturating_mul(WINDOW_SEGMENTS);
        let hooks = Arc::new(Unwatched(self.0.segments.capacity().max(window) as usize));
        StreamSetup { hooks, ..StreamSetup::new(reading, Arc::new(self.clone())) }
    }

    /// What was read and decoded so far.
    pub fn counters(&self) -> Counters {
        let DirectInner { source, segments, hits, joins, misses } = &*self.0;
        let (c, misses) = (source.counters(), misses.load(Relaxed));
        Counters {
            s3_requests: c.s3_requests.load(Relaxed),
            s3_bytes: c.s3_bytes.load(Relaxed),
            s3_footer_requests: c.footer_requests.load(Relaxed),
            s3_footer_bytes: c.footer_bytes.load(Relaxed),
            s3_retries: c.retries.load(Relaxed),
            parquet_bytes_decoded: c.parquet_bytes_decoded.load(Relaxed),
            arrow_bytes_decoded: c.arrow_bytes_decoded.load(Relaxed),
            hits: hits.load(Relaxed),
            joins: joins.load(Relaxed),
            misses,
            // Each that was read is still there, or has gone.
            evictions: misses.saturating_sub(segments.len() as u64),
            ..Default::default()
        }
    }

    /// A segment with some columns, by ascending index into the dataset's schema.
    pub(crate) async fn read(
        &self,
        manifest: &Arc<Manifest>,
        segment: u32,
        projection: &[usize],
    ) -> Result<Arc<SegmentBatch>> {
        let DirectInner { source, segments, hits, joins, misses } = &*self.0;
        let key = (manifest.id(), segment, projection.to_vec());
        if let Some(batch) = segments.get(&key) {
            hits.fetch_add(1, Relaxed);
            return Ok(batch);
        }
        let mut was_read = false;
        let read = async {
            was_read = true;
            let batch = source.read_segment(manifest, segment, projection, &Urgency::demand()).await?;
            Ok::<_, Error>(Arc::new(SegmentBatch::pack_aside(batch).await?))
        };
        // If this reader goes away in mid-read, or fails, the next one in line reads.
        let batch = segments.get_or_insert_async(&key, read).await?;
        let count = if was_read { misses } else { joins };
        count.fetch_add(1, Relaxed);
        Ok(batch)
    }
}

impl SegmentSource for Direct {
    fn get<'a>(&'a self, reading: &'a Reading, segment: u32) -> BoxFuture<'a, Result<ReadySegment>> {
        self.read(&reading.manifest, segment, &reading.projection).map_ok(ReadySegment::from).boxed()
    }
}

impl fmt::Debug for Direct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Direct").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
