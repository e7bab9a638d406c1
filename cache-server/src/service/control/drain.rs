//! Taking the node out of service without an error to its readers, and bringing it back.

use crate::node::Node;
use forebay_proto::{Error, Result, v1};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// How long streams may take to end when the node drains: a reader that stands still does not end its.
const DRAIN: Duration = Duration::from_secs(10);

/// How long others are asked again whether they serve: before a node drains, as busy ones answer late, and
/// once it has left, while one that drained at the same time comes back.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3));

/// Drains the node, or undoes that. `turn` is held while it begins or ends to drain.
pub async fn drain(node: &Arc<Node>, turn: &Arc<Mutex<()>>, undo: bool) -> Result<v1::DrainReply> {
    let (turning, turn) = (node.clone(), turn.clone());
    // A task of its own: a caller that goes away in between must not leave the node half drained.
    let turned = tokio::spawn(async move {
        let _turn = turn.lock().await;
        match undo {
            true => {
                turning.enter().await;
                tracing::info!("no longer draining");
                Ok(turning.gate.streams())
            }
            false => send_away(&turning).await,
        }
    });
    let before = turned.await.map_err(|e| Error::closed(format!("draining did not end: {e}")))??;
    if undo {
        return Ok(v1::DrainReply { streams_ended: 0, streams_left: before });
    }
    tokio::time::timeout(DRAIN, node.gate.empty()).await.ok();
    let left = node.gate.streams();
    Ok(v1::DrainReply { streams_ended: before.saturating_sub(left), streams_left: left })
}

/// Sends the node's readers to others; returns how many streams there were. `Invalid` if no other node takes
/// readers: then this one goes on.
async fn send_away(node: &Node) -> Result<u64> {
    let none = |why: &str| Error::invalid(format!("no other node could take over: {why}"));
    let others: Vec<String> = node.peers.ownership.others().into_iter().map(|(_, address)| address).collect();
    if others.is_empty() {
        return Err(none("this one is the only one"));
    }
    if !is_any_serving(node, &others, PATIENCE.0).await {
        return Err(none(&format!("none of {} says that it serves", others.join(", "))));
    }
    let before = node.gate.streams();
    tracing::info!(streams = before, "draining: clients are sent to other nodes");
    node.leave().await;
    // Those that were asked may have left at the same time. The one whose address comes first does not wait,
    // and so comes back; the others wait for it.
    let is_first = others.iter().all(|address| node.peers.ownership.me() < address.as_str());
    let patience = if is_first { Duration::ZERO } else { PATIENCE.1 };
    if !is_any_serving(node, &others, patience).await && !node.is_ending.load(Ordering::Relaxed) {
        node.enter().await;
        return Err(none("those that served have left meanwhile, so this one is back in service"));
    }
    node.gate.close();
    Ok(before)
}

/// Whether another node says that it takes readers, at once or within a time.
async fn is_any_serving(node: &Node, others: &[String], patience: Duration) -> bool {
    let began = Instant::now();
    loop {
        if node.peers.is_any_serving(others).await {
            return true;
        }
        if began.elapsed() >= patience {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
