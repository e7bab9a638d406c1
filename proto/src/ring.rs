//! Placement: which nodes own a segment, by weighted rendezvous hashing.
//!
//! Each (node, segment) pair gets the score `-weight / ln(u)`, u in (0, 1) from xxh3-64 of the node's name
//! and the segment's id (Schindelhauer and Schomaker, "Weighted Distributed Hash Tables", 2005). The nodes in
//! falling order of score are owner, then replicas. A node that joins or leaves moves only its own share.
//!
//! So far it depends on nothing but the segment and the nodes, and chance makes loads uneven: with s segments
//! per node the fullest of N nodes has about `1 + sqrt(2 ln N / s)` times the mean. A [`Balance`] evens them
//! out for a dataset: a node that has its share and a little more takes no further segment, which goes to the
//! next in rank (Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2018). Views of
//! a dataset may disagree about the few segments that this moves; then one is copied from node to node, never
//! wrong.

use crate::hash::xxh3_64_with_seed;
use crate::manifest::{Manifest, SegmentId};
use crate::v1;
use std::collections::HashMap;

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
        let mut scored: Vec<_> = self.scored(segment).collect();
        scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| self.name(a.1).cmp(self.name(b.1))));
        scored.into_iter().map(|(_, i)| i).collect()
    }

    /// The index of the segment's owner; `None` without nodes.
    pub fn owner(&self, segment: SegmentId) -> Option<usize> {
        let best = self
            .scored(segment)
            .max_by(|a, b| a.0.total_cmp(&b.0).then_with(|| self.name(b.1).cmp(self.name(a.1))));
        best.map(|(_, i)| i)
    }

    fn scored(&self, segment: SegmentId) -> impl Iterator<Item = (f64, usize)> + '_ {
        let bytes = segment.0.to_bytes();
        let score = move |&(i, weight, name): &(usize, f64, u64)| {
            // 53 bits, shifted by half a step so that 0 and 1 cannot occur.
            let u = ((xxh3_64_with_seed(&bytes, name) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
            (-weight / u.ln(), i)
        };
        self.takers.iter().map(score)
    }

    fn name(&self, node: usize) -> &str {
        &self.nodes[node].name
    }
}

/// How much more than its share of a dataset a node may own.
const SLACK: f64 = 1.05;

/// Segments that are not owned by the first node in rank, because that one has its share already.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Balance(HashMap<SegmentId, usize>);

impl Balance {
    /// For datasets, each balanced by itself; where several hold a segment, the largest of them decides.
    /// Scores every segment on every node: milliseconds for 100,000 on 3, half a second on 256.
    pub fn of<'m>(nodes: &[v1::Node], datasets: impl IntoIterator<Item = &'m Manifest>) -> Self {
        let ids =
            |m: &Manifest| (0..m.segments().len() as u32).filter_map(|s| m.segment_id(s).ok()).collect();
        Self::of_segments(nodes, datasets.into_iter().map(ids).collect())
    }

    /// The same of datasets given by their segments.
    pub fn of_segments(nodes: &[v1::Node], mut datasets: Vec<Vec<SegmentId>>) -> Self {
        let ring = Ring::new(nodes);
        let total: f64 = ring.takers.iter().map(|(_, weight, _)| weight).sum();
        // No order but that of the ids themselves may matter: nodes learn of datasets in any.
        datasets.iter_mut().for_each(|ids| {
            ids.sort_unstable();
            ids.dedup();
        });
        datasets.sort_unstable_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        let (mut owners, mut moved) = (HashMap::new(), HashMap::new());
        let several = datasets.len() > 1;
        for ids in datasets {
            let room = |(n, weight, _): &(usize, f64, u64)| {
                (*n, (SLACK * ids.len() as f64 * weight / total).ceil() as i64)
            };
            let mut room: HashMap<usize, i64> = ring.takers.iter().map(room).collect();
            let mut has_room = |n: usize| {
                let room = room.entry(n).or_default();
                *room -= 1;
                *room >= 0
            };
            for id in ids {
                if let Some(&owner) = owners.get(&id) {
                    has_room(owner);
                    continue;
                }
                let Some(first) = ring.owner(id) else { break };
                let owner = match has_room(first) {
                    true => first,
                    false => {
                        let next = ring.ranked(id).into_iter().skip(1).find(|&n| has_room(n));
                        let owner = next.unwrap_or(first);
                        moved.insert(id, owner);
                        owner
                    }
                };
                if several {
                    owners.insert(id, owner);
                }
            }
        }
        Self(moved)
    }

    /// The nodes for a segment in falling order of claim, the owner first.
    fn order(&self, ring: &Ring<'_>, segment: SegmentId) -> Vec<usize> {
        let mut order = ring.ranked(segment);
        let owner = self.0.get(&segment).and_then(|owner| order.iter().position(|n| n == owner));
        order[..owner.map_or(0, |at| at + 1)].rotate_right(usize::from(owner.is_some()));
        order
    }

    /// The index of a segment's owner; `None` without nodes.
    pub fn owner(&self, ring: &Ring<'_>, segment: SegmentId) -> Option<usize> {
        self.0.get(&segment).copied().or_else(|| ring.owner(segment))
    }
}

/// Where the copies of segments belong, by what a topology says.
#[derive(Debug, Clone)]
pub struct Placement<'a> {
    topology: &'a v1::Topology,
    balance: &'a Balance,
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
    /// Further nodes that hold a copy for as long as it is much read. Readers then spread over these and all
    /// that are to hold it.
    pub hot: Vec<usize>,
}

impl<'a> Placement<'a> {
    /// Of a topology, with a balance of its nodes.
    pub fn new(topology: &'a v1::Topology, balance: &'a Balance) -> Self {
        let hot = topology.hot.iter().map(|h| (&h.segment[..], &h.nodes[..])).collect();
        Self { topology, balance, ring: Ring::new(&topology.nodes), hot }
    }

    /// How many nodes are to hold a segment of an object.
    pub fn replicas(&self, object: &str) -> usize {
        let fits = self.topology.datasets.iter().filter(|d| is_under(object, &d.uri));
        let set = fits.max_by_key(|d| d.uri.len()).map_or(self.topology.replicas, |d| d.replicas);
        set.max(1) as usize
    }

    /// The nodes for a segment with `replicas` copies: replicas in other zones than the owner's and each
    /// other's, as far as there are such.
    pub fn copies(&self, segment: SegmentId, replicas: usize) -> Copies {
        let mut order = self.balance.order(&self.ring, segment);
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

    /// The owner of a segment; `None` without nodes. Much cheaper than [`Placement::copies`].
    pub fn owner(&self, segment: SegmentId) -> Option<usize> {
        self.balance.owner(&self.ring, segment)
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
    use crate::manifest::{Digest, Object, SegmentSize};

    fn ranked(nodes: &[v1::Node], segment: SegmentId) -> Vec<usize> {
        Ring::new(nodes).ranked(segment)
    }

    fn owner(nodes: &[v1::Node], segment: SegmentId) -> Option<usize> {
        Ring::new(nodes).owner(segment)
    }

    fn node(name: &str, weight: f64) -> v1::Node {
        v1::Node { name: name.into(), weight, ..Default::default() }
    }

    fn id(i: u64) -> SegmentId {
        SegmentId(Digest(crate::hash::xxh3_128(&i.to_le_bytes())))
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
        let none = Balance::default();
        let t = topology(&["a", "a", "a", "b", "c"], 3);
        let place = Placement::new(&t, &none);
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
            let two = Placement::new(&topology(&["a", "a"], 5), &none).copies(id(i), 5);
            assert_eq!(two.count, 2, "no more copies than nodes");
        }
    }

    #[test]
    fn the_longest_uri_says_how_many_replicas() {
        let none = Balance::default();
        let mut t = topology(&["", ""], 0);
        let set = |uri: &str, replicas| v1::Replicas { uri: uri.into(), replicas };
        t.datasets = vec![set("s3://b/a", 2), set("s3://b/a/deep/", 3)];
        let place = Placement::new(&t, &none);
        let of = |uri| place.replicas(uri);
        assert_eq!([of("s3://b/x"), of("s3://b/a/1"), of("s3://b/ab"), of("s3://b/a/deep/2")], [1, 2, 1, 3]);
    }

    #[test]
    fn hot_copies_are_listed_beside_the_others() {
        let none = Balance::default();
        let mut t = topology(&["", "", ""], 1);
        let order = Placement::new(&t, &none).copies(id(1), 1).order;
        let names = vec!["n0".into(), "n1".into(), "n2".into(), "gone".into()];
        let segment = id(1).0.to_bytes().to_vec().into();
        t.hot = vec![v1::HotSegment { segment, nodes: names, ..Default::default() }];
        let place = Placement::new(&t, &none);
        let mut hot = place.copies(id(1), 1).hot;
        hot.push(order[0]);
        hot.sort_unstable();
        assert_eq!(hot, [0, 1, 2]);
        assert!(place.is_hot(id(1)) && !place.is_hot(id(2)) && place.copies(id(2), 1).hot.is_empty());
    }

    #[test]
    fn the_owner_is_the_first_of_the_copies() {
        let t = topology(&["a", "b", "c"], 1);
        let balance = Balance::of_segments(&t.nodes, vec![(0..200).map(id).collect()]);
        assert_ne!(balance, Balance::default());
        let place = Placement::new(&t, &balance);
        for i in 0..200 {
            assert_eq!(place.owner(id(i)), Some(place.copies(id(i), 2).order[0]));
        }
    }

    fn loads(nodes: &[v1::Node], balance: &Balance, segments: u64) -> Vec<f64> {
        let ring = Ring::new(nodes);
        let mut loads = vec![0.0; nodes.len()];
        (0..segments).for_each(|i| loads[balance.owner(&ring, id(i)).unwrap()] += 1.0);
        loads
    }

    #[test]
    fn a_balance_bounds_what_a_node_owns() {
        for (count, segments) in [(3, 40), (8, 100), (64, 5_000), (5, 3)] {
            let weighted = |i: usize| node(&format!("n{i}"), 1.0 + (i % 3) as f64);
            let nodes: Vec<_> = (0..count).map(weighted).collect();
            let total: f64 = nodes.iter().map(|n| n.weight).sum();
            let balance = Balance::of_segments(&nodes, vec![(0..segments).map(id).collect()]);
            for (load, n) in loads(&nodes, &balance, segments).into_iter().zip(&nodes) {
                assert!(load <= (SLACK * segments as f64 * n.weight / total).ceil(), "{count} nodes: {load}");
            }
            // Who joins takes its share, and what moves between the others is little.
            let more = [nodes.clone(), vec![node("more", 1.0)]].concat();
            let after = Balance::of_segments(&more, vec![(0..segments).map(id).collect()]);
            let (before, ring) = (Ring::new(&nodes), Ring::new(&more));
            let owners = |i| (balance.owner(&before, id(i)).unwrap(), after.owner(&ring, id(i)).unwrap());
            let others = (0..segments).map(owners).filter(|(was, is)| was != is && *is < count);
            assert!(others.count() as f64 <= (0.08 * segments as f64).max(2.0), "{count} nodes");
        }
    }

    #[test]
    fn the_largest_dataset_decides_whatever_the_order() {
        let nodes: Vec<_> = (0..4).map(|i| node(&format!("n{i}"), 1.0)).collect();
        let (whole, part): (Vec<_>, Vec<_>) = ((0..200).map(id).collect(), (0..50).map(id).collect());
        let both = Balance::of_segments(&nodes, vec![part.clone(), whole.clone()]);
        assert_eq!(both, Balance::of_segments(&nodes, vec![whole.clone(), part]));
        assert_eq!(both, Balance::of_segments(&nodes, vec![whole]));
        assert!(!both.0.is_empty());
        let ring = Ring::new(&nodes);
        // By itself a part that is mostly one node's would have many others as its owners.
        let whole: Vec<_> = (0..200).map(id).collect();
        let one_sided: Vec<_> = whole.iter().copied().filter(|id| ring.owner(*id) == Some(0)).collect();
        assert_ne!(Balance::of_segments(&nodes, vec![one_sided.clone()]), Balance::default());
        assert_eq!(both, Balance::of_segments(&nodes, vec![one_sided, whole]));
        for (id, owner) in &both.0 {
            let order = both.order(&ring, *id);
            assert_eq!(order[0], *owner);
            let mut rest = ring.ranked(*id);
            rest.retain(|n| n != owner);
            assert_eq!(order[1..], rest);
        }
    }

    #[test]
    fn datasets_are_balanced_by_the_ids_of_their_segments() {
        let nodes: Vec<_> = (0..4).map(|i| node(&format!("n{i}"), 1.0)).collect();
        let object = Object { key: "a".into(), etag: "e".into(), size: 1, ..Default::default() };
        let size = SegmentSize { object: 0, row_groups: 1, rows: 1, decoded_bytes: 1 };
        let dataset = Manifest::new("s3://b/d", 1, vec![], vec![object], &[size; 200]).unwrap();
        let ids = (0..200).map(|n| dataset.segment_id(n).unwrap()).collect();
        let balance = Balance::of(&nodes, [&dataset]);
        assert_ne!(balance, Balance::default());
        assert_eq!(balance, Balance::of_segments(&nodes, vec![ids]));
    }

    #[test]
    fn no_nodes_no_owner() {
        assert_eq!(Balance::of_segments(&[], vec![vec![id(1)]]), Balance::default());
        assert_eq!(owner(&[], id(1)), None);
    }
}
