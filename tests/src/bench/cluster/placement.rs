//! Placement simulated: how evenly 100,000 segments lie on 3 to 256 nodes, and what a further node moves.

use crate::harness::check::Findings;
use forebay_proto::manifest::{Digest, SegmentId};
use forebay_proto::{ring, v1};

const SEGMENTS: u64 = 100_000;

/// How much more than its share a node owns at most, in per cent; a part of a segment counts as one.
const OVER: f64 = 5.0;

/// For every size: the fullest node over the mean; the worst deviation from the shares that weights of 1 to 4
/// ask for, of all nodes of a weight together and of single nodes; the share that a further node moves over
/// its own share.
pub fn run() -> Findings {
    let mut found = Findings::default();
    let (mut unfair, mut astray, mut above, mut moves) = (0f64, 0f64, 0f64, 0f64);
    for nodes in [3, 4, 8, 16, 32, 64, 128, 256] {
        let equal = cluster(nodes, |_| 1.0);
        let mean = SEGMENTS as f64 / nodes as f64;
        let fullest = loads(&equal).into_iter().max().unwrap_or_default() as f64 / mean;
        let weighted = cluster(nodes, |i| 1.0 + (i % 4) as f64);
        let loads = loads(&weighted);
        let error = 100.0 * weight_error(&weighted, &loads);
        let (off, over) = node_errors(&weighted, &loads);
        let moved = moved(&equal, &cluster(nodes + 1, |_| 1.0)) / SEGMENTS as f64 * (nodes + 1) as f64;
        found.value(format!("placement_max_over_mean_{nodes}"), "ratio", fullest);
        found.value(format!("placement_weight_error_{nodes}"), "%", error);
        found.value(format!("placement_weight_error_node_{nodes}"), "%", 100.0 * off);
        found.value(format!("placement_weight_over_node_{nodes}"), "%", 100.0 * over);
        found.value(format!("join_moved_over_share_{nodes}"), "ratio", moved);
        unfair = unfair.max(fullest);
        astray = astray.max(error);
        above = above.max(100.0 * over);
        moves = moves.max((moved - 1.0).abs());
    }
    found.check(unfair <= 1.10, format!("the fullest node has {unfair:.3} of the mean, at most 1.10"));
    found.check(astray <= 5.0, format!("weights are off by {astray:.1} %, at most 5"));
    found.check(
        above <= OVER,
        format!(
            "a single node has {above:.2} % and less than a segment more than its share, at most {OVER} %"
        ),
    );
    found.check(
        moves <= 0.2,
        format!("a further node moves its share within {:.0} %, at most 20", 100.0 * moves),
    );
    found
}

fn cluster(count: usize, weight: impl Fn(usize) -> f64) -> Vec<v1::Node> {
    let node = |i| v1::Node { name: format!("cache-{i}"), weight: weight(i), ..Default::default() };
    (0..count).map(node).collect()
}

/// Ids as a manifest's are: hashes.
fn id(i: u64) -> SegmentId {
    SegmentId(Digest(fastrand::Rng::with_seed(i).u128(..)))
}

/// Who owns each segment.
fn owners(nodes: &[v1::Node]) -> Vec<usize> {
    let balance = ring::Balance::of_segments(nodes, vec![(0..SEGMENTS).map(id).collect()]);
    let ring = ring::Ring::new(nodes);
    (0..SEGMENTS).filter_map(|i| balance.owner(&ring, id(i))).collect()
}

fn loads(nodes: &[v1::Node]) -> Vec<u64> {
    let mut loads = vec![0; nodes.len()];
    owners(nodes).into_iter().for_each(|owner| loads[owner] += 1);
    loads
}

/// The worst deviation of all nodes of one weight together from their share.
fn weight_error(nodes: &[v1::Node], loads: &[u64]) -> f64 {
    let of = |weight: f64| {
        let same = || nodes.iter().zip(loads).filter(move |(n, _)| n.weight == weight);
        let got: u64 = same().map(|(_, load)| load).sum();
        (got as f64 / (same().count() as f64 * share(nodes, weight)) - 1.0).abs()
    };
    nodes.iter().map(|n| of(n.weight)).fold(0.0, f64::max)
}

/// The worst deviation of a single node from its own share, above or below it; and by how much a node without
/// its last segment is above its share at most.
fn node_errors(nodes: &[v1::Node], loads: &[u64]) -> (f64, f64) {
    let error = |load: f64, n: &v1::Node| load / share(nodes, n.weight) - 1.0;
    let each = || nodes.iter().zip(loads).map(|(n, load)| (n, *load as f64));
    let off = each().map(|(n, load)| error(load, n).abs()).fold(0.0, f64::max);
    (off, each().map(|(n, load)| error(load - 1.0, n)).fold(0.0, f64::max))
}

/// The segments that a node of a weight should have.
fn share(nodes: &[v1::Node], weight: f64) -> f64 {
    let total: f64 = nodes.iter().map(|n| n.weight).sum();
    weight / total * SEGMENTS as f64
}

fn moved(before: &[v1::Node], after: &[v1::Node]) -> f64 {
    owners(before).into_iter().zip(owners(after)).filter(|(was, is)| was != is).count() as f64
}
