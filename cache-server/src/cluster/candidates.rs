//! The nodes to ask for a segment, best first. A pure function of topology and placement.

use forebay_proto::ring::Copies;
use forebay_proto::v1;

/// Nodes in rank that are asked whether they hold a segment, beside the leaving ones: replicas, and earlier
/// owners.
const RANKS: usize = 8;

/// Addresses of nodes to ask for a segment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Candidates {
    /// The node that fills it; `None`: this node.
    pub owner: Option<String>,
    /// Others that may hold it: hot copies, leaving nodes, the next in rank.
    pub holders: Vec<String>,
}

/// The nodes that the one at address `me` may ask for a segment with these copies.
pub fn candidates(topology: &v1::Topology, copies: &Copies, me: &str) -> Candidates {
    let address = |n: &usize| topology.nodes[*n].address.clone();
    let owner = copies.order.first().map(address).filter(|a| a != me);
    let leaving = topology.leaving.iter().map(|n| n.address.clone());
    let ranked = copies.order.iter().take(RANKS.max(copies.count)).map(address);
    let mut holders: Vec<String> = copies.hot.iter().map(address).chain(leaving).chain(ranked).collect();
    holders.retain(|a| a != me && Some(a) != owner.as_ref());
    Candidates { owner, holders }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_fills_and_others_may_hold() {
        let nodes = |names: &str| {
            let node = |name: &str| v1::Node { address: name.into(), ..Default::default() };
            names.split_whitespace().map(node).collect::<Vec<_>>()
        };
        let many: String = (0..12).map(|n| format!("n{n} ")).collect();
        // Nodes, leaving ones, order, hot copies, this node; then the owner and the holders.
        for (all, leaving, order, hot, me, owner, holders) in [
            ("a", "", vec![0], vec![], "a", None, ""),
            ("a b c", "", vec![1, 0, 2], vec![], "a", Some("b"), "c"),
            ("a b c", "", vec![0, 2, 1], vec![], "a", None, "c b"),
            ("a b c", "d", vec![0, 1, 2], vec![2], "a", None, "c d b c"),
            ("b", "a", vec![0], vec![], "a", Some("b"), ""),
            ("", "b", vec![], vec![], "a", None, "b"),
            (&many, "", (0..12).collect(), vec![], "n0", None, "n1 n2 n3 n4 n5 n6 n7"),
        ] {
            let topology = v1::Topology { nodes: nodes(all), leaving: nodes(leaving), ..Default::default() };
            let count = usize::from(!order.is_empty());
            let found = candidates(&topology, &Copies { order, count, hot }, me);
            let holders = holders.split_whitespace().map(str::to_owned).collect();
            assert_eq!(found, Candidates { owner: owner.map(str::to_owned), holders }, "{all} / {me}");
        }
    }
}
