//! Which nodes can be asked, by what streams and probes have seen of them.
//!
//! A node that failed is out until it says that it serves: it is asked after a pause that grows with each
//! time in a row. A node that brings rows is forgiven everything. The topology has no part in this: it only
//! confirms later.

use super::follow::Published;
use crate::node::Node;
use forebay_proto::{Backoff, Result};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// Before a node that failed is asked for the first time, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));

/// How long it may take to answer then.
const PROBE: Duration = Duration::from_secs(1);

/// The state of the nodes.
#[derive(Debug)]
pub(super) struct Health {
    nodes: Mutex<HashMap<String, NodeHealth>>,
    /// Its readers are told when a node comes back, as they are when the topology changes.
    topology: Arc<watch::Sender<Published>>,
}

#[derive(Debug)]
struct NodeHealth {
    node: Node,
    out_since: Option<Instant>,
    /// Begins with longer pauses each time the node is out without having brought rows.
    backoff: Backoff,
}

impl NodeHealth {
    fn new(node: Node) -> Self {
        Self { node, out_since: None, backoff: Backoff::new(PAUSES.0, PAUSES.1) }
    }
}

impl Health {
    pub fn new(topology: Arc<watch::Sender<Published>>) -> Self {
        Self { nodes: Mutex::default(), topology }
    }

    /// The node at an address, with the connection that it already has.
    pub fn node(&self, address: &str) -> Result<Node> {
        let mut nodes = self.nodes.lock();
        if let Some(known) = nodes.get(address) {
            return Ok(known.node.clone());
        }
        let node = Node::new(address)?;
        nodes.insert(address.to_owned(), NodeHealth::new(node.clone()));
        Ok(node)
    }

    pub fn is_out(&self, address: &str) -> bool {
        self.nodes.lock().get(address).is_some_and(|known| known.out_since.is_some())
    }

    /// The addresses of all nodes that are out.
    pub fn out(&self) -> HashSet<String> {
        let nodes = self.nodes.lock();
        let out = nodes.iter().filter(|(_, known)| known.out_since.is_some());
        out.map(|(address, _)| address.clone()).collect()
    }

    /// Notes that a node failed just now: it is out until it answers again.
    pub fn failed(self: &Arc<Self>, node: &Node) {
        let mut nodes = self.nodes.lock();
        let known = nodes.entry(node.url().to_owned()).or_insert_with(|| NodeHealth::new(node.clone()));
        if known.out_since.is_none() {
            known.out_since = Some(Instant::now());
            tracing::debug!(node = node.url(), "a node is out");
            tokio::spawn(readmit(Arc::downgrade(self), node.clone(), known.backoff.clone()));
            known.backoff.next();
        }
    }

    /// Notes that a node brings rows.
    pub fn works(&self, node: &Node) {
        if let Some(known) = self.nodes.lock().get_mut(node.url()) {
            known.backoff.reset();
        }
    }
}

/// Asks a node that is out until it serves, or nobody wants to know any more.
async fn readmit(health: Weak<Health>, node: Node, mut backoff: Backoff) {
    loop {
        sleep(backoff.next()).await;
        if health.strong_count() == 0 {
            return;
        }
        if node.is_serving(PROBE).await {
            break;
        }
    }
    let Some(health) = health.upgrade() else { return };
    let since = health.nodes.lock().get_mut(node.url()).and_then(|known| known.out_since.take());
    let ms = since.map_or(0, |since| since.elapsed().as_millis() as u64);
    tracing::debug!(node = node.url(), ms, "a node is back");
    health.topology.send_modify(|_| ());
}
