//! The cluster as a client sees it: the topology, which node to ask for a segment, and which nodes are out.
//!
//! Any node tells the topology (`WatchTopology`); a task follows it for as long as the [`Cluster`] lives (`follow`), and
//! goes on to another node that it knows when the one it asked goes away. A cluster of one, or a topology that cannot be
//! had, means the endpoints themselves. Which of a segment's copies is read is for `choice` to say. A node that failed
//! is passed over in favour of others (`health`); the topology only confirms later. How often streams may be opened
//! anew is bounded (`budget`).

mod budget;
mod choice;
mod follow;
mod health;
mod pace;

use crate::direct::Direct;
use crate::endpoints::Endpoints;
use crate::node::Node;
use budget::Budget;
use choice::{Choice, Taste};
use follow::Told;
use forebay_proto::manifest::{Digest, Manifest};
use forebay_proto::ring::Balance;
use forebay_proto::{Error, Result, v1};
use health::Health;
use pace::Pace;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long the first topology may take before the endpoints themselves serve instead.
const FIRST: Duration = Duration::from_secs(5);

/// The nodes that are alive, as last heard.
#[derive(Debug)]
pub struct Cluster {
    entry: Endpoints,
    topology: watch::Receiver<Told>,
    health: Arc<Health>,
    taste: Taste,
    budget: Budget,
    pace: Pace,
    balance: Mutex<Option<Known>>,
    follower: JoinHandle<()>,
}

/// A balance, and of which dataset on which nodes it is.
type Known = (Vec<v1::Node>, Digest, Arc<Balance>);

/// Segments that one node answers for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The node.
    pub node: Node,
    /// Segment numbers, ascending.
    pub segments: Vec<u32>,
}

/// Tells when segments may have other nodes than before.
#[derive(Debug, Clone)]
pub struct News {
    topology: watch::Receiver<Told>,
    back: watch::Receiver<u64>,
}

impl News {
    /// Whether the topology changed or a node came back since the last time this was asked.
    pub fn any(&mut self) -> bool {
        seen(&mut self.topology) | seen(&mut self.back)
    }
}

/// Whether something is new, which from then on it no longer is. What comes right after the look is not missed.
fn seen<T>(news: &mut watch::Receiver<T>) -> bool {
    // Nobody may be left to tell anything: then nothing is new.
    let new = news.has_changed().unwrap_or(false);
    if new {
        news.mark_unchanged();
    }
    new
}

impl Cluster {
    /// Follows the topology that any of `entry` tells. `offset` sets this reader apart from others where readers are to
    /// spread over copies. Must be called within a Tokio runtime.
    pub fn follow(entry: &Endpoints, offset: u64) -> Self {
        let (sender, topology) = watch::channel(None);
        let health = Arc::new(Health::default());
        let follower = tokio::spawn(follow::run(entry.clone(), health.clone(), sender));
        Self {
            entry: entry.clone(),
            topology,
            health,
            taste: Taste { zone: entry.zone().map(str::to_owned), offset },
            budget: Budget::default(),
            pace: Pace::default(),
            balance: Mutex::default(),
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

    /// Tells what is new from now on.
    pub fn news(&self) -> News {
        let mut news = News { topology: self.topology.clone(), back: self.health.back() };
        news.topology.mark_unchanged();
        news
    }

    /// Which node to ask for which of `segments`.
    pub fn groups(&self, manifest: &Manifest, segments: &[u32]) -> Result<Vec<Group>> {
        let topology = self.topology.borrow().clone().unwrap_or_default();
        // A cluster of one is called by the address by which it was reached.
        if topology.nodes.is_empty() || topology.nodes.len() == 1 && topology.cluster == 0 {
            let known = self.entry.nodes();
            let node = known.iter().find(|n| !self.health.is_out(n.url())).unwrap_or(self.entry.node());
            return Ok(vec![Group { node: node.clone(), segments: segments.to_vec() }]);
        }
        let balance = self.balance(&topology, manifest);
        let chosen = self.choice(&topology, &balance).nodes(manifest, segments)?;
        let mut by_node: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for (&segment, node) in segments.iter().zip(chosen) {
            let node = node.ok_or_else(|| Error::retry("no node of the cache takes segments"))?;
            by_node.entry(node).or_default().push(segment);
        }
        let group = |(n, segments): (usize, _)| {
            Ok(Group { node: self.health.node(&topology.nodes[n].address)?, segments })
        };
        by_node.into_iter().map(group).collect()
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
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Another node that most likely has a segment than the one that was asked, and leave to ask it; `None` without
    /// either.
    pub fn rival(&self, manifest: &Manifest, segment: u32, asked: &Node) -> Option<Node> {
        let topology = self.topology.borrow().clone()?;
        let balance = self.balance(&topology, manifest);
        let others = self.choice(&topology, &balance).others(manifest, segment, asked.url()).ok()?;
        let other = &topology.nodes[*others.first()?].address;
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

    fn choice<'a>(&'a self, topology: &'a v1::Topology, balance: &'a Balance) -> Choice<'a> {
        Choice::new(topology, balance, |url| self.health.is_out(url), &self.taste)
    }

    /// The balance of a dataset on the nodes of a topology, computed anew when either changed.
    fn balance(&self, topology: &v1::Topology, manifest: &Manifest) -> Arc<Balance> {
        let mut known = self.balance.lock();
        if let Some((nodes, digest, balance)) = &*known
            && *digest == manifest.digest()
            && *nodes == topology.nodes
        {
            return balance.clone();
        }
        let balance = Arc::new(Balance::of(&topology.nodes, [manifest]));
        *known = Some((topology.nodes.clone(), manifest.digest(), balance.clone()));
        balance
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.follower.abort();
    }
}
