//! A node joins while a job reads: it takes its share from the others, in mid-epoch, and nothing from S3.

use super::faults::AFTERMATH;
use super::jobs::steady;
use super::world::World;
use crate::harness::check::Findings;
use std::time::{Duration, Instant};

/// How long the share may take to move.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs it. Many small segments, so that chance plays no part in a share.
pub fn run(world: &World, count: usize) -> anyhow::Result<Findings> {
    let table = world.table("join", 1200, 32)?;
    let mut nodes = world.nodes(count, 1)?;
    let reader = world.warm(&nodes, &table, steady(), 1)?;
    let mut found = Findings::default();
    world.s3_bytes(&table);
    let began = Instant::now();
    let joined = nodes.add(world.seats(1)?.remove(0))?;
    nodes.wait_until_agreed(&world.runtime)?;
    let share = table.segments as f64 / nodes.count() as f64;
    let mut moved = 0;
    while began.elapsed() < PATIENCE {
        let before = std::mem::replace(&mut moved, nodes.counters(&world.runtime, joined).peer_fills);
        if before == moved && moved as f64 > 0.8 * share {
            break;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    let took = began.elapsed().as_secs_f64();
    std::thread::sleep(AFTERMATH);
    let (stall, s3) = (reader.longest_wait_ms(began), world.s3_bytes(&table));
    let ratio = moved as f64 / share;
    found.value("join_moved_over_share", "ratio", ratio);
    found.value("join_s3_bytes", "bytes", s3 as f64);
    found.value("join_stall_ms_max", "ms", stall);
    found.value("join_took_s", "s", took);
    found.check((0.8..=1.2).contains(&ratio), format!("a node that joins takes {ratio:.2} of its share"));
    found.check(s3 == 0, format!("join: {s3} bytes from S3"));
    world.end("join", reader, nodes, &mut found)?;
    Ok(found)
}
