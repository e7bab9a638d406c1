//! The cluster as a client sees it: the topology, which node to ask for a segment, and which nodes are out.
//!
//! Any node tells the topology (`WatchTopology`); a task follows it for as long as the [`Cluster`] lives
//! (`follow`), and goes on to another node that it knows when the one it asked goes away. A cluster of one,
//! or a topology that cannot be had, means the endpoints themselves. `router` says which of a segment's
//! copies is read. A node that failed is passed over in favour of others (`health`); the topology only
//! confirms later. `policy` decides what follows a failure; `silence` tells a node that is slow from one that
//! is dead. How often streams may be opened again is bounded (`budget`).

mod budget;
mod follow;
mod health;
pub(crate) mod policy;
mod router;
pub(crate) mod silence;
mod throughput;

use crate::endpoints::Endpoints;
use crate::node::{Node, NodeFault};
use budget::AttemptBudget;
use follow::Published;
use forebay_proto::manifest::{DatasetId, Manifest};
use forebay_proto::object::ObjectVersion;
use forebay_proto::ring::Balance;
use forebay_proto::{Error, Result, v1};
use futures::future::join_all;
use health::Health;
use parking_lot::Mutex;
use policy::{Failure, FailureKind, History, Situation, SourceKind};
use router::{ReadPolicy, Router};
use silence::SUSPICION;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use throughput::Throughput;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

/// How long the first topology may take before the endpoints themselves serve instead.
const FIRST: Duration = Duration::from_secs(5);

/// How long a node may take to say that it serves, where the object store can be read instead.
const SERVES: Duration = Duration::from_secs(1);

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
    topology: Arc<watch::Sender<Published>>,
    health: Arc<Health>,
    policy: ReadPolicy,
    budget: AttemptBudget,
    /// How long messages usually take.
    pub throughput: Throughput,
    balances: Balances,
    _follower: AbortOnDropHandle<()>,
}

/// Of the dataset that is read, as last computed.
#[derive(Debug, Clone, Default)]
struct Balances {
    /// On all nodes of the topology.
    all: Arc<Mutex<Option<BalanceOf>>>,
    /// On those that are not out.
    left: Arc<Mutex<Option<BalanceOf>>>,
}

/// The balance of a dataset on some nodes.
#[derive(Debug)]
struct BalanceOf {
    nodes: Vec<v1::Node>,
    dataset: DatasetId,
    balance: Arc<Balance>,
}

/// Tells when segments may have other nodes than before.
#[derive(Debug, Clone)]
pub(crate) struct News(watch::Receiver<Published>);

impl News {
    /// Whether the topology changed or a node came back since the last time this was asked.
    pub fn any(&mut self) -> bool {
        // Nobody may be left to tell anything: then nothing is new.
        let new = self.0.has_changed().unwrap_or(false);
        if new {
            // What comes right after the look is not missed.
            self.0.mark_unchanged();
        }
        new
    }
}

impl Cluster {
    /// Follows the topology that any of `entry` tells. `offset` sets this reader apart from others where
    /// readers are to spread over nodes or copies. Must be called within a Tokio runtime.
    pub fn follow(entry: &Endpoints, offset: u64) -> Self {
        let topology = Arc::new(watch::Sender::new(None));
        let follower = tokio::spawn(follow::run(entry.clone(), offset as usize, topology.clone()));
        Self {
            entry: entry.clone(),
            topology: topology.clone(),
            health: Arc::new(Health::new(topology)),
            policy: ReadPolicy { zone: entry.zone.clone(), offset },
            budget: AttemptBudget::default(),
            throughput: Throughput::default(),
            balances: Balances::default(),
            _follower: AbortOnDropHandle::new(follower),
        }
    }

    /// Waits until a topology is known, or until it is clear that none will come soon.
    pub async fn ready(&self) {
        let mut topology = self.topology.subscribe();
        let is_told = tokio::select! {
            // Mostly it is known, and then nobody is asked.
            biased;
            told = timeout(FIRST, topology.wait_for(Option::is_some)) => told.is_ok(),
            () = self.cannot_be_told() => false,
        };
        if !is_told {
            tracing::debug!(endpoint = self.entry.url(), "no topology yet, asking the endpoint itself");
        }
    }

    /// Returns when no node answers and the object store can be read instead: that is done some time after
    /// the first failure, to which nothing is to be added. One that takes no readers knows who does.
    async fn cannot_be_told(&self) {
        if self.entry.fallback.is_none() {
            return std::future::pending().await;
        }
        let known = self.entry.known();
        let faults = join_all(known.iter().map(|node| node.fault(SERVES))).await;
        let answers = |fault: &Option<NodeFault>| !matches!(fault, Some(NodeFault::Silent(_)));
        if faults.iter().any(answers) {
            std::future::pending::<()>().await;
        }
    }

    /// Tells of changes from now on.
    pub fn news(&self) -> News {
        News(self.topology.subscribe())
    }

    /// Which node to ask for which of `segments`, in ascending order.
    pub async fn groups(
        &self,
        manifest: &Arc<Manifest>,
        segments: Vec<u32>,
    ) -> Result<Vec<(Node, Vec<u32>)>> {
        let topology = self.topology.borrow().clone().unwrap_or_default();
        if let Some(node) = self.only_node(&topology) {
            return Ok(vec![(node, segments)]);
        }
        let by_node = self.route(&topology, manifest, move |router, manifest| {
            let mut by_node: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
            for (&segment, node) in segments.iter().zip(router.nodes(manifest, &segments)?) {
                let node = node.ok_or_else(|| Error::retry("no node of the cache takes segments"))?;
                by_node.entry(node).or_default().push(segment);
            }
            Ok(by_node)
        });
        let group = |(n, segments): (usize, _)| Ok((self.health.node(&topology.nodes[n].address)?, segments));
        by_node.await?.into_iter().map(group).collect()
    }

    /// The node to ask for each of some blocks of an object, and of some that is enough: not for thousands.
    pub fn object_nodes(&self, object: &ObjectVersion, blocks: &[u64]) -> Result<Vec<Node>> {
        let topology = self.topology.borrow().clone().unwrap_or_default();
        if let Some(node) = self.only_node(&topology) {
            return Ok(vec![node; blocks.len()]);
        }
        let (out, balance) = (self.health.out(), Balance::default());
        let router = Router::new(&topology, &balance, |url| out.contains(url), &self.policy);
        let node = |node: Option<usize>| {
            let node = node.ok_or_else(|| Error::retry("no node of the cache takes segments"))?;
            self.health.node(&topology.nodes[node].address)
        };
        router.object_nodes(object, blocks).into_iter().map(node).collect()
    }

    /// The node of a cluster of one, called by the address by which it was reached.
    fn only_node(&self, topology: &v1::Topology) -> Option<Node> {
        if topology.nodes.len() > 1 || topology.nodes.len() == 1 && topology.cluster != 0 {
            return None;
        }
        let mut named = self.entry.known().into_iter().take(self.entry.nodes().len());
        let node = named.find(|n| !self.health.is_out(n.url()));
        Some(node.unwrap_or_else(|| self.entry.node().clone()))
    }

    /// Another node that most likely has a segment than the one that was asked, and leave to ask it; `None`
    /// without either.
    pub async fn hedge_node(&self, manifest: &Arc<Manifest>, segment: u32, asked: &Node) -> Option<Node> {
        let topology = self.topology.borrow().clone()?;
        let asked = asked.url().to_owned();
        let others = move |router: &Router<'_>, manifest: &_| router.others(manifest, segment, &asked);
        let other = *self.route(&topology, manifest, others).await.ok()?.first()?;
        self.budget.try_take(Instant::now()).ok()?;
        self.health.node(&topology.nodes[other].address).ok()
    }

    /// Asks a router apart from the async threads: it takes seconds for a hundred thousand segments on a
    /// thousand nodes.
    async fn route<T: Send + 'static>(
        &self,
        topology: &Arc<v1::Topology>,
        manifest: &Arc<Manifest>,
        ask: impl FnOnce(&Router<'_>, &Manifest) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (topology, manifest, out) = (topology.clone(), manifest.clone(), self.health.out());
        let (policy, balances) = (self.policy.clone(), self.balances.clone());
        let route = move || {
            let balance = current_balance(&balances.all, &topology.nodes, &manifest);
            let router = Router::new(&topology, &balance, |url| out.contains(url), &policy);
            let is_left = |n: &&v1::Node| !out.contains(&n.address);
            let left: Vec<_> = topology.nodes.iter().filter(is_left).cloned().collect();
            if left.len() == topology.nodes.len() {
                return ask(&router, &manifest);
            }
            let heirs = current_balance(&balances.left, &left, &manifest);
            ask(&router.with_heirs(&left, &heirs), &manifest)
        };
        let broke_off = |e| Error::corrupt(format!("choosing nodes for segments broke off: {e}"));
        spawn_blocking(route).await.map_err(broke_off)?
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

    /// The facts that decide what to do after a failure of `source`, and of its node if it has one. A node
    /// that failed is probed the first time; if it does not serve, it is out for all readers until it does.
    pub async fn situation(
        &self,
        failure: &Failure,
        history: &mut History,
        (source, node): (SourceKind, Option<&Node>),
        has_fallback: bool,
    ) -> Situation {
        let is_nodes_fault = matches!(failure.kind, FailureKind::Broken | FailureKind::NodeDead);
        if !is_nodes_fault || source == SourceKind::Hedge {
            return Situation::of(source);
        }
        self.may_try_again().await;
        let mut node_serves = false;
        if let Some(node) = node {
            let is_first = !std::mem::replace(&mut history.probed, true);
            let may_serve = is_first && failure.kind == FailureKind::Broken;
            node_serves = may_serve && node.is_serving(SUSPICION).await;
            if !node_serves {
                self.failed(node);
            }
        }
        Situation { source, node_serves, nodes_left: self.has_nodes(), has_fallback }
    }

    /// Whether any node can be asked: of a cluster one that takes segments. A node that was named counts only
    /// where no other is known: of a cluster the topology's addresses are asked, and a named one may be
    /// spelled otherwise.
    pub fn has_nodes(&self) -> bool {
        let topology = self.topology.borrow().clone().unwrap_or_default();
        match self.only_node(&topology) {
            Some(only) => !self.health.is_out(only.url()),
            None => topology.nodes.iter().any(|n| n.weight > 0.0 && !self.health.is_out(&n.address)),
        }
    }
}

/// The balance of a dataset on some nodes, computed again when either changed.
fn current_balance(
    known: &Mutex<Option<BalanceOf>>,
    nodes: &[v1::Node],
    manifest: &Manifest,
) -> Arc<Balance> {
    // Held while it is computed: the other workers of an epoch need the same.
    let mut known = known.lock();
    match &*known {
        Some(of) if of.dataset == manifest.id() && of.nodes == nodes => of.balance.clone(),
        _ => {
            let balance = Arc::new(Balance::of(nodes, [manifest]));
            let (nodes, dataset) = (nodes.to_vec(), manifest.id());
            *known = Some(BalanceOf { nodes, dataset, balance: balance.clone() });
            balance
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Access;
    use forebay_dataset::SourceSettings;

    #[tokio::test]
    async fn who_can_read_the_object_store_does_not_wait_for_nodes_that_are_gone() {
        let mut gone = Endpoints::parse("127.0.0.1:1").unwrap();
        let limit = FIRST - Duration::from_secs(1);
        let waits = timeout(Duration::from_secs(1), Cluster::follow(&gone, 0).ready()).await;
        assert!(waits.is_err(), "without it a topology is waited for");
        let Access::Direct(direct) = Access::direct(SourceSettings::default()).unwrap() else {
            unreachable!()
        };
        gone.fallback = Some(direct);
        let ready = timeout(limit, Cluster::follow(&gone, 0).ready()).await;
        assert!(ready.is_ok(), "a reader with a fallback still waits after {limit:?}");
    }
}
