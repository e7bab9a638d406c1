//! Hot segments: those read so much that this node cannot serve them all alone.
//!
//! Once a second the node measures its load: against `--serve-bytes-per-s` where that is set, and against its
//! processors. After some seconds of saturation the hottest segments that it owns are copied to the least
//! loaded nodes with room, one more copy each time. The topology tells readers, who spread over all copies.
//! When the node could serve all readers alone again for a while, it withdraws the list, and the other nodes
//! drop their copies.
//!
//! * `limiter`: bytes served a second. `load`: how busy the node is.
//! * `detection`: which segments are hot, and where their copies are. `publisher`: makes copies, and drops
//!   them.

mod detection;
mod limiter;
mod load;
pub(crate) mod publisher;
mod tuning;

pub use detection::OwnedSegment;

use crate::cluster::ownership::Ownership;
use detection::Detection;
use forebay_proto::manifest::SegmentId;
use forebay_proto::v1;
use limiter::Limiter;
use load::LoadMeter;
use parking_lot::Mutex;
use std::time::Duration;

/// How busy the node is, and with which segments.
#[derive(Debug)]
pub struct HotSegments {
    limiter: Limiter,
    load: LoadMeter,
    detection: Mutex<Detection>,
}

impl HotSegments {
    /// Of a node that serves `bytes_per_s` at most.
    pub fn new(bytes_per_s: Option<u64>) -> Self {
        let detection = Mutex::default();
        Self { limiter: Limiter::new(bytes_per_s), load: LoadMeter::new(bytes_per_s), detection }
    }

    /// Waits until the limit of bytes served a second allows these.
    pub async fn throttle(&self, bytes: u64) {
        self.load.served(bytes);
        self.limiter.throttle(bytes).await;
    }

    /// Whether the node has so much to do that streams are to count what they send of each segment.
    pub fn is_counting(&self) -> bool {
        self.load() >= tuning::COUNTING_LOAD
    }

    /// A stream sent these bytes of segments.
    pub fn note(&self, served: Vec<(SegmentId, f64)>) {
        if !served.is_empty() {
            self.detection.lock().note(served);
        }
    }

    /// How busy the node is, 0 to 1.
    pub fn load(&self) -> f64 {
        self.load.get()
    }

    /// Number of segments published as hot.
    pub fn published(&self) -> usize {
        self.detection.lock().published()
    }

    /// A copy was taken for the readers of another node.
    pub fn took_copy(&self, id: SegmentId) {
        self.detection.lock().took_copy(id);
    }

    /// Measures the load since the last time, which was `elapsed` ago, and lets old heat fade.
    fn measure(&self, elapsed: Duration, processor: f64) -> f64 {
        self.detection.lock().fade();
        self.load.measure(elapsed, processor)
    }

    /// How busy the node would be if it served its hot segments alone.
    fn load_alone(&self) -> f64 {
        self.load() * self.detection.lock().share_alone()
    }

    fn hottest(&self) -> Vec<(SegmentId, Option<Vec<String>>)> {
        self.detection.lock().hottest()
    }

    fn publish(&self, segment: &OwnedSegment, copy_at: Option<&str>) -> bool {
        self.detection.lock().publish(segment, copy_at)
    }

    fn withdraw(&self) {
        self.detection.lock().withdraw();
    }

    fn to_wire(&self) -> Vec<v1::HotSegment> {
        self.detection.lock().to_wire()
    }

    /// Takes the copies for others' readers out that the topology has not listed for a while.
    fn take_stale(&self, ownership: &Ownership) -> Vec<SegmentId> {
        self.detection.lock().take_stale(|id| ownership.is_hot_here(id))
    }

    /// Withdraws the segments that this node does not own any more; true if there were any.
    fn withdraw_disowned(&self, ownership: &Ownership) -> bool {
        let published = self.detection.lock().ids();
        // Without the lock: every message that is sent waits for it.
        let roles = ownership.roles(&published);
        self.detection.lock().withdraw_disowned(published.into_iter().zip(roles))
    }
}
