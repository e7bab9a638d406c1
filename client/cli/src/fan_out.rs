//! One call to all nodes of a cluster at once. A node that fails keeps no other from doing its part.

use crate::failure::Failure;
use crate::figures;
use forebay_client::Node;
use forebay_client::survey::ask_each;
use forebay_proto::{Error, Kind, Result, v1};
use serde::Serialize;
use std::time::Duration;

/// How long a node of several may take.
const LIMIT: Duration = Duration::from_secs(30);

/// A node that did not do its part, and why.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct FailedNode {
    node: String,
    address: String,
    error: String,
    #[serde(skip)]
    kind: Kind,
}

impl FailedNode {
    pub fn new(node: &v1::Node, e: &Error) -> Self {
        let (name, address) = (node.name.clone(), node.address.clone());
        Self { node: name, address, error: e.message.clone(), kind: e.kind }
    }
}

/// Asks every node of the topology: what the nodes answered, and which did not.
pub(crate) async fn ask_all<T, F: Future<Output = Result<T>>>(
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
pub(crate) fn check(what: &str, replies: usize, failed: &[FailedNode]) -> Result<(), Failure> {
    let Some(first) = failed.first() else { return Ok(()) };
    if replies == 0 && failed.len() == 1 {
        return Err(Error::new(first.kind, first.error.clone()).into());
    }
    let why: Vec<String> = failed.iter().map(|f| format!("{}: {}", f.node, f.error)).collect();
    let nodes = figures::of((replies + failed.len()) as u64, "node");
    let message = format!(
        "{what} on {replies} of {nodes}; run the command again when the others are back, or gone from the topology ({})",
        why.join("; ")
    );
    Err(Error::new(first.kind, message).into())
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
        let Err(Failure::Error(e)) = check("freed", replies.len(), &failed) else { panic!("no error") };
        assert!(e.message.starts_with("freed on 2 of 3 nodes; run the command again"), "{e}");
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
