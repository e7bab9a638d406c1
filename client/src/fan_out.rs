//! One call to all nodes of a cluster at once: to free a dataset, to pin or unpin it. A node that fails keeps
//! no other from doing its part.

use crate::endpoints::Endpoints;
use crate::node::Node;
use crate::survey::{self, ask_each};
use forebay_proto::{Error, Kind, Result, v1};
use serde::Serialize;
use std::time::Duration;

/// How long a node of several may take.
const LIMIT: Duration = Duration::from_secs(30);

/// A node that did not do its part, and why.
#[derive(Debug, Clone, Serialize)]
pub struct FailedNode {
    node: String,
    address: String,
    error: String,
    #[serde(skip)]
    kind: Kind,
}

impl FailedNode {
    pub(crate) fn new(node: &v1::Node, e: &Error) -> Self {
        let (name, address) = (node.name.clone(), node.address.clone());
        Self { node: name, address, error: e.message.clone(), kind: e.kind }
    }
}

/// Asks every node of the topology: what the nodes answered, and which did not.
async fn ask_all<T, F: Future<Output = Result<T>>>(
    topology: &v1::Topology,
    call: impl Fn(Node) -> F,
) -> (Vec<T>, Vec<FailedNode>) {
    let (mut replies, mut failed) = (Vec::new(), Vec::new());
    for (node, reply) in ask_each(topology, LIMIT, call).await {
        match reply {
            Ok(reply) => replies.push(reply),
            Err(e) => failed.push(FailedNode::new(&node, &e)),
        }
    }
    (replies, failed)
}

/// An error if some nodes failed: how many did `what`, and why the others did not.
pub fn check(what: &str, replies: usize, failed: &[FailedNode]) -> Result<()> {
    let Some(first) = failed.first() else { return Ok(()) };
    if replies == 0 && failed.len() == 1 {
        return Err(Error::new(first.kind, first.error.clone()));
    }
    let why: Vec<String> = failed.iter().map(|f| format!("{}: {}", f.node, f.error)).collect();
    let message = format!(
        "{what} on {replies} of {} nodes; try again when the others are back, or gone from the topology ({})",
        replies + failed.len(),
        why.join("; ")
    );
    Err(Error::new(first.kind, message))
}

/// What all nodes that did their part dropped or hold, and the nodes that failed.
#[derive(Debug, Clone, Serialize)]
pub struct FanOut {
    /// Files of segments: those that were dropped, or those that are pinned.
    pub files: u64,
    /// What these take on disk.
    pub bytes: u64,
    /// Nodes that did not do their part, and why.
    pub failed: Vec<FailedNode>,
    /// How many nodes did.
    #[serde(skip)]
    pub replies: usize,
}

/// Drops everything under `uri` from every node.
pub async fn free(endpoints: &Endpoints, uri: &str) -> Result<FanOut> {
    free_versions(endpoints, &v1::FreeRequest { uri: uri.to_owned(), ..Default::default() }).await
}

/// Drops a version, or all that newer ones have replaced, from every node.
pub async fn free_versions(endpoints: &Endpoints, request: &v1::FreeRequest) -> Result<FanOut> {
    let topology = survey::topology(endpoints).await?;
    let (replies, failed) =
        ask_all(&topology, |node: Node| async move { node.reply(node.client().free(request.clone())).await })
            .await;
    let files = replies.iter().map(|reply| reply.segments).sum();
    let bytes = replies.iter().map(|reply| reply.bytes).sum();
    Ok(FanOut { files, bytes, failed, replies: replies.len() })
}

/// Pins everything under `uri` on every node, or with `pinned` = false unpins it. `NotFound` if no node had
/// it pinned.
pub async fn pin(endpoints: &Endpoints, uri: &str, pinned: bool) -> Result<FanOut> {
    let topology = survey::topology(endpoints).await?;
    let (replies, failed) = ask_all(&topology, |node: Node| async move {
        let (request, mut client) = (v1::PinRequest { uri: uri.to_owned() }, node.client());
        let reply = match pinned {
            true => node.reply(client.pin(request)).await,
            false => node.reply(client.unpin(request)).await,
        };
        match reply {
            // There was nothing to unpin: the node joined after the pin, or was unpinned before.
            Err(e) if !pinned && e.kind == Kind::NotFound => Ok(Err(e)),
            reply => reply.map(Ok),
        }
    })
    .await;
    if let (true, Some(Err(e))) = (failed.is_empty() && replies.iter().all(Result::is_err), replies.first()) {
        return Err(e.clone());
    }
    let files = replies.iter().flatten().map(|reply| reply.files).sum();
    let bytes = replies.iter().flatten().map(|reply| reply.bytes).sum();
    let replies = replies.iter().flatten().count();
    Ok(FanOut { files, bytes, failed, replies })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    fn topology(count: usize) -> v1::Topology {
        let node =
            |i| v1::Node { name: format!("n{i}"), address: format!("http://n{i}:1"), ..Default::default() };
        v1::Topology { nodes: (0..count).map(node).collect(), ..Default::default() }
    }

    #[tokio::test]
    async fn a_dead_node_keeps_no_other_from_its_part() {
        let asked = &AtomicUsize::new(0);
        let three = topology(3);
        let (replies, failed) = ask_all(&three, |node: Node| async move {
            asked.fetch_add(1, Relaxed);
            match node.url() {
                "http://n0:1" => Err(Error::retry("n0 is gone")),
                url => Ok(url.to_owned()),
            }
        })
        .await;
        assert_eq!(
            (asked.load(Relaxed), &replies[..]),
            (3, &["http://n1:1".into(), "http://n2:1".into()][..])
        );
        let e = check("freed", replies.len(), &failed).unwrap_err();
        assert!(e.message.starts_with("freed on 2 of 3 nodes; try again"), "{e}");
        assert!(e.message.ends_with("(n0: n0 is gone)"), "{e}");
        assert!(check("freed", 3, &[]).is_ok());
    }

    #[tokio::test]
    async fn nodes_are_asked_at_the_same_time() {
        let meeting = &tokio::sync::Barrier::new(3);
        let three = topology(3);
        let all = ask_all(&three, |_| async move {
            meeting.wait().await;
            Ok(())
        });
        let all = tokio::time::timeout(Duration::from_secs(20), all);
        let (replies, failed) = all.await.expect("one waits for the other");
        assert_eq!((replies.len(), failed.len()), (3, 0));
    }
}
