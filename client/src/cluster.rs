//! The cluster as a client sees it: the topology, which node to ask for a segment, and which nodes are out.
//!
//! Any node tells the topology (`WatchTopology`); a task follows it for as long as the [`Cluster`] lives, and goes on to
//! another node that it knows when the one it asked goes away. A cluster of one, or a topology that cannot be had,
//! means the endpoints themselves. A node that failed is passed over in favour of the next in rank (`health`); the
//! topology only confirms later. How often streams may be opened anew is bounded (`budget`).

mod budget;
mod health;
mod pace;

use crate::access::Node;
use crate::direct::Direct;
use crate::endpoints::Endpoints;
use budget::Budget;
use forebay_proto::manifest::Manifest;
use forebay_proto::{Error, Result, ring, v1};
use health::Health;
use pace::Pace;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// How long the first topology may take before the endpoints themselves serve instead.
const FIRST: Duration = Duration::from_secs(5);

/// How long a node may take to tell a topology where others could be asked.
const TELL: Duration = Duration::from_secs(2);

/// The nodes that are alive, as last heard.
#[derive(Debug)]
pub struct Cluster {
    entry: Endpoints,
    topology: watch::Receiver<Option<v1::Topology>>,
    health: Arc<Health>,
    budget: Budget,
    pace: Pace,
    follower: JoinHandle<()>,
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
    /// Follows the topology that any of `entry` tells. Must be called within a Tokio runtime.
    pub fn follow(entry: &Endpoints) -> Self {
        let (sender, topology) = watch::channel(None);
        let health = Arc::new(Health::default());
        let follower = tokio::spawn(follow(entry.clone(), health.clone(), sender));
        Self {
            entry: entry.clone(),
            topology,
            health,
            budget: Budget::default(),
            pace: Pace::default(),
            follower,
        }
    }

    /// Waits until a topology is known, or until it is clear that none will come soon.
    pub async fn ready(&self) {
        let mut topology = self.topology.clone();
        if timeout(FIRST, topology.wait_for(Option::is_some)).await.is_err() {
            tracing::debug!(endpoint = self.entry.url(), "no topology yet, asking the endpoint itself");
        }
    }

    /// Which node to ask for which of `segments`: their owners, or the next in rank for those that are out.
    pub fn groups(&self, manifest: &Manifest, segments: &[u32]) -> Result<Vec<Group>> {
        let nodes = self.topology.borrow().as_ref().map(|t| t.nodes.clone()).unwrap_or_default();
        if nodes.len() < 2 {
            let known = self.entry.nodes();
            let node = known.iter().find(|n| !self.health.is_out(n.url())).unwrap_or(self.entry.node());
            return Ok(vec![Group { node: node.clone(), segments: segments.to_vec() }]);
        }
        let out: Vec<bool> = nodes.iter().map(|n| self.health.is_out(&n.address)).collect();
        let ring = ring::Ring::new(&nodes);
        let mut owned: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for &segment in segments {
            let ranked = ring.ranked(manifest.segment_id(segment)?);
            let chosen = ranked.iter().find(|&&n| !out[n]).or(ranked.first());
            let &chosen = chosen.ok_or_else(|| Error::retry("no node of the cache takes segments"))?;
            owned.entry(chosen).or_default().push(segment);
        }
        let group =
            |(n, segments): (usize, _)| Ok(Group { node: self.health.node(&nodes[n].address)?, segments });
        owned.into_iter().map(group).collect()
    }

    /// Notes that a node failed just now.
    pub fn failed(&self, node: &Node) {
        self.health.failed(node);
    }

    /// Notes that a node brought rows; such work pays for later attempts.
    pub fn works(&self, node: &Node) {
        self.health.works(node);
        self.budget.earn();
    }

    /// Waits until another attempt after a failure is in order.
    pub async fn may_try_again(&self) {
        self.budget.take().await;
    }

    /// How long messages usually take.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    /// The next node in rank for a segment, beside the one that was asked, and leave to ask it; `None` without either.
    pub fn rival(&self, manifest: &Manifest, segment: u32, asked: &Node) -> Option<Node> {
        let nodes = self.topology.borrow().as_ref().map(|t| t.nodes.clone()).unwrap_or_default();
        let ranked = ring::ranked(&nodes, manifest.segment_id(segment).ok()?);
        let mut others = ranked.into_iter().map(|n| nodes[n].address.as_str());
        let other = others.find(|url| *url != asked.url() && !self.health.is_out(url))?;
        self.budget.try_take(tokio::time::Instant::now()).ok()?;
        self.health.node(other).ok()
    }

    /// Whether any node that is known can be asked.
    pub fn has_nodes(&self) -> bool {
        let topology = self.topology.borrow();
        let told = topology.iter().flat_map(|t| &t.nodes).map(|n| n.address.as_str());
        let named = self.entry.nodes().iter().map(Node::url);
        told.chain(named).any(|url| !self.health.is_out(url))
    }

    /// What to read instead when no node answers.
    pub fn fallback(&self) -> Option<&Direct> {
        self.entry.fallback()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

/// Keeps the topology current until nobody wants it. A broken watch is taken up again, at the next of the nodes that
/// were named or told of.
async fn follow(entry: Endpoints, health: Arc<Health>, sender: watch::Sender<Option<v1::Topology>>) {
    const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
    let (mut pause, mut turn) = (PAUSES.0, 0);
    while !sender.is_closed() {
        let nodes = candidates(&entry, &health, sender.borrow().as_ref());
        let node = &nodes[turn % nodes.len()];
        match watch_at(node, nodes.len() > 1, &sender).await {
            Watched::Heard => pause = PAUSES.0,
            Watched::Unknown if nodes.len() == 1 => {
                sender.send_replace(Some(v1::Topology::default()));
                return;
            }
            Watched::Unknown | Watched::Failed => {}
        }
        turn += 1;
        // One round without a pause: the next node may well answer.
        if turn.is_multiple_of(nodes.len()) {
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }
}

/// How a watch ended.
enum Watched {
    Heard,
    /// The node does not know the call.
    Unknown,
    Failed,
}

async fn watch_at(node: &Node, others: bool, sender: &watch::Sender<Option<v1::Topology>>) -> Watched {
    if others && !node.is_serving(TELL).await {
        return Watched::Failed;
    }
    let mut client = node.client();
    let call = client.watch_topology(v1::WatchTopologyRequest {});
    let mut updates = match timeout(crate::access::CONNECT_TIMEOUT, call).await {
        Ok(Ok(reply)) => reply.into_inner(),
        Ok(Err(status)) if status.code() == tonic::Code::Unimplemented => return Watched::Unknown,
        _ => return Watched::Failed,
    };
    let mut heard = Watched::Failed;
    while let Ok(Some(topology)) = updates.message().await {
        heard = Watched::Heard;
        sender.send_if_modified(|known| {
            let news = is_news(known.as_ref(), &topology);
            if news {
                *known = Some(topology);
            }
            news
        });
    }
    heard
}

/// Whether a topology takes the place of the one that is known. A node that lost sight of etcd may tell an old one, and
/// one that never saw it knows only itself.
fn is_news(known: Option<&v1::Topology>, told: &v1::Topology) -> bool {
    match known {
        None => true,
        Some(known) if known.revision == 0 => true,
        Some(known) if known.cluster == told.cluster => told.revision >= known.revision,
        Some(_) => told.revision > 0,
    }
}

/// The nodes that may be asked for the topology: those that were named, then those told of.
fn candidates(entry: &Endpoints, health: &Health, topology: Option<&v1::Topology>) -> Vec<Node> {
    let mut nodes = entry.nodes().to_vec();
    for address in topology.iter().flat_map(|t| &t.nodes).map(|n| &n.address) {
        if !nodes.iter().any(|n| n.url() == address) {
            nodes.extend(health.node(address).ok());
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(cluster: u64, revision: u64) -> v1::Topology {
        v1::Topology { revision, nodes: Vec::new(), cluster }
    }

    #[test]
    fn old_news_and_hermits_are_not_believed() {
        let known = told(7, 5);
        assert!(is_news(None, &told(0, 0)));
        assert!(is_news(Some(&told(0, 0)), &known));
        assert!(is_news(Some(&known), &told(7, 5)) && is_news(Some(&known), &told(7, 6)));
        assert!(!is_news(Some(&known), &told(7, 4)));
        assert!(!is_news(Some(&known), &told(0, 0)));
        assert!(is_news(Some(&known), &told(8, 1)), "another etcd counts anew");
    }
}
