//! Epochs that nothing disturbs: without a cache, from one node and from three, cold and warm, by any ranks.

use super::stage::{ContentRead, ContentStage};
use crate::harness::check::Findings;
use crate::harness::process::ServerOptions;

/// The numbers of ranks.
const RANKS: std::ops::RangeInclusive<u32> = 1..=16;

/// Without a cache.
pub fn direct(stage: &ContentStage) -> anyhow::Result<ContentRead> {
    let digests = stage.epochs(2, 3, &stage.directly())?;
    Ok(ContentRead { name: "direct", way: "direct, 3 ranks".into(), digests })
}

/// One node, cold and warm, and by 1 to 16 ranks.
pub fn one_node(stage: &ContentStage, found: &mut Findings) -> anyhow::Result<Vec<ContentRead>> {
    let server = ServerOptions::for_s3(&stage.world.s3).try_start()?;
    let through = ["--endpoint", server.endpoint.as_str()];
    let mut all = Vec::new();
    for (name, epochs) in [("cold", 1), ("warm", 2)] {
        stage.world.s3_bytes(&stage.table);
        let digests = stage.epochs(epochs, 2, &through)?;
        let bytes = stage.world.s3_bytes(&stage.table);
        found.check((bytes == 0) == (name == "warm"), format!("1 node, {name}: {bytes} bytes from S3"));
        all.push(ContentRead { name, way: format!("1 node, {name}, 2 ranks"), digests });
    }
    let by_ranks = RANKS.map(|world| stage.epochs(1, world, &through));
    let digests = by_ranks.collect::<anyhow::Result<Vec<_>>>()?.concat();
    all.push(ContentRead { name: "ranks", way: "1 node, warm, by 1, 2, .. 16 ranks".into(), digests });
    server.try_stop()?;
    Ok(all)
}

/// Three nodes, cold and warm, by TCP.
pub fn three_nodes(stage: &ContentStage) -> anyhow::Result<Vec<ContentRead>> {
    let nodes = stage.world.nodes(3, 1)?;
    let endpoints = nodes.endpoints();
    let through = ["--endpoint", endpoints.as_str(), "--same-host", "off"];
    let digests = stage.epochs(1, 2, &through)?;
    let cold =
        ContentRead { name: "three_nodes_cold", way: "3 nodes, by TCP, cold, 2 ranks".into(), digests };
    let digests = stage.epochs(2, 4, &through)?;
    let warm =
        ContentRead { name: "three_nodes_warm", way: "3 nodes, by TCP, warm, 4 ranks".into(), digests };
    nodes.end()?;
    Ok(vec![cold, warm])
}
