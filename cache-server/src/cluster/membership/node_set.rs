//! The nodes of the cluster as etcd lists them: the set behind the topology. No I/O, no clock of its own.
//!
//! A node that says it leaves is dropped at once. One whose key has just gone (its lease ran out) is kept for
//! [`SETTLE`]: after a pause or loss of etcd all leases are gone at once and all nodes are back a moment
//! later, and moving every segment to and fro for that would be a storm.
//!
//! Its size is bounded, whatever somebody writes to etcd: those that were there first stay.

use forebay_proto::v1;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a node whose key has gone stays in the topology, counted only while etcd answers.
pub(super) const SETTLE: Duration = Duration::from_secs(3);

/// Nodes of a cluster at most, and datasets with a number of replicas of their own. Readers get the whole
/// list, and each segment is placed by a look at all nodes.
pub(super) const NODES_MAX: usize = 1024;
pub(super) const DATASETS_MAX: usize = 4096;

/// Nodes that name hot segments at most: each names many.
pub(super) const HOT_MAX: usize = 256;

/// What a node's key holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Member {
    #[serde(skip)]
    pub name: String,
    pub address: String,
    pub weight: f64,
    #[serde(default)]
    pub zone: String,
    pub version: String,
    /// Differs for each start of a process.
    pub instance: u64,
    /// It is about to go: it takes no readers any more, but still answers other nodes.
    #[serde(default)]
    pub leaving: bool,
    /// Copies of each segment that it was told the cluster is to hold.
    #[serde(default)]
    pub replicas: u32,
}

impl Member {
    #[expect(
        clippy::disallowed_methods,
        reason = "a restarted node must differ from the one before it, also across boots"
    )]
    pub fn new(node: v1::Node, replicas: u32) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let instance = (now.as_nanos() as u64) ^ (u64::from(std::process::id()) << 48);
        let v1::Node { name, address, weight, zone } = node;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { name, address, weight, zone, version, instance, leaving: false, replicas }
    }

    /// From a key's name and value; `None` if they are not a node's.
    pub fn read(name: &str, value: &[u8]) -> Option<Self> {
        let member: Self = serde_json::from_slice(value).ok()?;
        Some(Self { name: name.to_owned(), ..member })
    }

    pub fn value(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    fn node(&self) -> v1::Node {
        v1::Node {
            name: self.name.clone(),
            address: self.address.clone(),
            weight: self.weight,
            zone: self.zone.clone(),
        }
    }
}

/// The nodes that etcd lists, and those that it no longer does; and what else it says of copies.
#[derive(Debug, Default)]
pub(super) struct NodeSet {
    /// By name; with the end of its time if its key has gone.
    nodes: BTreeMap<String, (Member, Option<Instant>)>,
    /// By URI.
    replicas: BTreeMap<String, u32>,
    /// By the node that says so.
    hot: BTreeMap<String, Vec<v1::HotSegment>>,
}

impl NodeSet {
    /// A node's key was written; false if there is no room for it.
    pub fn put(&mut self, member: Member) -> bool {
        let has_room = has_room(&self.nodes, &member.name, NODES_MAX);
        if has_room {
            self.nodes.insert(member.name.clone(), (member, None));
        }
        has_room
    }

    /// A node's key has gone.
    pub fn remove(&mut self, name: &str, now: Instant) {
        match self.nodes.get_mut(name) {
            Some((member, _)) if member.leaving => drop(self.nodes.remove(name)),
            Some((_, until)) => drop(until.get_or_insert(now + SETTLE)),
            None => {}
        }
    }

    /// Nodes of these names are all that is listed now; what the list says of them, and of copies, follows.
    pub fn relist(&mut self, names: &[&str], now: Instant) {
        let others = self.nodes.keys().filter(|name| !names.contains(&name.as_str()));
        let others: Vec<String> = others.cloned().collect();
        others.iter().for_each(|name| self.remove(name, now));
        // Time without etcd does not count.
        self.nodes
            .values_mut()
            .filter_map(|(_, until)| until.as_mut())
            .for_each(|until| *until = now + SETTLE);
        self.replicas.clear();
        self.hot.clear();
    }

    /// Drops those whose time is over; true if there were any.
    pub fn settle(&mut self, now: Instant) -> bool {
        let before = self.nodes.len();
        self.nodes.retain(|_, (_, until)| until.is_none_or(|until| until > now));
        self.nodes.len() < before
    }

    /// When the next one's time is over.
    pub fn next(&self) -> Option<Instant> {
        self.nodes.values().filter_map(|(_, until)| *until).min()
    }

    /// How many copies there are to be of what lies under a URI; `None`: as of all else. False if there is no
    /// room for it.
    pub fn set_replicas(&mut self, uri: &str, replicas: Option<u32>) -> bool {
        let has_room = replicas.is_none() || has_room(&self.replicas, uri, DATASETS_MAX);
        match replicas {
            Some(n) if has_room => self.replicas.insert(uri.to_owned(), n),
            _ => self.replicas.remove(uri),
        };
        has_room
    }

    /// Segments that a node's readers are to spread; false if there is no room for them.
    pub fn set_hot(&mut self, node: &str, segments: Vec<v1::HotSegment>) -> bool {
        let has_room = segments.is_empty() || has_room(&self.hot, node, HOT_MAX);
        match segments.is_empty() || !has_room {
            true => self.hot.remove(node),
            false => self.hot.insert(node.to_owned(), segments),
        };
        has_room
    }

    /// The topology, nodes by name; its revision is for others to tell.
    pub fn topology(&self) -> v1::Topology {
        let all = self.nodes.values().map(|(member, _)| member);
        let (leaving, all): (Vec<&Member>, Vec<&Member>) = all.partition(|member| member.leaving);
        let set = |(uri, n): (&String, &u32)| v1::Replicas { uri: uri.clone(), replicas: *n };
        v1::Topology {
            replicas: all.iter().map(|m| m.replicas).max().unwrap_or_default(),
            starts: all.iter().fold(0, |starts, m| starts ^ m.instance),
            nodes: all.into_iter().map(Member::node).collect(),
            datasets: self.replicas.iter().map(set).collect(),
            leaving: leaving.into_iter().map(Member::node).collect(),
            hot: self.hot.values().flatten().cloned().collect(),
            ..Default::default()
        }
    }
}

/// Whether a key may be set where there may be `max` of them.
fn has_room<V>(all: &BTreeMap<String, V>, key: &str, max: usize) -> bool {
    all.len() < max || all.contains_key(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str) -> Member {
        Member::new(
            v1::Node {
                name: name.into(),
                address: format!("http://{name}:1"),
                weight: 2.0,
                zone: "z".into(),
            },
            2,
        )
    }

    /// All that is listed now.
    fn replace(nodes: &mut NodeSet, members: Vec<Member>, now: Instant) {
        nodes.relist(&members.iter().map(|m| m.name.as_str()).collect::<Vec<_>>(), now);
        members.into_iter().for_each(|member| assert!(nodes.put(member)));
    }

    fn names(nodes: &NodeSet) -> String {
        nodes.topology().nodes.into_iter().map(|n| n.name).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn values_are_read_as_written() {
        let m = member("a/b");
        assert_eq!(Member::read("a/b", &m.value()), Some(m));
        assert_eq!(Member::read("x", b"not JSON"), None);
    }

    #[test]
    fn who_leaves_goes_at_once_and_who_vanishes_later() {
        let (mut r, t) = (NodeSet::default(), Instant::now());
        replace(&mut r, vec![member("a"), member("b"), member("c")], t);
        r.put(Member { leaving: true, ..member("b") });
        assert_eq!((names(&r).as_str(), r.topology().leaving[0].name.as_str()), ("a c", "b"));
        r.remove("b", t);
        assert!(r.topology().leaving.is_empty());
        r.remove("a", t);
        assert_eq!((names(&r).as_str(), r.next()), ("a c", Some(t + SETTLE)));
        assert!(!r.settle(t + SETTLE / 2));
        assert!(r.settle(t + SETTLE));
        assert_eq!((names(&r).as_str(), r.next()), ("c", None));
    }

    #[test]
    fn a_restarted_node_is_noticed() {
        let (mut r, t) = (NodeSet::default(), Instant::now());
        let first = member("a");
        replace(&mut r, vec![first.clone(), member("b")], t);
        let before = r.topology();
        r.put(first);
        assert_eq!(r.topology(), before);
        r.put(Member { instance: 7, ..member("a") });
        assert!(r.topology().starts != before.starts && r.topology().nodes == before.nodes);
    }

    #[test]
    fn what_is_said_of_copies_is_told() {
        let (mut r, t) = (NodeSet::default(), Instant::now());
        replace(&mut r, vec![member("a"), Member { replicas: 3, ..member("b") }], t);
        r.set_replicas("s3://b", Some(4));
        let (segment, nodes) = (vec![1; 16].into(), vec!["b".into()]);
        r.set_hot("a", vec![v1::HotSegment { segment, nodes, ..Default::default() }]);
        let told = r.topology();
        assert_eq!((told.replicas, told.datasets[0].replicas, told.hot.len()), (3, 4, 1));
        r.set_hot("a", Vec::new());
        r.set_replicas("s3://b", None);
        assert_eq!((r.topology().datasets.len(), r.topology().hot.len()), (0, 0));
    }

    #[test]
    fn what_was_there_first_stays_when_there_is_no_room() {
        let (mut r, t) = (NodeSet::default(), Instant::now());
        let hot = || vec![v1::HotSegment::default()];
        for n in 0..NODES_MAX.max(DATASETS_MAX).max(HOT_MAX) {
            let name = format!("n{n}");
            assert_eq!(r.put(member(&name)), n < NODES_MAX, "{n}");
            assert_eq!(r.set_replicas(&name, Some(2)), n < DATASETS_MAX, "{n}");
            assert_eq!(r.set_hot(&name, hot()), n < HOT_MAX, "{n}");
        }
        assert!(!r.set_replicas("more", Some(2)) && !r.set_hot("more", hot()));
        let told = r.topology();
        assert_eq!(
            (told.nodes.len(), told.datasets.len(), told.hot.len()),
            (NODES_MAX, DATASETS_MAX, HOT_MAX)
        );
        assert!(r.put(Member { weight: 7.0, ..member("n0") }), "one that is there may change");
        r.remove("n0", t);
        r.settle(t + SETTLE);
        assert!(r.put(member("later")) && r.set_replicas("n0", None) && r.set_hot("n0", Vec::new()));
    }

    #[test]
    fn an_etcd_that_lost_everything_changes_nothing_while_nodes_return() {
        let (mut r, t) = (NodeSet::default(), Instant::now());
        replace(&mut r, vec![member("a"), member("b")], t);
        let back = t + 100 * SETTLE;
        replace(&mut r, vec![member("a")], back);
        assert_eq!(names(&r), "a b");
        r.put(member("b"));
        assert!(!r.settle(back + 2 * SETTLE));
        assert_eq!(names(&r), "a b");
    }
}
