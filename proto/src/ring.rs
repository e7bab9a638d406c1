//! Placement: which nodes own a segment, by weighted rendezvous hashing.
//!
//! Each (node, segment) pair gets the score `-weight / ln(u)`, u in (0, 1) from xxh3-64 of the node's name and the
//! segment's id (Schindelhauer and Schomaker, "Weighted Distributed Hash Tables", 2005). The nodes in falling order of
//! score are owner, then replicas. A node that joins or leaves moves only its own share.
//!
//! It depends on nothing but the segment and the nodes, so that every view of a dataset finds a segment at the same
//! node. The price is chance: with s segments per node the fullest of N nodes has about `1 + sqrt(2 ln N / s)` times the
//! mean.

use crate::manifest::SegmentId;
use crate::v1;
use std::collections::HashMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Some nodes, ready to be asked for the claims on many segments.
#[derive(Debug, Clone)]
pub struct Ring<'a> {
    nodes: &'a [v1::Node],
    /// Index, weight and the name's hash of those that take segments.
    takers: Vec<(usize, f64, u64)>,
}

impl<'a> Ring<'a> {
    /// Nodes of weight 0 or less take nothing.
    pub fn new(nodes: &'a [v1::Node]) -> Self {
        let takes = |(_, n): &(usize, &v1::Node)| n.weight > 0.0 && n.weight.is_finite();
        let taker = |(i, n): (usize, &v1::Node)| (i, n.weight, xxh3_64_with_seed(n.name.as_bytes(), 0));
        Self { nodes, takers: nodes.iter().enumerate().filter(takes).map(taker).collect() }
    }

    /// The indices of the nodes in falling order of claim on `segment`: owner first, then replicas.
    pub fn ranked(&self, segment: SegmentId) -> Vec<usize> {
        let mut scored = self.scored(segment);
        scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| self.name(a.1).cmp(self.name(b.1))));
        scored.into_iter().map(|(_, i)| i).collect()
    }

    /// The index of the segment's owner; `None` without nodes.
    pub fn owner(&self, segment: SegmentId) -> Option<usize> {
        let scored = self.scored(segment).into_iter();
        let best = scored.max_by(|a, b| a.0.total_cmp(&b.0).then_with(|| self.name(b.1).cmp(self.name(a.1))));
        best.map(|(_, i)| i)
    }

    fn scored(&self, segment: SegmentId) -> Vec<(f64, usize)> {
        let bytes = segment.0.to_bytes();
        let score = |&(i, weight, name): &(usize, f64, u64)| {
            // 53 bits, shifted by half a step so that 0 and 1 cannot occur.
            let u = ((xxh3_64_with_seed(&bytes, name) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
            (-weight / u.ln(), i)
        };
        self.takers.iter().map(score).collect()
    }

    fn name(&self, node: usize) -> &str {
        &self.nodes[node].name
    }
}

/// The indices of `nodes` in falling order of claim on `segment`, see [`Ring::ranked`].
pub fn ranked(nodes: &[v1::Node], segment: SegmentId) -> Vec<usize> {
    Ring::new(nodes).ranked(segment)
}

/// The index of the segment's owner; `None` without nodes.
pub fn owner(nodes: &[v1::Node], segment: SegmentId) -> Option<usize> {
    Ring::new(nodes).owner(segment)
}

/// Where the copies of segments belong, by what a topology says.
#[derive(Debug, Clone)]
pub struct Placement<'a> {
    topology: &'a v1::Topology,
    ring: Ring<'a>,
    hot: HashMap<&'a [u8], &'a [String]>,
}

/// The nodes for a segment, by their indices in the topology.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copies {
    /// The owner, its replicas, then all others in the order in which they take over.
    pub order: Vec<usize>,
    /// How many of them are to hold it.
    pub count: usize,
    /// Further nodes that hold a copy for as long as it is much read. Readers then spread over these and all that are
    /// to hold it.
    pub hot: Vec<usize>,
}

impl<'a> Placement<'a> {
    /// Of a topology.
    pub fn new(topology: &'a v1::Topology) -> Self {
        let hot = topology.hot.iter().map(|h| (&h.segment[..], &h.nodes[..])).collect();
        Self { topology, ring: Ring::new(&topology.nodes), hot }
    }

    /// How many nodes are to hold a segment of an object.
    pub fn replicas(&self, object: &str) -> usize {
        let fits = self.topology.datasets.iter().filter(|d| is_under(object, &d.uri));
        let set = fits.max_by_key(|d| d.uri.len()).map_or(self.topology.replicas, |d| d.replicas);
        set.max(1) as usize
    }

    /// The nodes for a segment of which there are to be so many copies: replicas in other zones than the owner's and each
    /// other's, as far as there are such.
    pub fn copies(&self, segment: SegmentId, replicas: usize) -> Copies {
        let mut order = self.ring.ranked(segment);
        let count = replicas.min(order.len());
        let mut zones: Vec<&str> = Vec::with_capacity(count);
        for at in 0..count {
            let zone = |n: usize| self.topology.nodes[n].zone.as_str();
            let other = order[at..].iter().position(|&n| !zones.contains(&zone(n)));
            order[at..=at + other.unwrap_or(0)].rotate_right(1);
            zones.push(zone(order[at]));
        }
        let names = self.hot.get(&segment.0.to_bytes()[..]).copied().unwrap_or_default();
        let node = |name: &String| self.topology.nodes.iter().position(|n| n.name == *name);
        let hot = names.iter().filter_map(node).filter(|n| !order[..count].contains(n)).collect();
        Copies { order, count, hot }
    }

    /// Whether readers are to spread over the copies of a segment.
    pub fn is_hot(&self, segment: SegmentId) -> bool {
        self.hot.contains_key(&segment.0.to_bytes()[..])
    }
}

/// Whether the normalised `uri` is `root` or lies under it, on a `/` boundary.
pub fn is_under(uri: &str, root: &str) -> bool {
    let root = root.trim_end_matches('/');
    uri.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Digest;

    fn node(name: &str, weight: f64) -> v1::Node {
        v1::Node { name: name.into(), weight, ..Default::default() }
    }

    fn id(i: u64) -> SegmentId {
        SegmentId(Digest(xxhash_rust::xxh3::xxh3_128(&i.to_le_bytes())))
    }

    #[test]
    fn weights_are_honoured() {
        let nodes = [node("a", 1.0), node("b", 2.0), node("c", 1.0), node("none", 0.0)];
        let mut count = [0f64; 4];
        for i in 0..100_000 {
            count[owner(&nodes, id(i)).unwrap()] += 1.0;
        }
        for (got, want) in count.into_iter().zip([25_000.0, 50_000.0, 25_000.0, 0.0]) {
            assert!((got - want).abs() <= 0.02 * want, "{count:?}");
        }
    }

    #[test]
    fn a_leaving_node_moves_only_its_own() {
        let three = [node("a", 1.0), node("b", 1.0), node("c", 1.0)];
        for i in 0..1000 {
            let before = ranked(&three, id(i));
            let after = ranked(&three[..2], id(i));
            assert_eq!(owner(&three, id(i)), before.first().copied());
            assert_eq!(before.into_iter().filter(|&n| n != 2).collect::<Vec<_>>(), after);
        }
    }

    fn topology(zones: &[&str], replicas: u32) -> v1::Topology {
        let zoned =
            |(i, zone): (usize, &&str)| v1::Node { zone: (*zone).into(), ..node(&format!("n{i}"), 1.0) };
        v1::Topology { nodes: zones.iter().enumerate().map(zoned).collect(), replicas, ..Default::default() }
    }

    #[test]
    fn replicas_avoid_the_owners_zone() {
        let t = topology(&["a", "a", "a", "b", "c"], 3);
        let place = Placement::new(&t);
        for i in 0..500 {
            let Copies { order, count, hot } = place.copies(id(i), 3);
            assert_eq!((order[0], count, hot.len()), (owner(&t.nodes, id(i)).unwrap(), 3, 0));
            let mut zones: Vec<_> = order[..3].iter().map(|&n| &t.nodes[n].zone).collect();
            zones.sort();
            zones.dedup();
            assert_eq!(zones.len(), 3);
            let mut all = order;
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3, 4]);
            let two = Placement::new(&topology(&["a", "a"], 5)).copies(id(i), 5);
            assert_eq!(two.count, 2, "no more copies than nodes");
        }
    }

    #[test]
    fn the_longest_uri_says_how_many_replicas() {
        let mut t = topology(&["", ""], 0);
        let set = |uri: &str, replicas| v1::Replicas { uri: uri.into(), replicas };
        t.datasets = vec![set("s3://b/a", 2), set("s3://b/a/deep/", 3)];
        let place = Placement::new(&t);
        let of = |uri| place.replicas(uri);
        assert_eq!([of("s3://b/x"), of("s3://b/a/1"), of("s3://b/ab"), of("s3://b/a/deep/2")], [1, 2, 1, 3]);
    }

    #[test]
    fn hot_copies_are_listed_beside_the_others() {
        let mut t = topology(&["", "", ""], 1);
        let order = Placement::new(&t).copies(id(1), 1).order;
        let names = vec!["n0".into(), "n1".into(), "n2".into(), "gone".into()];
        t.hot = vec![v1::HotSegment { segment: id(1).0.to_bytes().to_vec().into(), nodes: names }];
        let place = Placement::new(&t);
        let mut hot = place.copies(id(1), 1).hot;
        hot.push(order[0]);
        hot.sort_unstable();
        assert_eq!(hot, [0, 1, 2]);
        assert!(place.is_hot(id(1)) && !place.is_hot(id(2)) && place.copies(id(2), 1).hot.is_empty());
    }

    #[test]
    fn no_nodes_no_owner() {
        assert_eq!(owner(&[], id(1)), None);
    }
}
