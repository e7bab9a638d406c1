//! What one stream of raw blocks sends: throttled by the node's limit, and counted, also by block where the
//! node has much to do, so that blocks that are read much get further copies as segments do.

use crate::auth::limiter::Limiter;
use crate::node::Node;
use crate::objects::ObjectPiece;
use forebay_proto::object::ObjectVersion;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How often the bytes by block are told.
const TELL: Duration = Duration::from_secs(1);

/// Counts what one stream of an object sends.
pub struct ObjectMeter {
    node: Arc<Node>,
    version: Arc<ObjectVersion>,
    /// Of the caller.
    limiter: Option<Arc<Limiter>>,
    /// Bytes sent by block since they were last told.
    bytes: HashMap<u64, f64>,
    told: Instant,
}

impl ObjectMeter {
    /// Counts a stream of a version, within the limits of a principal.
    pub fn new(node: Arc<Node>, version: Arc<ObjectVersion>, limiter: Option<&Arc<Limiter>>) -> Self {
        Self { node, version, limiter: limiter.cloned(), bytes: HashMap::new(), told: Instant::now() }
    }

    /// Waits until the node's limit allows it to send a piece too, and counts it.
    pub async fn sent(&mut self, piece: &ObjectPiece) {
        let bytes = piece.bytes.len() as u64;
        self.node.hot.throttle(bytes).await;
        if let Some(limiter) = &self.limiter {
            limiter.send(bytes).await;
        }
        self.node.events.bytes_served.fetch_add(bytes, Relaxed);
        if self.node.hot.is_counting() {
            *self.bytes.entry(piece.block).or_default() += bytes as f64;
        }
        if self.told.elapsed() >= TELL {
            self.tell();
        }
    }

    fn tell(&mut self) {
        self.told = Instant::now();
        if !self.bytes.is_empty() {
            let by_block = self.bytes.drain().map(|(block, bytes)| (self.version.block_id(block), bytes));
            let heat: Vec<_> = by_block.collect();
            self.node.hot.detection().note(heat);
        }
    }
}

impl Drop for ObjectMeter {
    fn drop(&mut self) {
        self.tell();
    }
}
