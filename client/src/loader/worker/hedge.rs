//! Hedged requests: when the reader waits for rows that are late although their node lives, the next node in
//! rank is asked for them too, and the worker goes on with the one that brings rows first (J. Dean and L. A.
//! Barroso, "The Tail at Scale", Communications of the ACM 56, 2013).
//!
//! The other node brings only the segments that it holds: a slow owner must not make others fetch from the
//! object store. Only whole messages count, and the loser's stream is dropped before the winner's first rows
//! are looked at, so nothing is taken twice. Hedges are paid for from the budget of all attempts.

use super::feed::{Feed, Wire};
use crate::dataset::Dataset;
use crate::loader::position::{Committed, Scope};
use crate::node::Node;
use crate::routing::Cluster;
use crate::stream::{Head, StreamEvent};
use forebay_proto::{Error, Result};
use std::time::Duration;
use tokio::time::sleep;

/// How often it is looked whether the reader waits for rows that are late.
const LOOK: Duration = Duration::from_millis(50);

/// One wait for a node's next message.
pub(super) struct Hedge<'a> {
    pub cluster: &'a Cluster,
    pub node: &'a Node,
    pub scope: Scope<'a>,
    pub committed: Committed,
    pub dataset: &'a Dataset,
    pub wire: Wire,
}

/// Another node's stream, which brought rows first.
pub(super) struct HedgedStream {
    pub node: Node,
    pub feed: Feed,
    /// Of the first message with rows.
    pub head: Head,
}

impl Hedge<'_> {
    /// Ends when another node brings the rows that are late; mostly never. To be dropped as soon as the
    /// worker's own node brings anything.
    pub async fn run(&self) -> HedgedStream {
        sleep(self.cluster.throughput.late_after()).await;
        loop {
            if let Some(segment) = self.wanted()
                && let Some(other) =
                    self.cluster.hedge_node(&self.scope.epoch.manifest, segment, self.node).await
            {
                match self.ask(other).await {
                    Ok(stream) => return stream,
                    Err(e) => tracing::debug!(error = %e, "no other node has the rows that are late"),
                }
                return std::future::pending().await;
            }
            sleep(LOOK).await;
        }
    }

    /// The segment of the row that the reader waits for, if this worker owes it.
    fn wanted(&self) -> Option<u32> {
        let Scope { epoch, buffer, segments } = self.scope;
        let step = buffer.wanted()?.checked_sub(epoch.first_seq)?;
        if step < self.committed.step || step >= epoch.count {
            return None;
        }
        let done = self.committed.rows_of(step);
        let pieces = epoch.pieces(step).ok()?;
        let owed = pieces.iter().find(|p| segments.contains(p.segment) && p.first + p.rows > done)?;
        Some(owed.segment)
    }

    /// Asks another node for the worker's rows, as far as it holds them.
    async fn ask(&self, node: Node) -> Result<HedgedStream> {
        let (Scope { epoch, segments, .. }, columns) = (self.scope, self.dataset.ticket_columns());
        let mut ticket = epoch.ticket(self.committed.step, columns, segments);
        ticket.held_only = true;
        let mut feed = Feed::stream(&node, &self.dataset.manifest, ticket, self.wire).await?;
        loop {
            match feed.next().await? {
                // The schema comes first, without any rows.
                Some(StreamEvent::Head(head)) if !head.meta.is_empty() => {
                    return Ok(HedgedStream { node, feed, head });
                }
                Some(_) => {}
                None => return Err(Error::retry(format!("{} had nothing to bring", node.url()))),
            }
        }
    }
}
