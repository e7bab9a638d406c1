//! How long a reader takes to divide a dataset's segments among the nodes of a large cluster.

use crate::harness::check::Findings;
use crate::harness::report::Row;
use forebay_client::routing::route;
use forebay_proto::manifest::{Manifest, Object, SegmentSize};
use forebay_proto::ring::Balance;
use forebay_proto::v1::{Node, Topology};
use std::time::Instant;

const NODES: usize = 64;
const OBJECTS: u32 = 1_000;
const SEGMENTS: u32 = 60_000;

/// Measures `groups_ms`, and `groups_first_ms` with the balance of the dataset, which is kept until the nodes
/// change.
pub fn run() -> anyhow::Result<Findings> {
    let node = |i| Node { name: format!("cache-{i}"), weight: 1.0, ..Default::default() };
    let nodes: Vec<Node> = (0..NODES).map(node).collect();
    let topology = Topology { revision: 1, nodes, replicas: 1, ..Default::default() };
    let (manifest, segments) = (manifest()?, (0..SEGMENTS).collect::<Vec<u32>>());
    let (mut first, mut later) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let began = Instant::now();
        let balance = Balance::of(&topology.nodes, [&manifest]);
        let balanced_ms = began.elapsed().as_secs_f64() * 1e3;
        let began = Instant::now();
        let routes = route(&topology, &balance, &manifest, &segments)?;
        let routed_ms = began.elapsed().as_secs_f64() * 1e3;
        anyhow::ensure!(routes.iter().all(Option::is_some), "a segment has no node");
        later.push(routed_ms);
        first.push(balanced_ms + routed_ms);
    }
    let rows = vec![Row::of("groups_ms", "ms", &later), Row::of("groups_first_ms", "ms", &first)];
    Ok(Findings { rows, checks: Vec::new() })
}

fn manifest() -> anyhow::Result<Manifest> {
    let object = |i| Object {
        key: format!("part-{i:05}.parquet"),
        etag: format!("{i}"),
        size: 1 << 30,
        ..Default::default()
    };
    let size = |i| SegmentSize {
        object: i / (SEGMENTS / OBJECTS),
        row_groups: 1,
        rows: 1000,
        decoded_bytes: 32 << 20,
    };
    let sizes: Vec<SegmentSize> = (0..SEGMENTS).map(size).collect();
    Ok(Manifest::new("s3://bucket/large", 32 << 20, Vec::new(), (0..OBJECTS).map(object).collect(), &sizes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dataset_has_as_many_segments_as_it_says() {
        assert_eq!(manifest().expect("a manifest").segments().len(), SEGMENTS as usize);
    }
}
