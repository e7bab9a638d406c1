//! The cluster as a client sees it: the topology, which node to ask for a segment, and which nodes just failed.
//!
//! Any node tells the topology (`WatchTopology`); a task follows it for as long as the [`Cluster`] lives. A cluster of
//! one, or a topology that cannot be had, means the endpoint itself. A node that failed is passed over for a while in
//! favour of the next in rank; the topology only confirms later.

use crate::access::Node;
use forebay_proto::manifest::Manifest;
use forebay_proto::{Error, Result, ring, v1};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

/// How long a node that failed is passed over while others can answer.
const AVOID: Duration = Duration::from_secs(5);

/// How long the first topology may take before the endpoint itself serves instead.
const FIRST: Duration = Duration::from_secs(5);

/// The nodes that are alive, as last heard.
#[derive(Debug)]
pub struct Cluster {
    endpoint: Node,
    topology: watch::Receiver<Option<v1::Topology>>,
    known: Mutex<HashMap<String, Known>>,
    follower: JoinHandle<()>,
}

#[derive(Debug)]
struct Known {
    node: Node,
    failed: Option<Instant>,
}

/// Segments that one node answers for.
#[derive(Debug, Clone)]
pub struct Group {
    /// The node.
    pub node: Node,
    /// Segment numbers, ascending.
    pub segments: Vec<u32>,
}

impl Cluster {
    /// Follows the topology that `endpoint` tells. Must be called within a Tokio runtime.
    pub fn follow(endpoint: &Node) -> Self {
        let (sender, topology) = watch::channel(None);
        let follower = tokio::spawn(follow(endpoint.clone(), sender));
        Self { endpoint: endpoint.clone(), topology, known: Mutex::default(), follower }
    }

    /// Waits until a topology is known, or until it is clear that none will come soon.
    pub async fn ready(&self) {
        let mut topology = self.topology.clone();
        if timeout(FIRST, topology.wait_for(Option::is_some)).await.is_err() {
            tracing::debug!(endpoint = self.endpoint.url(), "no topology yet, asking the endpoint itself");
        }
    }

    /// Which node to ask for which of `segments`: their owners, or the next in rank for those that failed lately.
    pub fn groups(&self, manifest: &Manifest, segments: &[u32]) -> Result<Vec<Group>> {
        let nodes = self.topology.borrow().as_ref().map(|t| t.nodes.clone()).unwrap_or_default();
        if nodes.len() < 2 {
            return Ok(vec![Group { node: self.endpoint.clone(), segments: segments.to_vec() }]);
        }
        let avoided: Vec<bool> = nodes.iter().map(|n| self.avoided(&n.address)).collect();
        let mut owned: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for &segment in segments {
            let ranked = ring::ranked(&nodes, manifest.segment_id(segment)?);
            let chosen = ranked.iter().find(|&&n| !avoided[n]).or(ranked.first());
            let &chosen = chosen.ok_or_else(|| Error::retry("no node of the cache takes segments"))?;
            owned.entry(chosen).or_default().push(segment);
        }
        let group = |(n, segments): (usize, _)| Ok(Group { node: self.node(&nodes[n].address)?, segments });
        owned.into_iter().map(group).collect()
    }

    /// Notes that a node failed just now.
    pub fn failed(&self, node: &Node) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .entry(node.url().to_owned())
            .or_insert_with(|| Known { node: node.clone(), failed: None })
            .failed = Some(Instant::now());
    }

    fn avoided(&self, address: &str) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(address).and_then(|k| k.failed).is_some_and(|at| at.elapsed() < AVOID)
    }

    /// The node at an address, with the connection that it already has.
    fn node(&self, address: &str) -> Result<Node> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(k) = known.get(address) {
            return Ok(k.node.clone());
        }
        let node = Node::new(address)?;
        known.insert(address.to_owned(), Known { node: node.clone(), failed: None });
        Ok(node)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

/// Keeps the topology current until nobody wants it; a broken watch is taken up again.
async fn follow(endpoint: Node, sender: watch::Sender<Option<v1::Topology>>) {
    let mut pause = Duration::from_millis(100);
    while !sender.is_closed() {
        match endpoint.client().watch_topology(v1::WatchTopologyRequest {}).await {
            Ok(reply) => {
                let mut updates = reply.into_inner();
                while let Ok(Some(topology)) = updates.message().await {
                    pause = Duration::from_millis(100);
                    sender.send_replace(Some(topology));
                }
            }
            Err(status) if status.code() == tonic::Code::Unimplemented => {
                sender.send_replace(Some(v1::Topology::default()));
                return;
            }
            Err(_) => {}
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(5));
    }
}
