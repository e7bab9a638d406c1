//! etcd stopped, its leader killed, its quorum lost, while a job reads.

use super::faults::AFTERMATH;
use super::jobs::steady;
use super::world::World;
use crate::harness::check::Findings;
use std::time::{Duration, Instant};

/// What a reader may wait in such a time: it notices nothing of it, but the machine may be busy.
const UNNOTICED_MS: f64 = 500.0;

/// How long the nodes may take to find etcd again.
const FOUND_AGAIN_S: f64 = 10.0;

/// Runs it; times that are promised may be `slack` times as long.
pub fn run(world: &World, count: usize, seconds: u64, seed: u64, slack: f64) -> anyhow::Result<Findings> {
    let (unnoticed_ms, found_again_s) = (UNNOTICED_MS * slack, FOUND_AGAIN_S * slack);
    let table = world.table("etcd", 160, 384)?;
    let mut nodes = world.nodes(count, 1)?;
    let reader = world.warm(&nodes, &table, steady(), 1)?;
    let mut found = Findings::default();
    let mut etcd = world.etcd.borrow_mut();
    let mut noted = |what: &str, began: Instant, again: Option<Duration>| {
        let wait = reader.longest_wait_ms(began);
        found.value(format!("{what}_wait_ms_max"), "ms", wait);
        found.check(wait <= unnoticed_ms, format!("{what}: {wait:.0} ms, {unnoticed_ms} allowed"));
        if let Some(again) = again {
            let seconds = again.as_secs_f64();
            found.value(format!("{what}_found_again_s"), "s", seconds);
            let text = format!("{what}: found again within {seconds:.1} s, {found_again_s} allowed");
            found.check(seconds <= found_again_s, text);
        }
    };

    let began = Instant::now();
    etcd.kill_all();
    std::thread::sleep(Duration::from_secs(seconds));
    etcd.restart()?;
    let again = nodes.wait_until_agreed(&world.runtime)?;
    std::thread::sleep(AFTERMATH);
    noted("etcd_stopped", began, Some(again));

    let began = Instant::now();
    let leader = etcd.wait_for_leader()?;
    etcd.kill(leader);
    std::thread::sleep(AFTERMATH);
    etcd.restart()?;
    nodes.wait_until_agreed(&world.runtime)?;
    noted("etcd_leader_killed", began, None);

    let began = Instant::now();
    let survivor = fastrand::Rng::with_seed(seed).usize(..etcd.count());
    (0..etcd.count()).filter(|&member| member != survivor).for_each(|member| etcd.kill(member));
    std::thread::sleep(Duration::from_secs(seconds.div_ceil(3)));
    etcd.restart()?;
    let again = nodes.wait_until_agreed(&world.runtime)?;
    std::thread::sleep(AFTERMATH);
    noted("etcd_quorum_lost", began, Some(again));

    drop(etcd);
    world.end("etcd", reader, nodes, &mut found)?;
    Ok(found)
}
