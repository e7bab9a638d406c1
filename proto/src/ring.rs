//! Placement: which nodes own a segment, by weighted rendezvous hashing.
//!
//! Each (node, segment) pair gets the score `-weight / ln(u)`, u in (0, 1) from xxh3-64 of the node's name and the
//! segment's id (Schindelhauer and Schomaker, "Weighted Distributed Hash Tables", 2005). The nodes in falling order of
//! score are owner, then replicas. A node that joins or leaves moves only its own share.

use crate::manifest::SegmentId;
use crate::v1;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The indices of `nodes` in falling order of claim on `segment`: owner first. Nodes of weight 0 or less own nothing.
pub fn ranked(nodes: &[v1::Node], segment: SegmentId) -> Vec<usize> {
    let mut scored: Vec<_> = nodes
        .iter()
        .enumerate()
        .filter(|(_, n)| n.weight > 0.0 && n.weight.is_finite())
        .map(|(i, n)| (score(n, segment), i))
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| nodes[a.1].name.cmp(&nodes[b.1].name)));
    scored.into_iter().map(|(_, i)| i).collect()
}

/// The index of the segment's owner; `None` without nodes.
pub fn owner(nodes: &[v1::Node], segment: SegmentId) -> Option<usize> {
    ranked(nodes, segment).first().copied()
}

fn score(node: &v1::Node, segment: SegmentId) -> f64 {
    let bytes = segment.0.to_bytes();
    let name = xxh3_64_with_seed(node.name.as_bytes(), 0);
    let hash = xxh3_64_with_seed(&bytes, name);
    // 53 bits, shifted by half a step so that 0 and 1 cannot occur.
    let u = ((hash >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    -node.weight / u.ln()
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
            assert_eq!(before.into_iter().filter(|&n| n != 2).collect::<Vec<_>>(), after);
        }
    }

    #[test]
    fn no_nodes_no_owner() {
        assert_eq!(owner(&[], id(1)), None);
    }
}
