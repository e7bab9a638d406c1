//! Reading the object store without a cache: segments decoded in this process, kept in memory within a bound.
//!
//! A window of a shuffle comes back to each of its segments many times, so decoded segments are kept until
//! [`Direct::memory_bytes`] are exceeded; then the one used longest ago goes. However many readers want a segment that is
//! not there, it is read once. Nothing is kept on disk, and nothing is shared between processes: that is the cache's
//! work.

use arrow::array::RecordBatch;
use forebay_dataset::stream::{Reading, Segments};
use forebay_dataset::{ReadySegment, SegmentReader, SourceSettings, Urgency};
use forebay_proto::manifest::{DatasetId, Manifest};
use forebay_proto::v1::Counters;
use forebay_proto::{Error, Result};
use futures::future::BoxFuture;
use futures::{FutureExt, TryFutureExt};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::OnceCell;

/// Decoded bytes kept unless told otherwise: a window of 32 segments of the default size.
pub const MEMORY_BYTES: u64 = 1 << 30;

/// The object store, read by this process. Cheap to clone; clones share the decoded segments.
#[derive(Clone)]
pub struct Direct(Arc<DirectInner>);

struct DirectInner {
    source: SegmentReader,
    memory_bytes: u64,
    memory: Mutex<Memory>,
}

/// A segment's columns: manifest, segment, projection.
type Key = (DatasetId, u32, Vec<usize>);

#[derive(Default)]
struct Memory {
    entries: HashMap<Key, Entry>,
    /// Bytes of all entries that are filled.
    bytes: u64,
    /// Counts uses: tells which was longest ago.
    clock: u64,
    hits: u64,
    joins: u64,
    misses: u64,
    evictions: u64,
}

struct Entry {
    cell: Arc<OnceCell<Arc<RecordBatch>>>,
    /// 0 while it is being filled.
    bytes: u64,
    used: u64,
}

impl Direct {
    /// `Invalid` if the settings contradict each other.
    pub fn new(settings: SourceSettings, memory_bytes: u64) -> Result<Self> {
        let source = SegmentReader::new(settings)?;
        Ok(Self(Arc::new(DirectInner { source, memory_bytes, memory: Mutex::default() })))
    }

    /// The object stores.
    pub fn source(&self) -> &SegmentReader {
        &self.0.source
    }

    /// Decoded bytes that are kept at most.
    pub fn memory_bytes(&self) -> u64 {
        self.0.memory_bytes
    }

    /// What was read and decoded so far.
    pub fn counters(&self) -> Counters {
        let c = self.0.source.counters();
        let m = self.memory();
        Counters {
            s3_requests: c.s3_requests.load(Relaxed),
            s3_bytes: c.s3_bytes.load(Relaxed),
            s3_footer_requests: c.footer_requests.load(Relaxed),
            s3_footer_bytes: c.footer_bytes.load(Relaxed),
            s3_retries: c.retries.load(Relaxed),
            parquet_bytes_decoded: c.parquet_bytes_decoded.load(Relaxed),
            arrow_bytes_decoded: c.arrow_bytes_decoded.load(Relaxed),
            hits: m.hits,
            joins: m.joins,
            misses: m.misses,
            evictions: m.evictions,
            ..Default::default()
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.0.memory.lock()
    }

    /// A segment with some columns, by ascending index into the dataset's schema.
    pub(crate) async fn read(
        &self,
        manifest: &Arc<Manifest>,
        segment: u32,
        projection: &[usize],
    ) -> Result<Arc<RecordBatch>> {
        let key = (manifest.id(), segment, projection.to_vec());
        let cell = self.memory().cell(&key);
        // If this reader goes away in mid-read, the next one in line reads.
        let filled = cell
            .get_or_try_init(|| async {
                let batch =
                    self.0.source.read_segment(manifest, segment, projection, &Urgency::demand()).await?;
                self.memory().misses += 1;
                Ok::<_, Error>(Arc::new(batch))
            })
            .await;
        let mut memory = self.memory();
        match filled {
            Ok(batch) => {
                memory.filled(&key, &cell, batch.get_array_memory_size() as u64, self.0.memory_bytes);
                Ok(batch.clone())
            }
            Err(e) => {
                memory.forget(&key, &cell);
                Err(e)
            }
        }
    }
}

impl Memory {
    fn cell(&mut self, key: &Key) -> Arc<OnceCell<Arc<RecordBatch>>> {
        self.clock += 1;
        let used = self.clock;
        match self.entries.get_mut(key) {
            Some(entry) => {
                entry.used = used;
                match entry.cell.initialized() {
                    true => self.hits += 1,
                    false => self.joins += 1,
                }
                entry.cell.clone()
            }
            None => {
                let cell = Arc::new(OnceCell::new());
                self.entries.insert(key.clone(), Entry { cell: cell.clone(), bytes: 0, used });
                cell
            }
        }
    }

    /// Counts a filled entry once, and evicts others until the bound holds.
    fn filled(&mut self, key: &Key, cell: &Arc<OnceCell<Arc<RecordBatch>>>, bytes: u64, limit: u64) {
        match self.entries.get_mut(key) {
            Some(entry) if entry.bytes == 0 && Arc::ptr_eq(&entry.cell, cell) => entry.bytes = bytes.max(1),
            _ => return,
        }
        self.bytes += bytes.max(1);
        while self.bytes > limit {
            let oldest = self.entries.iter().filter(|(_, e)| e.bytes > 0).min_by_key(|(_, e)| e.used);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else { break };
            if let Some(entry) = self.entries.remove(&oldest) {
                self.bytes -= entry.bytes;
                self.evictions += 1;
            }
        }
    }

    /// Drops an entry whose read failed, unless somebody else is trying again.
    fn forget(&mut self, key: &Key, cell: &Arc<OnceCell<Arc<RecordBatch>>>) {
        let alone = Arc::strong_count(cell) <= 2;
        if alone && self.entries.get(key).is_some_and(|e| e.bytes == 0 && Arc::ptr_eq(&e.cell, cell)) {
            self.entries.remove(key);
        }
    }
}

impl Segments for Direct {
    fn get<'a>(&'a self, reading: &'a Reading, segment: u32) -> BoxFuture<'a, Result<ReadySegment>> {
        self.read(&reading.manifest, segment, &reading.projection).map_ok(ReadySegment::from).boxed()
    }
}

impl fmt::Debug for Direct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Direct").field("memory_bytes", &self.0.memory_bytes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
