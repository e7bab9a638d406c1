//! The segments of a worker, and the nodes that they belong to, in mid-epoch too.
//!
//! After a message a worker looks whether its segments have other nodes: because nodes joined, left or came
//! back, or because copies of hot segments were made or dropped. The workers that take over begin exactly
//! where it stands. A change that does not concern the segments costs the comparison, and several changes
//! within [`CALM`] are looked at together. Any node can answer for any segment, so following is never urgent:
//! an epoch that has many streams already is divided no further until the next one.

use crate::node::Node;
use crate::routing::{Cluster, News};
use forebay_proto::manifest::Manifest;
use forebay_proto::{Result, SegmentSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A worker's segments are divided no more often than this.
pub(crate) const CALM: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 1000 });

/// Streams of an epoch, beyond two for each node, that are not divided further.
const STREAMS_MAX: usize = 32;

/// Some of a dataset's segments.
#[derive(Debug, Clone)]
pub(super) struct Assignment {
    set: SegmentSet,
    /// Tells of changes since the segments were assigned.
    news: Option<News>,
    /// When segments were last divided in mid-epoch.
    divided_at: Option<Instant>,
}

impl Assignment {
    /// All segments of a dataset.
    pub fn all(manifest: &Manifest) -> Self {
        Self { set: SegmentSet::all(manifest.segments().len() as u32), news: None, divided_at: None }
    }

    pub fn segments(&self) -> &SegmentSet {
        &self.set
    }

    /// The nodes to ask for these segments, with the part of each.
    pub async fn divide(
        &self,
        cluster: &Cluster,
        manifest: &Arc<Manifest>,
    ) -> Result<Vec<(Node, Assignment)>> {
        // Taken first, so that no change after the look is missed.
        let news = cluster.news();
        let groups = cluster.groups(manifest, self.set.iter().collect()).await?;
        let part = |(node, segments): (Node, Vec<u32>)| {
            let mut set = SegmentSet::new(manifest.segments().len() as u32);
            set.extend(segments);
            (node, Self { set, news: Some(news.clone()), divided_at: self.divided_at })
        };
        Ok(groups.into_iter().map(part).collect())
    }

    /// The same if the segments belong to others than `owner` now. `streams` is how many the epoch has.
    pub async fn redivide(
        &mut self,
        cluster: &Cluster,
        manifest: &Arc<Manifest>,
        owner: &Node,
        streams: usize,
    ) -> Option<Vec<(Node, Assignment)>> {
        if self.divided_at.is_some_and(|at| at.elapsed() < CALM) || !self.news.as_mut()?.any() {
            return None;
        }
        let mut parts = self.divide(cluster, manifest).await.ok()?;
        if matches!(&parts[..], [(only, _)] if only == owner) {
            return None;
        }
        if parts.len() > 1 && streams >= STREAMS_MAX.max(2 * cluster.size()) {
            return None;
        }
        let now = Some(Instant::now());
        parts.iter_mut().for_each(|(_, part)| part.divided_at = now);
        Some(parts)
    }
}
