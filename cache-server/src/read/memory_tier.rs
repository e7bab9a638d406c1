//! The memory tier: segments that were filled, are not worth storing, and are served from memory until every
//! stream that reads their plan has passed them. So a segment that is not stored is still fetched once in an
//! epoch, however many streams read it.

use super::memory::{MemoryBudget, MemoryPermit};
use super::plans::{Plans, ReadSpan};
use crate::disk::file::Origin;
use forebay_dataset::{ReadySegment, SegmentBatch};
use forebay_proto::manifest::SegmentId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Segments that found no place on disk: in memory until no stream needs them.
#[derive(Debug)]
pub struct MemoryTier {
    plans: Arc<Plans>,
    memory: Arc<MemoryBudget>,
    entries: Mutex<HashMap<SegmentId, TierEntry>>,
}

#[derive(Debug)]
struct TierEntry {
    origin: Origin,
    span: Arc<ReadSpan>,
    parts: Vec<ReadySegment>,
}

impl MemoryTier {
    pub fn new(plans: Arc<Plans>, memory: Arc<MemoryBudget>) -> Self {
        Self { plans, memory, entries: Mutex::default() }
    }

    /// The columns of a segment that are in memory.
    pub fn find(&self, id: SegmentId) -> Vec<ReadySegment> {
        self.entries.lock().get(&id).map(|e| e.parts.clone()).unwrap_or_default()
    }

    /// Which object version a segment in memory is of.
    pub fn origin(&self, id: SegmentId) -> Option<Origin> {
        self.entries.lock().get(&id).map(|e| e.origin.clone())
    }

    /// Memory for a segment of this size, if there is some at once.
    pub fn permit(&self, bytes: u64) -> Option<MemoryPermit> {
        if let Some(permit) = self.memory.try_acquire(bytes) {
            return Some(permit);
        }
        self.sweep();
        self.memory.try_acquire(bytes)
    }

    /// Keeps columns of a segment until its read span is over.
    pub fn put(
        &self,
        origin: &Origin,
        batch: SegmentBatch,
        span: Arc<ReadSpan>,
        held: MemoryPermit,
    ) -> ReadySegment {
        let id = origin.id;
        let ready = ReadySegment::in_memory(Arc::new(batch), Some(Arc::new(held)));
        self.plans.keep_in_memory(id, span.clone());
        let mut entries = self.entries.lock();
        let new = || TierEntry { origin: origin.clone(), span: span.clone(), parts: Vec::new() };
        let entry = entries.entry(id).or_insert_with(new);
        entry.span = span;
        entry.parts.push(ready.clone());
        ready
    }

    /// Drops the segments that every stream has passed. Frees memory by megabytes: not for an async thread.
    pub fn sweep(&self) {
        self.drop_those(|entry| self.plans.is_over(&entry.span));
    }

    /// Drops the segments that are meant, by what they are of. Frees memory likewise.
    pub fn forget(&self, is_meant: impl Fn(&Origin) -> bool) {
        self.drop_those(|entry| is_meant(&entry.origin));
    }

    fn drop_those(&self, is_dropped: impl Fn(&TierEntry) -> bool) {
        // Memory is freed without the lock.
        let dropped: Vec<_> = {
            let mut entries = self.entries.lock();
            entries.extract_if(|_, entry| is_dropped(entry)).collect()
        };
        dropped.iter().for_each(|(id, _)| self.plans.left_memory(*id));
    }
}
