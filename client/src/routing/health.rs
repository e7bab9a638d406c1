//! Which nodes can be asked, by what streams and probes have seen of them.
//!
//! A node that failed is out until it says that it serves: it is asked after a pause that grows with each
//! time in a row, and when the topology changes and names it. A node that brings rows is forgiven everything.
//! What the topology says decides nothing: it only confirms later. But readers that take a node back at
//! different times turn to different nodes when the next one dies, and those fetch the same segments.

use super::follow::Published;
use crate::node::Node;
use forebay_proto::{Backoff, Result, v1};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

/// Before a node that failed is asked for the first time, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));

/// How long it may take to answer then.
const PROBE: Duration = Duration::from_secs(1);

/// Within what time many readers ask a node after a change of the topology.
const SPREAD: Duration = Duration::from_millis(200);

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
    let Some(mut topology) = health.upgrade().map(|health| health.topology.subscribe()) else { return };
    loop {
        pause(&mut topology, node.url(), backoff.next()).await;
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

/// Lets a time go by, less if the topology changes meanwhile and names a node.
async fn pause(topology: &mut watch::Receiver<Published>, address: &str, pause: Duration) {
    let until = Instant::now() + pause;
    while let Ok(Ok(())) = timeout_at(until, topology.changed()).await {
        let is_named = |t: &Arc<v1::Topology>| t.nodes.iter().any(|n| n.address == address);
        if topology.borrow_and_update().as_ref().is_some_and(is_named) {
            return sleep(Backoff::once(SPREAD)).await;
        }
    }
    // Nobody may be left to tell anything.
    sleep_until(until).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;
    use tokio_stream::wrappers::TcpListenerStream;
    use tokio_util::task::AbortOnDropHandle;

    fn named(address: &str, revision: u64) -> Published {
        let node = v1::Node { address: address.into(), ..Default::default() };
        Some(Arc::new(v1::Topology { revision, nodes: vec![node], ..Default::default() }))
    }

    #[tokio::test]
    async fn a_node_that_the_topology_names_again_is_asked_at_once() {
        let address = {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            listener.local_addr().unwrap()
        };
        let node = Node::new(&format!("http://{address}")).unwrap();
        let topology = Arc::new(watch::Sender::new(named(node.url(), 1)));
        let health = Arc::new(Health::new(topology.clone()));
        let hour = Duration::from_secs(3600);
        let known = NodeHealth { backoff: Backoff::new(hour, hour), ..NodeHealth::new(node.clone()) };
        health.nodes.lock().insert(node.url().to_owned(), known);
        health.failed(&node);
        sleep(Duration::from_millis(50)).await;
        // It is not there yet when it is asked; the next pause is as long.
        topology.send_replace(named(node.url(), 2));
        sleep(2 * SPREAD).await;
        assert!(health.is_out(node.url()));
        // A server that answers serves, whatever it thinks of the question.
        let listener = TcpListener::bind(address).await.unwrap();
        let server = tonic::transport::Server::builder().add_routes(tonic::service::Routes::default());
        let _server = AbortOnDropHandle::new(tokio::spawn(
            server.serve_with_incoming(TcpListenerStream::new(listener)),
        ));
        topology.send_replace(named("http://another:1", 3));
        sleep(2 * SPREAD).await;
        assert!(health.is_out(node.url()), "the change does not name it");
        let mut told = topology.subscribe();
        topology.send_replace(named(node.url(), 4));
        told.mark_unchanged();
        tokio::time::timeout(10 * SPREAD, told.changed()).await.expect("readers are told").unwrap();
        assert!(!health.is_out(node.url()));
    }
}
