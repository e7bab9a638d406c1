//! Following the topology in mid-epoch: after a message it is looked whether the lane's segments have other nodes by now,
//! because nodes joined, left or came back, or because more copies were made of what is much read, or fewer are left.
//!
//! The lanes that take over begin exactly at the mark. A change that does not concern the segments costs the comparison,
//! and changes that come thick and fast are looked at together, once in a while. Since any node answers for any segment,
//! none has to be followed: an epoch whose streams are many already is divided no further until the next one.

use super::{Lane, Supply, Trouble};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A lane's work is divided no more often than this.
pub(in crate::loader) const CALM: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 1000 });

/// Streams of an epoch, beyond two for each node, that are not divided further.
const MANY: usize = 32;

impl Lane {
    /// The lanes that are to go on, if the segments have other nodes now.
    pub(super) fn follow(&mut self) -> Option<Vec<Lane>> {
        let (Supply::Cluster(cluster), Some(home)) = (&self.work.supply, &self.home) else { return None };
        if self.divided.is_some_and(|at| at.elapsed() < CALM) || !self.news.as_mut()?.any() {
            return None;
        }
        let groups = cluster.groups(self.work.dataset.manifest(), &self.list).ok()?;
        if matches!(&groups[..], [only] if only.node == *home) {
            return None;
        }
        // Each lane holds the epoch, and so does who started them.
        let lanes = Arc::strong_count(&self.epoch) - 1;
        if groups.len() > 1 && lanes >= MANY.max(2 * cluster.size()) {
            return None;
        }
        self.divided = Some(Instant::now());
        // Whatever went wrong before is over: a message came.
        (self.moved, self.trouble) = (false, Trouble::default());
        let lanes = self.divided().ok()?;
        tracing::debug!(step = self.done.step, lanes = lanes.len(), "segments have other nodes");
        Some(lanes)
    }
}
