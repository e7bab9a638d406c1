//! The segments that were written to disk lately: what replication has to look at.

use forebay_proto::manifest::SegmentId;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use tokio::sync::Notify;

/// Segments that are remembered at most.
const SEGMENTS_MAX: usize = 64 << 10;

/// Segments written since the last look. Cheap to clone; clones share the memory.
#[derive(Debug, Clone, Default)]
pub struct RecentWrites(Arc<Writes>);

#[derive(Debug)]
struct Writes {
    /// `None`: too many to remember.
    segments: Mutex<Option<HashSet<SegmentId>>>,
    written: Notify,
}

impl Default for Writes {
    fn default() -> Self {
        Self { segments: Mutex::new(Some(HashSet::new())), written: Notify::new() }
    }
}

impl RecentWrites {
    /// Remembers a segment.
    pub fn note(&self, id: SegmentId) {
        let mut segments = self.0.segments.lock();
        match &mut *segments {
            Some(ids) if ids.len() < SEGMENTS_MAX => drop(ids.insert(id)),
            _ => *segments = None,
        }
        drop(segments);
        self.0.written.notify_one();
    }

    /// Waits until there are some.
    pub async fn any(&self) {
        while self.0.segments.lock().as_ref().is_some_and(HashSet::is_empty) {
            self.0.written.notified().await;
        }
    }

    /// Takes those that there are now; `None`: only a look at the whole disk cache finds them.
    pub fn take(&self) -> Option<HashSet<SegmentId>> {
        self.0.segments.lock().replace(HashSet::new())
    }
}
