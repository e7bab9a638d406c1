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

/// Number and content digest of each epoch.
type Digests = Vec<(u64, String)>;

/// One node, cold and warm, and by 1 to 16 ranks.
pub fn one_node(stage: &ContentStage, found: &mut Findings) -> anyhow::Result<Vec<ContentRead>> {
    let server = ServerOptions::for_s3(&stage.world.s3).try_start()?;
    let through = ["--endpoint", server.endpoint.as_str()];
    let by_ranks = || -> anyhow::Result<Digests> {
        let epochs = RANKS.map(|world| stage.epochs(1, world, &through));
        Ok(epochs.collect::<anyhow::Result<Vec<_>>>()?.concat())
    };
    let (cold, warm) = ("1 node, cold, 2 ranks", "1 node, warm, 2 ranks");
    let ranks = "1 node, warm, by 1, 2, .. 16 ranks";
    let all = vec![
        counted(stage, ("cold", cold), Cache::Cold, found, || stage.epochs(1, 2, &through))?,
        counted(stage, ("warm", warm), Cache::Warm, found, || stage.epochs(2, 2, &through))?,
        counted(stage, ("ranks", ranks), Cache::Warm, found, by_ranks)?,
    ];
    server.try_stop()?;
    Ok(all)
}

/// Three nodes, cold and warm, by TCP.
pub fn three_nodes(stage: &ContentStage, found: &mut Findings) -> anyhow::Result<Vec<ContentRead>> {
    let nodes = stage.world.nodes(3, 1)?;
    let endpoints = nodes.endpoints();
    let through = ["--endpoint", endpoints.as_str(), "--same-host", "off"];
    let cold = ("three_nodes_cold", "3 nodes, by TCP, cold, 2 ranks");
    let warm = ("three_nodes_warm", "3 nodes, by TCP, warm, 4 ranks");
    let all = vec![
        counted(stage, cold, Cache::Cold, found, || stage.epochs(1, 2, &through))?,
        counted(stage, warm, Cache::Warm, found, || stage.epochs(2, 4, &through))?,
    ];
    nodes.end()?;
    Ok(all)
}

/// What a way finds in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cache {
    /// Nothing.
    Cold,
    /// All of the dataset.
    Warm,
}

impl Cache {
    /// Judges how many bytes of columns left the object store: none if all was there, and some if it was not.
    fn check(self, way: &str, bytes: u64, found: &mut Findings) {
        found.check((bytes == 0) == (self == Self::Warm), format!("{way}: {bytes} bytes from S3"));
    }
}

/// Reads by one way, whose name in rows and in words is given, and counts what leaves the object store.
fn counted(
    stage: &ContentStage,
    (name, way): (&'static str, &str),
    cache: Cache,
    found: &mut Findings,
    read: impl FnOnce() -> anyhow::Result<Digests>,
) -> anyhow::Result<ContentRead> {
    stage.world.s3_bytes(&stage.table);
    let digests = read()?;
    cache.check(way, stage.world.s3_bytes(&stage.table), found);
    Ok(ContentRead { name, way: way.into(), digests })
}

#[test]
fn a_warm_way_may_read_nothing_from_the_store_and_a_cold_one_must() {
    let is_kept = |cache: Cache, bytes| {
        let mut found = Findings::default();
        cache.check("3 nodes", bytes, &mut found);
        found.broken().is_empty()
    };
    assert!(is_kept(Cache::Warm, 0) && !is_kept(Cache::Warm, 1));
    assert!(is_kept(Cache::Cold, 1) && !is_kept(Cache::Cold, 0));
}
