//! The cluster as a client sees it: the topology, which node to ask for a segment, and which nodes are out.
//!
//! Any node tells the topology (`WatchTopology`); a task follows it for as long as the [`Cluster`] lives
//! (`follow`), and goes on to another node that it knows when the one it asked goes away. A cluster of one,
//! or a topology that cannot be had, means the endpoints themselves. `router` says which of a segment's
//! copies is read. A node that failed is passed over in favour of others (`health`); the topology only
//! confirms later. How often streams may be opened again is bounded (`budget`).

mod budget;
mod follow;
mod health;
mod router;
mod throughput;

use crate::direct::Direct;
use crate::endpoints::Endpoints;
use crate::node::Node;
use budget::AttemptBudget;
use follow::Published;
use forebay_proto::manifest::{DatasetId, Manifest};
use forebay_proto::ring::Balance;
use forebay_proto::{Error, Result, v1};
use health::Health;
use parking_lot::Mutex;
use router::{ReadPolicy, Router};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use throughput::Throughput;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

/// How long the first topology may take before the endpoints themselves serve instead.
const FIRST: Duration = Duration::from_secs(5);

/// The node that a reader asks for each of `segments`, by its index in the topology; `None` where no node
/// takes segments. This is what a loader computes at the start of each epoch and after each change of the
/// topology.
pub fn route(
    topology: &v1::Topology,
    balance: &Balance,
    manifest: &Manifest,
    segments: &[u32],
) -> Result<Vec<Option<usize>>> {
    Router::new(topology, balance, |_| false, &ReadPolicy::default()).nodes(manifest, segments)
}

/// The nodes that are alive, as last heard.
#[derive(Debug)]
pub(crate) struct Cluster {
    entry: Endpoints,
    topology: watch::Receiver<Published>,
    health: Arc<Health>,
    policy: ReadPolicy,
    budget: AttemptBudget,
    throughput: Throughput,
    balance: Arc<Mutex<Option<BalanceOf>>>,
    follower: JoinHandle<()>,
}

/// The balance of a dataset on some nodes.
#[derive(Debug)]
struct BalanceOf {
    nodes: Vec<v1::Node>,
    dataset: DatasetId,
    balance: Arc<Balance>,
}

/// What routes are computed from, apart from the async threads: it takes seconds for a hundred thousand
/// segments on a thousand nodes.
struct RouteInputs {
    topology: Arc<v1::Topology>,
    manifest: Arc<Manifest>,
    out: HashSet<String>,
    policy: ReadPolicy,
    balance: Arc<Mutex<Option<BalanceOf>>>,
}

/// Segments that one node answers for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    pub node: Node,
    /// Ascending.
    pub segments: Vec<u32>,
}

/// Tells when segments may have other nodes than before.
#[derive(Debug, Clone)]
pub(crate) struct News {
    topology: watch::Receiver<Published>,
    back: watch::Receiver<u64>,
}

impl News {
    /// Whether the topology changed or a node came back since the last time this was asked.
    pub fn any(&mut self) -> bool {
        seen(&mut self.topology) | seen(&mut self.back)
    }
}

/// Whether something is new, which from then on it no longer is. What comes right after the look is not
/// missed.
fn seen<T>(news: &mut watch::Receiver<T>) -> bool {
    // Nobody may be left to tell anything: then nothing is new.
    let new = news.has_changed().unwrap_or(false);
    if new {
        news.mark_unchanged();
    }
    new
}

impl RouteInputs {
    /// The segments of each node, by its index in the topology.
    fn groups(&self, segments: &[u32]) -> Result<BTreeMap<usize, Vec<u32>>> {
        let nodes = self.with_router(|router| router.nodes(&self.manifest, segments))?;
        let mut by_node: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for (&segment, node) in segments.iter().zip(nodes) {
            let node = node.ok_or_else(|| Error::retry("no node of the cache takes segments"))?;
            by_node.entry(node).or_default().push(segment);
        }
        Ok(by_node)
    }

    /// Another node than `asked` that most likely has a segment, by its index in the topology.
    fn other_than(&self, asked: &str, segment: u32) -> Option<usize> {
        self.with_router(|router| router.others(&self.manifest, segment, asked)).ok()?.first().copied()
    }

    fn with_router<T>(&self, ask: impl FnOnce(&Router<'_>) -> T) -> T {
        let balance = self.current_balance();
        ask(&Router::new(&self.topology, &balance, |url| self.out.contains(url), &self.policy))
    }

    /// The balance of the dataset on the nodes of the topology, computed again when either changed.
    fn current_balance(&self) -> Arc<Balance> {
        let (nodes, dataset) = (&self.topology.nodes, self.manifest.id());
        // Held while it is computed: the other workers of an epoch need the same.
        let mut known = self.balance.lock();
        match &*known {
            Some(of) if of.dataset == dataset && of.nodes == *nodes => of.balance.clone(),
            _ => {
                let balance = Arc::new(Balance::of(nodes, [&*self.manifest]));
                *known = Some(BalanceOf { nodes: nodes.clone(), dataset, balance: balance.clone() });
                balance
            }
        }
    }
}

impl Cluster {
    /// Follows the topology that any of `entry` tells. `offset` sets this reader apart from others where
    /// readers are to spread over nodes or copies. Must be called within a Tokio runtime.
    pub fn follow(entry: &Endpoints, offset: u64) -> Self {
        let (sender, topology) = watch::channel(None);
        let health = Arc::new(Health::default());
        let follower = tokio::spawn(follow::run(entry.clone(), health.clone(), offset as usize, sender));
        Self {
            entry: entry.clone(),
            topology,
            health,
            policy: ReadPolicy { zone: entry.zone().map(str::to_owned), offset },
            budget: AttemptBudget::default(),
            throughput: Throughput::default(),
            balance: Arc::default(),
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

    /// Tells of changes from now on.
    pub fn news(&self) -> News {
        let mut news = News { topology: self.topology.clone(), back: self.health.back() };
        news.topology.mark_unchanged();
        news
    }

    /// Which node to ask for which of `segments`.
    pub async fn groups(&self, manifest: &Arc<Manifest>, segments: &Arc<[u32]>) -> Result<Vec<Group>> {
        let topology = self.topology.borrow().clone().unwrap_or_default();
        // A cluster of one is called by the address by which it was reached.
        if topology.nodes.is_empty() || topology.nodes.len() == 1 && topology.cluster == 0 {
            let mut named = self.entry.known().into_iter().take(self.entry.nodes().len());
            let node = named.find(|n| !self.health.is_out(n.url()));
            let node = node.unwrap_or_else(|| self.entry.node().clone());
            return Ok(vec![Group { node, segments: segments.to_vec() }]);
        }
        let (inputs, segments) = (self.route_inputs(topology.clone(), manifest), segments.clone());
        let by_node = spawn_blocking(move || inputs.groups(&segments)).await.map_err(broke_off)??;
        let group = |(n, segments): (usize, _)| {
            Ok(Group { node: self.health.node(&topology.nodes[n].address)?, segments })
        };
        by_node.into_iter().map(group).collect()
    }

    /// Another node that most likely has a segment than the one that was asked, and leave to ask it; `None`
    /// without either.
    pub async fn hedge_node(&self, manifest: &Arc<Manifest>, segment: u32, asked: &Node) -> Option<Node> {
        let topology = self.topology.borrow().clone()?;
        let (inputs, asked) = (self.route_inputs(topology.clone(), manifest), asked.url().to_owned());
        let other = spawn_blocking(move || inputs.other_than(&asked, segment)).await.ok()??;
        self.budget.try_take(Instant::now()).ok()?;
        self.health.node(&topology.nodes[other].address).ok()
    }

    fn route_inputs(&self, topology: Arc<v1::Topology>, manifest: &Arc<Manifest>) -> RouteInputs {
        RouteInputs {
            topology,
            manifest: manifest.clone(),
            out: self.health.out(),
            policy: self.policy.clone(),
            balance: self.balance.clone(),
        }
    }

    /// How many nodes there are, as far as the topology says.
    pub fn size(&self) -> usize {
        self.topology.borrow().as_ref().map_or(0, |t| t.nodes.len())
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
    pub fn throughput(&self) -> &Throughput {
        &self.throughput
    }

    /// Whether any node that is known can be asked.
    pub fn has_nodes(&self) -> bool {
        let topology = self.topology.borrow();
        let told = topology.iter().flat_map(|t| &t.nodes).map(|n| n.address.as_str());
        let named = self.entry.nodes().iter().map(Node::url);
        told.chain(named).any(|url| !self.health.is_out(url))
    }

    /// The object store, if it is to be read when no node answers.
    pub fn fallback(&self) -> Option<&Direct> {
        self.entry.fallback()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

fn broke_off(e: tokio::task::JoinError) -> Error {
    Error::corrupt(format!("choosing nodes for segments broke off: {e}"))
}
