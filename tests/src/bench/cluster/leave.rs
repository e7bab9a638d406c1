//! A node is drained and brought back, then all nodes are restarted one after the other. A job reads from the
//! warm cache meanwhile. Judged are errors, values, bytes from S3, and what the drained node still serves;
//! stalls have no target.

use super::faults::AFTERMATH;
use super::jobs::steady;
use super::world::World;
use crate::harness::check::Findings;
use anyhow::Context;
use std::time::{Duration, Instant};

/// Runs it with this many replicas. Each part has freshly warmed nodes: a segment that lies on two nodes does
/// so by intention.
pub fn run(world: &World, count: usize, replicas: u32, seed: u64) -> anyhow::Result<Findings> {
    let suffix = if replicas == 1 { String::new() } else { format!("_{replicas}_replicas") };
    let mut found = Findings::default();

    let what = format!("drain{suffix}");
    let table = world.table(&what, 160, 384)?;
    let mut nodes = world.nodes(count, replicas)?;
    let reader = world.warm(&nodes, &table, steady(), replicas)?;
    world.s3_bytes(&table);
    let victim = fastrand::Rng::with_seed(seed).usize(..count);
    let began = Instant::now();
    let reply = nodes.drain(&world.runtime, victim, false)?;
    std::thread::sleep(AFTERMATH);
    // A node that does not say has not shown that it served nothing.
    let rows_served = || {
        let counters = nodes.status(&world.runtime, victim)?.counters;
        anyhow::Ok(counters.context("a node has counters")?.rows_served)
    };
    let before = rows_served()?;
    std::thread::sleep(Duration::from_secs(1));
    let afterwards = rows_served()?.saturating_sub(before);
    nodes.drain(&world.runtime, victim, true)?;
    nodes.wait_until_agreed(&world.runtime)?;
    std::thread::sleep(AFTERMATH);
    let (stall, s3) = (reader.longest_wait_ms(began), world.s3_bytes(&table));
    found.value(format!("drain{suffix}_stall_ms_max"), "ms", stall);
    found.value(format!("drain{suffix}_streams_left"), "streams", reply.streams_left as f64);
    found.value(format!("drain{suffix}_rows_served_afterwards"), "rows", afterwards as f64);
    found.value(format!("drain{suffix}_s3_bytes"), "bytes", s3 as f64);
    found.check(s3 == 0, format!("{what}: {s3} bytes from S3"));
    let left = reply.streams_left;
    found.check(left == 0, format!("{what}: {left} streams are left at the drained node"));
    found.check(afterwards == 0, format!("{what}: the drained node served {afterwards} rows afterwards"));
    world.end(&what, reader, nodes, &mut found)?;

    let what = format!("rolling_restart{suffix}");
    let table = world.table(&what, 160, 384)?;
    let mut nodes = world.nodes(count, replicas)?;
    let reader = world.warm(&nodes, &table, steady(), replicas)?;
    world.s3_bytes(&table);
    let began = Instant::now();
    for node in 0..nodes.count() {
        nodes.stop(node)?;
        nodes.up(node)?;
        nodes.wait_until_agreed(&world.runtime)?;
        std::thread::sleep(Duration::from_secs(2));
    }
    std::thread::sleep(AFTERMATH);
    let (stall, s3) = (reader.longest_wait_ms(began), world.s3_bytes(&table));
    found.value(format!("rolling_restart{suffix}_stall_ms_max"), "ms", stall);
    found.value(format!("rolling_restart{suffix}_errors"), "errors", reader.errors().len() as f64);
    found.value(format!("rolling_restart{suffix}_s3_bytes"), "bytes", s3 as f64);
    found.check(s3 == 0, format!("{what}: {s3} bytes from S3"));
    world.end(&what, reader, nodes, &mut found)?;
    Ok(found)
}
