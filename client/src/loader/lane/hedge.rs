//! Hedging: when the reader waits for rows that are late although their node lives, the next node in rank is asked for
//! them too, and who brings the first of them goes on with the lane.
//!
//! The other one answers only from what it holds: a slow owner must not make others fetch from the store. Only whole
//! messages count, and the loser's stream is dropped before the winner's first rows are looked at, so nothing is taken
//! twice. Attempts are paid from the budget of all attempts.

use super::{Lane, Supply};
use crate::loader::feed::Feed;
use crate::node::Node;
use crate::stream::{Event, Head};
use forebay_proto::{Error, Result};
use std::time::Duration;
use tokio::time::sleep;

/// How often it is looked whether the reader waits for rows that are late.
const LOOK: Duration = Duration::from_millis(50);

/// A node that brings what another one is late with.
pub(super) struct Rival {
    pub node: Node,
    pub feed: Feed,
    /// Of the first message with rows.
    pub head: Head,
}

impl Lane {
    /// Ends when another node brings the rows that this lane's own node is late with; mostly never. To be dropped as soon as
    /// that one brings anything.
    pub(super) async fn rival(&self) -> Rival {
        if let (Supply::Cluster(cluster), Some(node), false) = (&self.work.supply, &self.node, self.guest) {
            sleep(cluster.pace().late()).await;
            loop {
                let manifest = self.work.dataset.manifest();
                let other = self.wanted().and_then(|segment| cluster.rival(manifest, segment, node));
                if let Some(other) = other {
                    match self.ask(other).await {
                        Ok(rival) => return rival,
                        Err(e) => tracing::debug!(error = %e, "no other node has what is late"),
                    }
                    break;
                }
                sleep(LOOK).await;
            }
        }
        std::future::pending().await
    }

    /// The segment of the row that the reader waits for, if this lane owes it.
    fn wanted(&self) -> Option<u32> {
        let step = self.work.window.wanted()?.checked_sub(self.epoch.first_seq)?;
        if step < self.done.step || step >= self.epoch.count {
            return None;
        }
        let done = if step == self.done.step { self.done.row } else { 0 };
        let pieces = self.epoch.pieces(step).ok()?;
        let owed = pieces.iter().find(|p| self.segments.has(p.segment) && p.first + p.rows > done)?;
        Some(owed.segment)
    }

    /// Asks another node for this lane's rows, as far as it holds them.
    async fn ask(&self, node: Node) -> Result<Rival> {
        let columns = self.work.dataset.ticket_columns();
        let mut ticket = self.epoch.ticket(self.done.step, columns, &self.segments.0);
        ticket.held_only = true;
        let mut feed = Feed::stream(node.url(), ticket, &self.work.stream).await?;
        loop {
            match feed.next().await? {
                // The schema comes first, without any rows.
                Some(Event::Head(head)) if !head.meta.is_empty() => return Ok(Rival { node, feed, head }),
                Some(_) => {}
                None => return Err(Error::retry(format!("{} had nothing to bring", node.url()))),
            }
        }
    }
}
