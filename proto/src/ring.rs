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

    #[test]
    fn no_nodes_no_owner() {
        assert_eq!(owner(&[], id(1)), None);
    }
}
