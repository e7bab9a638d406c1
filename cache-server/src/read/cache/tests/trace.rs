//! The policy as a trace: a scripted workload, and what the cache does at each step. A change of policy is a
//! change of `trace.txt`: run the test with `FOREBAY_BLESS=1` to write it again, and read the difference.

use super::super::*;
use super::world::{Dataset, Run, SEGMENT_BYTES, World};
use std::fmt::Write as _;

/// One run of three epochs in windows of two, with room for four of eight segments in the disk cache and for
/// two in the memory tier.
#[tokio::test]
async fn the_policy_is_as_written() {
    let dataset = Dataset::new(8).await;
    let limit = dataset.limit_bytes(4).await;
    let script = async || {
        let mut text = String::new();
        scripted(&dataset, limit, 8 * SEGMENT_BYTES * 9 / 8, &mut text).await;
        text
    };
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/read/cache/tests/trace.txt");
    if std::env::var_os("FOREBAY_BLESS").is_some() {
        std::fs::write(&path, script().await).unwrap();
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(script().await, want);
}

async fn scripted(dataset: &Dataset, limit: u64, memory: u64, text: &mut String) {
    let world = World::new(dataset, limit, memory);
    let ids = dataset.ids();
    let run = Run { seed: 7, window: 2, world: 1, epochs: 3 };
    let other = Run { seed: 9, window: 2, world: 1, epochs: 1 };
    for epoch in 0..run.epochs {
        writeln!(text, "epoch {epoch}").unwrap();
        let announced = world.announce(dataset, &run, epoch, 0);
        for (i, (segment, span)) in run.order(dataset, epoch).spans().into_iter().enumerate() {
            announced.reached(span.start);
            world.cache.memory_tier.sweep();
            step(&world, dataset, &ids, segment, text).await;
            if epoch == 1 && i == 3 {
                // In between a second job wants other segments, and is over.
                writeln!(text, "  another job").unwrap();
                let announced = world.announce(dataset, &other, 0, 0);
                for (segment, span) in other.order(dataset, 0).spans().into_iter().take(4) {
                    announced.reached(span.start);
                    step(&world, dataset, &ids, segment, text).await;
                }
                announced.reached(u64::MAX);
                writeln!(text, "  and the first again").unwrap();
            }
        }
        announced.reached(u64::MAX);
    }
    writeln!(text, "in no plan").unwrap();
    world.cache.memory_tier.sweep();
    for segment in 0..8 {
        step(&world, dataset, &ids, segment, text).await;
    }
}

/// Reads a segment and tells what that did.
async fn step(world: &World, dataset: &Dataset, ids: &[SegmentId], segment: u32, text: &mut String) {
    let held = || ids.iter().map(|id| world.cache.disk.holds(*id, &[])).collect::<Vec<_>>();
    let count = || {
        let e = &world.events;
        [&e.hits, &e.misses, &e.bypassed].map(|counter| counter.load(Relaxed))
    };
    let (before, was) = (held(), count());
    drop(world.cache.get(&dataset.reading, segment).await.unwrap());
    let (after, is) = (held(), count());
    let what = match (is[0] - was[0], is[1] - was[1], is[2] - was[2]) {
        (1, 0, 0) if before[segment as usize] => "hit",
        (1, 0, 0) => "hit in the memory tier",
        (0, 1, 0) => "fill, store",
        (0, 1, 1) => "fill, do not store",
        other => panic!("{other:?}"),
    };
    let gone: Vec<_> = (0..ids.len()).filter(|&s| before[s] && !after[s]).collect();
    let evicted = if gone.is_empty() { String::new() } else { format!(", evict {gone:?}") };
    let in_tier = world.cache.memory.tier.used() / SEGMENT_BYTES;
    writeln!(text, "  read {segment}: {what}{evicted}; memory tier {in_tier}").unwrap();
}
