//! What the policy is worth: hits of shuffled epochs with caches of all sizes, through the whole read path,
//! prefetch and several ranks included.

use super::super::*;
use super::world::{Dataset, ROWS, Run, SEGMENT_BYTES, World};
use std::sync::atomic::Ordering::Relaxed;

const SEGMENTS: u32 = 60;

/// Segments for which there is room in the memory tier.
const AHEAD: u32 = 12;

/// Hits after the first epoch, as a share of all segments read: of each run, all epochs. The first epoch is
/// given one fill of each segment, which it needs whatever the policy; all others count as misses of later
/// epochs. 0 if the first epoch took more fills than it may.
async fn hit_ratio(dataset: &Dataset, percent: u32, runs: &[Run]) -> f64 {
    let limit = dataset.limit_bytes(SEGMENTS * percent / 100).await;
    let world = Arc::new(World::new(dataset, limit, 4 * u64::from(AHEAD) * SEGMENT_BYTES));
    let prefetching = tokio::spawn(crate::read::prefetch::run(world.cache.clone()));
    let mut first = 0;
    for epoch in 0..runs[0].epochs {
        let streams = runs.iter().flat_map(|run| {
            let world = &world;
            (0..run.world).map(move |rank| async move { world.stream(dataset, run, epoch, rank).await })
        });
        let rows: u64 = futures::future::join_all(streams).await.into_iter().sum();
        assert_eq!(rows, runs.len() as u64 * u64::from(SEGMENTS) * ROWS);
        if epoch == 0 {
            first = world.events.misses.load(Relaxed);
        }
        assert!(world.cache.disk.used_bytes() <= limit);
    }
    prefetching.abort();
    // In the first epoch the next one's first segments are prefetched already.
    let ahead = u64::from(AHEAD);
    if first > u64::from(SEGMENTS) * runs.len() as u64 + ahead {
        println!("too many fills in the first epoch: {first}");
        return 0.0;
    }
    let misses = world.events.misses.load(Relaxed) - u64::from(SEGMENTS);
    let reads = (runs[0].epochs - 1) * u64::from(SEGMENTS) * runs.len() as u64;
    1.0 - misses as f64 / reads as f64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hits_are_at_least_the_share_that_fits() {
    let dataset = Dataset::new(SEGMENTS).await;
    for percent in [10, 25, 50, 75, 100] {
        let run = Run { seed: 3, window: 4, world: 1, epochs: 4 };
        let least = 0.98 * f64::from(percent) / 100.0;
        let ratio = hit_ratio(&dataset, percent, &[run]).await;
        println!("{percent} % cached: {ratio:.3} hits");
        assert!(ratio >= least, "{percent} % cached: {ratio} hits");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_ranks_fetch_what_one_does() {
    let dataset = Dataset::new(SEGMENTS).await;
    let run = Run { seed: 3, window: 4, world: 4, epochs: 4 };
    let ratio = hit_ratio(&dataset, 50, &[run]).await;
    println!("50 % cached, 4 ranks: {ratio:.3} hits");
    assert!(ratio >= 0.49, "{ratio}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_jobs_share_what_fits() {
    let dataset = Dataset::new(SEGMENTS).await;
    let run = |seed| Run { seed, window: 4, world: 1, epochs: 4 };
    let ratio = hit_ratio(&dataset, 50, &[run(3), run(4)]).await;
    println!("50 % cached, 2 jobs: {ratio:.3} hits");
    assert!(ratio >= 0.6, "{ratio}");
}
