//! Segments in transit: filled, not worth storing, and served from memory until every stream that reads its plan has
//! passed them. So a segment that is not stored is still fetched once in an epoch, however many streams read it.

use crate::disk::file::Origin;
use crate::read::budget::{Held, Room};
use crate::read::plans::{Pass, Plans};
use arrow::array::RecordBatch;
use forebay_dataset::ReadySegment;
use forebay_proto::manifest::SegmentId;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;

/// The segments in transit.
#[derive(Debug)]
pub(super) struct Transit {
    plans: Arc<Plans>,
    room: Arc<Room>,
    entries: Mutex<HashMap<SegmentId, Entry>>,
}

#[derive(Debug)]
struct Entry {
    origin: Origin,
    pass: Arc<Pass>,
    parts: Vec<ReadySegment>,
}

impl Transit {
    pub fn new(plans: Arc<Plans>, room: Arc<Room>) -> Self {
        Self { plans, room, entries: Mutex::default() }
    }

    /// What is in transit of a segment.
    pub fn find(&self, id: SegmentId) -> Vec<ReadySegment> {
        self.entries().get(&id).map(|e| e.parts.clone()).unwrap_or_default()
    }

    /// Which object version a segment in transit is of.
    pub fn origin(&self, id: SegmentId) -> Option<Origin> {
        self.entries().get(&id).map(|e| e.origin.clone())
    }

    /// Room for so many bytes, if there is some at once.
    pub fn room(&self, bytes: u64) -> Option<Held> {
        if let Some(held) = self.room.try_hold(bytes) {
            return Some(held);
        }
        self.sweep();
        self.room.try_hold(bytes)
    }

    /// Keeps columns of a segment until its pass is over.
    pub fn put(&self, origin: &Origin, batch: RecordBatch, pass: Arc<Pass>, held: Held) -> ReadySegment {
        let id = origin.id;
        let ready = ReadySegment::in_memory(Arc::new(batch), Some(Arc::new(held)));
        self.plans.keep_in_memory(id, pass.clone());
        let mut entries = self.entries();
        let new = || Entry { origin: origin.clone(), pass: pass.clone(), parts: Vec::new() };
        let entry = entries.entry(id).or_insert_with(new);
        entry.pass = pass;
        entry.parts.push(ready.clone());
        ready
    }

    /// Lets go of what every stream has passed. Frees memory by megabytes: not for an async thread.
    pub fn sweep(&self) {
        let over: Vec<_> = {
            let mut entries = self.entries();
            entries.extract_if(|_, entry| self.plans.is_over(&entry.pass)).collect()
        };
        over.iter().for_each(|(id, _)| self.plans.left_memory(*id));
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<SegmentId, Entry>> {
        self.entries.lock()
    }
}
