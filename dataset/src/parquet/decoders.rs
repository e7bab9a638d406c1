//! The threads that decode: one per core at most, on the blocking pool.

use crate::parquet::chunks::{Chunks, SharedChunks};
use crate::parquet::decode::{DecodeTask, assemble, columns};
use crate::priority::PrioritySemaphore;
use crate::urgency::Urgency;
use arrow::array::RecordBatch;
use forebay_proto::{Error, Result};
use std::sync::Arc;

/// The decoders of one process. Cheap to clone; all clones share the threads.
#[derive(Clone)]
pub(crate) struct Decoders {
    permits: Arc<PrioritySemaphore>,
}

impl Decoders {
    /// One decoder per core.
    pub(crate) fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Self { permits: PrioritySemaphore::new(cores as u64) }
    }

    /// Decodes a segment, columns at once where cores are free. A permit goes with the work, which goes on to
    /// its end even if this future is dropped.
    ///
    /// # Errors
    /// `Corrupt` or `Invalid` if these bytes do not decode, `Closed` if the runtime shuts down.
    pub(crate) async fn decode(
        &self,
        task: DecodeTask,
        chunks: Arc<Chunks>,
        urgency: &Urgency,
    ) -> Result<RecordBatch> {
        let (task, chunks) = (Arc::new(task), SharedChunks(chunks));
        let hands = task.deal(self.permits.limit() as usize);
        let work = hands.iter().map(|hand| async {
            let permit = self.permits.acquire(1, urgency).await;
            let (task, chunks, hand) = (task.clone(), chunks.clone(), hand.clone());
            let uri = task.uri.clone();
            let work = move || {
                let _permit = permit;
                columns(&task, &chunks, &hand)
            };
            let done = tokio::task::spawn_blocking(work).await;
            done.unwrap_or_else(|e| Err(Error::closed(format!("{uri}: decoding: {e}"))))
        });
        let decoded = futures::future::try_join_all(work).await?;
        let mut placed: Vec<_> = hands.into_iter().flatten().zip(decoded.into_iter().flatten()).collect();
        placed.sort_unstable_by_key(|(place, _)| *place);
        assemble(&task, placed.into_iter().map(|(_, column)| column).collect())
    }
}
