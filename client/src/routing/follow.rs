//! Following the topology: a watch at one node after the other, and which of what they tell to believe.
//!
//! What one node tells later is newer than what it told before. What another node tells is believed unless it
//! is older: a node that lost sight of etcd tells an old topology, and one that never saw it knows only
//! itself. But if nobody tells anything newer, the newest that was
//! told counts: a new etcd counts from the beginning.

use crate::endpoints::Endpoints;
use crate::node::{CONNECT_TIMEOUT, Node};
use forebay_proto::{Backoff, v1};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// How long a node may take to tell a topology where others could be asked.
const TELL: Duration = Duration::from_secs(2);

/// The bound of the pause after a round in which no node told anything new, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// The topology as last heard; `None` before the first.
pub(super) type Published = Option<Arc<v1::Topology>>;

/// Keeps the topology current. A broken watch is taken up again, at the next of the
/// nodes that were named or told of; a node of this machine that died is started again. Readers with
/// different offsets begin at different nodes.
pub(super) async fn run(entry: Endpoints, offset: usize, topology: Arc<watch::Sender<Published>>) {
    let (mut backoff, mut turn) = (Backoff::new(PAUSES.0, PAUSES.1), 0);
    // Of this round: the newest topology that was told and not believed, and whether any was.
    let (mut old, mut heard): (Option<v1::Topology>, bool) = (None, false);
    loop {
        entry.revive().await;
        let nodes = entry.known();
        let node = &nodes[offset.wrapping_add(turn) % nodes.len()];
        match watch_at(node, nodes.len() > 1, &entry, &topology).await {
            Watched::Heard => {
                backoff.reset();
                heard = true;
            }
            Watched::Old(told) if old.as_ref().is_none_or(|o| o.revision < told.revision) => old = Some(told),
            Watched::Old(_) | Watched::Failed => {}
        }
        turn += 1;
        // One round without a pause: the next node may well answer.
        if turn.is_multiple_of(nodes.len()) {
            if let Some(told) = old.take().filter(|told| told.revision > 0 && !heard) {
                tracing::info!(revision = told.revision, "no node tells the topology that was known");
                entry.learn(&told);
                topology.send_replace(Some(Arc::new(told)));
            }
            heard = false;
            sleep(backoff.next()).await;
        }
    }
}

/// How a watch ended.
enum Watched {
    Heard,
    /// The node tells an older topology than is known.
    Old(v1::Topology),
    Failed,
}

async fn watch_at(
    node: &Node,
    others: bool,
    entry: &Endpoints,
    sender: &watch::Sender<Published>,
) -> Watched {
    if others && !node.is_serving(TELL).await {
        return Watched::Failed;
    }
    let mut client = node.client();
    let call = client.watch_topology(v1::WatchTopologyRequest {});
    let Ok(Ok(updates)) = timeout(CONNECT_TIMEOUT, call).await else { return Watched::Failed };
    let mut updates = updates.into_inner();
    let mut heard = Watched::Failed;
    while let Ok(Some(topology)) = updates.message().await {
        if matches!(heard, Watched::Failed) && !is_news(sender.borrow().as_deref(), &topology) {
            return Watched::Old(topology);
        }
        heard = Watched::Heard;
        entry.learn(&topology);
        sender.send_if_modified(|known| {
            let changed = known.as_deref() != Some(&topology);
            if changed {
                *known = Some(Arc::new(topology));
            }
            changed
        });
    }
    heard
}

/// Whether the first that a node tells takes the place of the topology that is known.
fn is_news(known: Option<&v1::Topology>, told: &v1::Topology) -> bool {
    match known {
        None => true,
        Some(known) if known.revision == 0 => true,
        Some(known) if known.cluster == told.cluster => told.revision >= known.revision,
        Some(_) => told.revision > 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(cluster: u64, revision: u64) -> v1::Topology {
        v1::Topology { revision, cluster, ..Default::default() }
    }

    #[test]
    fn old_news_and_hermits_are_not_believed_at_once() {
        let known = told(7, 5);
        assert!(is_news(None, &told(0, 0)));
        assert!(is_news(Some(&told(0, 0)), &known));
        assert!(is_news(Some(&known), &told(7, 5)) && is_news(Some(&known), &told(7, 6)));
        assert!(!is_news(Some(&known), &told(7, 4)));
        assert!(!is_news(Some(&known), &told(0, 0)));
        assert!(is_news(Some(&known), &told(8, 1)), "another etcd counts from the beginning");
    }
}
