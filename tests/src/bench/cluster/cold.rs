//! A cold epoch by several ranks, and by several jobs at once: each byte leaves S3 once.

use super::jobs::greedy;
use super::world::{World, verdict};
use crate::harness::background::BackgroundReader;
use crate::harness::check::Findings;
use std::time::Duration;

/// Ranks of each job.
const RANKS: u32 = 4;

/// How long an epoch may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// Runs it.
pub fn run(world: &World, count: usize) -> anyhow::Result<Findings> {
    let mut found = Findings::default();
    for (jobs, row) in [(1, "s3_amplification"), (3, "s3_amplification_3_jobs")] {
        let table = world.table(row, 160, 384)?;
        let nodes = world.nodes(count, 1)?;
        world.s3_bytes(&table);
        let start = |seed| {
            let job = greedy(seed, RANKS, Some(1));
            BackgroundReader::start(&world.runtime, &nodes.endpoints(), &table, job)
        };
        let readers = (0..jobs).map(start).collect::<anyhow::Result<Vec<_>>>()?;
        readers.iter().try_for_each(|reader| reader.wait(PATIENCE))?;
        let ratio = world.s3_bytes(&table) as f64 / table.projected_bytes() as f64;
        found.value(row, "ratio", ratio);
        found.check(ratio <= 1.01, format!("{row} = {ratio:.4}, at most 1.01"));
        verdict(row, readers, &mut found)?;
        nodes.end()?;
    }
    Ok(found)
}
