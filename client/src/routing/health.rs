//! Which nodes can be asked, by what streams and probes have seen of them.
//!
//! A node that failed is out until it says that it serves: it is asked after a pause that grows with each time in a
//! row. A node that brings rows is forgiven everything. The topology has no part in this: it only confirms later.

use crate::node::Node;
use forebay_proto::Result;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// Before a node that failed is asked for the first time, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));

/// How long it may take to answer then.
const PROBE: Duration = Duration::from_secs(1);

/// What is known of the nodes.
#[derive(Debug, Default)]
pub struct Health {
    known: Mutex<HashMap<String, Known>>,
    /// How often a node came back.
    back: watch::Sender<u64>,
}

#[derive(Debug)]
struct Known {
    node: Node,
    /// Since when it is out.
    out: Option<Instant>,
    /// How often in a row it was.
    times: u32,
}

impl Health {
    /// The node at an address, with the connection that it already has.
    pub fn node(&self, address: &str) -> Result<Node> {
        let mut known = self.lock();
        if let Some(k) = known.get(address) {
            return Ok(k.node.clone());
        }
        let node = Node::new(address)?;
        known.insert(address.to_owned(), Known { node: node.clone(), out: None, times: 0 });
        Ok(node)
    }

    /// Whether a node is out.
    pub fn is_out(&self, address: &str) -> bool {
        self.lock().get(address).is_some_and(|k| k.out.is_some())
    }

    /// Notes that a node failed just now: it is out until it answers again.
    pub fn failed(self: &Arc<Self>, node: &Node) {
        let mut known = self.lock();
        let k = known.entry(node.url().to_owned()).or_insert_with(|| Known {
            node: node.clone(),
            out: None,
            times: 0,
        });
        if k.out.is_none() {
            k.out = Some(Instant::now());
            let pause = (PAUSES.0 * 2u32.saturating_pow(k.times)).min(PAUSES.1);
            k.times = (k.times + 1).min(8);
            tracing::debug!(node = node.url(), "a node is out");
            tokio::spawn(readmit(Arc::downgrade(self), node.clone(), pause));
        }
    }

    /// Tells when nodes come back, from now on.
    pub fn back(&self) -> watch::Receiver<u64> {
        self.back.subscribe()
    }

    /// Notes that a node brings rows.
    pub fn works(&self, node: &Node) {
        if let Some(k) = self.lock().get_mut(node.url()) {
            k.times = 0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.known.lock()
    }
}

/// Asks a node that is out until it serves, or nobody wants to know any more.
async fn readmit(health: Weak<Health>, node: Node, mut pause: Duration) {
    loop {
        sleep(pause).await;
        if health.strong_count() == 0 {
            return;
        }
        if node.is_serving(PROBE).await {
            break;
        }
        pause = (pause * 2).min(PAUSES.1);
    }
    let Some(health) = health.upgrade() else { return };
    let since = health.lock().get_mut(node.url()).and_then(|k| k.out.take());
    let ms = since.map_or(0, |since| since.elapsed().as_millis() as u64);
    tracing::debug!(node = node.url(), ms, "a node is back");
    health.back.send_modify(|times| *times += 1);
}
