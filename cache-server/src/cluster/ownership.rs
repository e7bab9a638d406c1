//! Which nodes own and hold which segments, as this node sees it: placement over the current topology, with
//! the datasets known here evened out.

use crate::cluster::candidates::{Candidates, candidates};
use crate::disk::policy::Role;
use forebay_proto::manifest::SegmentId;
use forebay_proto::ring::{Balance, Copies, Placement, Ring};
use forebay_proto::{Manifest, v1};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::watch;

/// The owners and holders of segments.
#[derive(Debug)]
pub struct Ownership {
    /// This node's address.
    me: String,
    topology: watch::Receiver<v1::Topology>,
    /// With the receiver that says whether it is still current.
    snapshot: Mutex<(watch::Receiver<v1::Topology>, Arc<Snapshot>)>,
}

/// Which segments this node owns, by one topology.
#[derive(Debug, Clone)]
pub struct Owners {
    me: String,
    snapshot: Arc<Snapshot>,
}

/// A topology, and the balance of the datasets known here on its nodes.
#[derive(Debug, Default)]
struct Snapshot {
    topology: v1::Topology,
    balance: Arc<Balance>,
}

impl Snapshot {
    fn placement(&self) -> Placement<'_> {
        Placement::new(&self.topology, &self.balance)
    }

    fn copies(&self, id: SegmentId, object: &str) -> Copies {
        let placement = self.placement();
        placement.copies(id, placement.replicas(object))
    }

    /// The nodes that are to hold a segment for good.
    fn holders<'a>(&'a self, copies: &'a Copies) -> impl Iterator<Item = &'a v1::Node> {
        copies.order[..copies.count].iter().map(|&n| &self.topology.nodes[n])
    }

    /// What the copy of each segment at the node `me` is to the cluster.
    fn roles<'a>(
        &'a self,
        ids: impl Iterator<Item = SegmentId> + 'a,
        me: &'a str,
    ) -> impl Iterator<Item = Role> + 'a {
        let ring = Ring::new(&self.topology.nodes);
        ids.map(move |id| match self.balance.owner(&ring, id) {
            Some(owner) if self.topology.nodes[owner].address != me => Role::Replica,
            _ => Role::Primary,
        })
    }
}

impl Owners {
    /// Whether this node owns each of some segments.
    pub fn owned<'a>(&'a self, ids: impl Iterator<Item = SegmentId> + 'a) -> impl Iterator<Item = bool> + 'a {
        self.snapshot.roles(ids, &self.me).map(|role| role == Role::Primary)
    }

    /// Whether another one says the same of every segment.
    pub fn agree_with(&self, other: &Self) -> bool {
        let (a, b) = (&*self.snapshot, &*other.snapshot);
        let has_same_balance = || Arc::ptr_eq(&a.balance, &b.balance) || a.balance == b.balance;
        a.topology.nodes == b.topology.nodes && has_same_balance()
    }
}

impl Ownership {
    /// As the node at address `me` sees it.
    pub fn new(me: impl Into<String>, topology: watch::Receiver<v1::Topology>) -> Self {
        let mut seen = topology.clone();
        seen.mark_changed();
        Self { me: me.into(), topology, snapshot: Mutex::new((seen, Arc::default())) }
    }

    /// This node's address.
    pub fn me(&self) -> &str {
        &self.me
    }

    /// The topology, now and whenever it changes.
    pub fn topology(&self) -> watch::Receiver<v1::Topology> {
        self.topology.clone()
    }

    /// Whether there is any other node, leaving ones included.
    pub fn has_others(&self) -> bool {
        let topology = self.topology.borrow();
        topology.nodes.iter().chain(&topology.leaving).any(|n| n.address != self.me)
    }

    /// Names and addresses of the other nodes of the topology.
    pub fn others(&self) -> Vec<(String, String)> {
        let topology = self.topology.borrow();
        let others = topology.nodes.iter().filter(|n| n.address != self.me);
        others.map(|n| (n.name.clone(), n.address.clone())).collect()
    }

    /// Whether a node of this cluster is at an address.
    pub fn is_node(&self, address: &str) -> bool {
        let topology = self.topology.borrow();
        topology.nodes.iter().chain(&topology.leaving).any(|n| n.address == address)
    }

    /// Evens out who owns what of all datasets that are known here. To be called when the nodes or the
    /// datasets have changed; until then the first in rank own. Not for an async thread.
    pub fn balance<'m>(&self, datasets: impl IntoIterator<Item = &'m Manifest>) {
        let nodes = self.snapshot().topology.nodes.clone();
        let balance = Arc::new(Balance::of(&nodes, datasets));
        let mut current = self.snapshot.lock();
        if current.1.topology.nodes == nodes {
            current.1 = Arc::new(Snapshot { topology: current.1.topology.clone(), balance });
        }
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        let mut guard = self.snapshot.lock();
        let (seen, snapshot) = &mut *guard;
        // A topology that nobody can change any more stays as it was.
        if seen.has_changed().unwrap_or(true) {
            let topology = seen.borrow_and_update().clone();
            let same = topology.nodes == snapshot.topology.nodes;
            let balance = if same { snapshot.balance.clone() } else { Arc::default() };
            *snapshot = Arc::new(Snapshot { topology, balance });
        }
        snapshot.clone()
    }

    /// What this node's copy of a segment is to the cluster. Without any nodes every copy is primary.
    pub fn role(&self, id: SegmentId) -> Role {
        self.roles(&[id])[0]
    }

    /// The same of several segments.
    pub fn roles(&self, ids: &[SegmentId]) -> Vec<Role> {
        self.snapshot().roles(ids.iter().copied(), &self.me).collect()
    }

    /// Who owns what now.
    pub fn owners(&self) -> Owners {
        Owners { me: self.me.clone(), snapshot: self.snapshot() }
    }

    /// How many nodes are to hold a segment of an object.
    pub fn replicas(&self, object: &str) -> usize {
        self.snapshot().placement().replicas(object)
    }

    /// Whether this node is to hold a copy of a segment for good.
    pub fn is_to_hold(&self, id: SegmentId, object: &str) -> bool {
        let snapshot = self.snapshot();
        let copies = snapshot.copies(id, object);
        snapshot.holders(&copies).any(|n| n.address == self.me)
    }

    /// For each of some segments, with the URIs of their objects, the other nodes that are to hold a copy.
    pub fn other_holders(&self, segments: &[(SegmentId, String)]) -> Vec<Vec<v1::Node>> {
        let snapshot = self.snapshot();
        let placement = snapshot.placement();
        let others = |(id, object): &(SegmentId, String)| {
            let copies = placement.copies(*id, placement.replicas(object));
            snapshot.holders(&copies).filter(|n| n.address != self.me).cloned().collect()
        };
        segments.iter().map(others).collect()
    }

    /// Whether readers are told to read this node's copy of a hot segment.
    pub fn is_hot_here(&self, id: SegmentId) -> bool {
        let topology = self.topology.borrow();
        let mine = topology.nodes.iter().find(|n| n.address == self.me).map(|n| &n.name);
        let id = id.0.to_bytes();
        mine.is_some_and(|me| topology.hot.iter().any(|h| h.segment == id[..] && h.nodes.contains(me)))
    }

    /// The nodes to ask for a segment that is missing here.
    pub fn candidates(&self, id: SegmentId, object: &str) -> Candidates {
        let snapshot = self.snapshot();
        candidates(&snapshot.topology, &snapshot.copies(id, object), &self.me)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::manifest::Digest;

    impl Ownership {
        /// A cluster of one.
        pub fn alone() -> Self {
            Self::new("", watch::channel(v1::Topology::default()).1)
        }
    }

    #[test]
    fn a_node_that_leaves_owns_nothing_also_where_only_one_other_is_left() {
        let node = |name: &str| v1::Node {
            name: name.into(),
            address: format!("http://{name}"),
            weight: 1.0,
            ..Default::default()
        };
        let role = |nodes| {
            let topology = v1::Topology { nodes, ..Default::default() };
            Ownership::new("http://a", watch::channel(topology).1).role(SegmentId(Digest(7)))
        };
        assert_eq!(role(vec![node("a")]), Role::Primary);
        assert_eq!(role(vec![node("b")]), Role::Replica);
        assert_eq!(role(vec![]), Role::Primary);
    }
}
