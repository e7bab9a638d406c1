//! Epochs of a job of two ranks on three nodes, while nodes die, fall silent, come and go. Each fault strikes
//! a node that serves rows.

use super::super::nodes::Nodes;
use super::stage::{ContentRead, ContentStage};
use crate::harness::background::BackgroundReader;
use crate::harness::check::Findings;
use crate::harness::wait::try_until;
use fastrand::Rng;
use std::time::Duration;
use tokio::runtime::Runtime;

/// How many nodes there are.
const NODES: usize = 3;

/// How long a step computes: so long that an epoch takes about ten seconds.
const STEP: Duration = Duration::from_millis(100);

/// For how long a killed node is away, and a drained one.
const AWAY: Duration = Duration::from_secs(4);

/// How long a node may take to serve rows, and the job to read an epoch. Generous: no time is measured.
const PATIENCE: Duration = Duration::from_secs(120);

/// kill -9 of nodes, one after the other, at random moments.
pub fn kills(
    stage: &ContentStage,
    kills: u32,
    seed: u64,
    found: &mut Findings,
) -> anyhow::Result<ContentRead> {
    let mut random = Rng::with_seed(seed);
    let way = format!("3 nodes, 2 replicas, {kills} SIGKILLs");
    beside(stage, ("kills", way), 2, found, |runtime, nodes| {
        for _ in 0..kills {
            std::thread::sleep(Duration::from_millis(random.u64(..1500)));
            let victim = random.usize(..nodes.count());
            wait_until_serving(runtime, nodes, victim)?;
            nodes.kill(victim)?;
            eprintln!("kill of node {victim}");
            std::thread::sleep(AWAY);
            nodes.up(victim)?;
            nodes.wait_until_agreed(runtime)?;
        }
        Ok(())
    })
}

/// SIGSTOP of a node, for `seconds`.
pub fn silence(
    stage: &ContentStage,
    seconds: u64,
    seed: u64,
    found: &mut Findings,
) -> anyhow::Result<ContentRead> {
    let victim = Rng::with_seed(seed).usize(..NODES);
    let way = format!("3 nodes, 2 replicas, SIGSTOP for {seconds} s");
    beside(stage, ("silence", way), 2, found, |runtime, nodes| {
        wait_until_serving(runtime, nodes, victim)?;
        nodes.server(victim)?.pause();
        std::thread::sleep(Duration::from_secs(seconds));
        nodes.server(victim)?.resume();
        nodes.wait_until_agreed(runtime)?;
        wait_until_serving(runtime, nodes, victim)
    })
}

/// A fourth node joins, and serves.
pub fn join(stage: &ContentStage, found: &mut Findings) -> anyhow::Result<ContentRead> {
    beside(stage, ("join", "3 nodes, a fourth one joins".into()), 1, found, |runtime, nodes| {
        let joined = nodes.add(stage.world.seats(1)?.remove(0))?;
        nodes.wait_until_agreed(runtime)?;
        wait_until_serving(runtime, nodes, joined)
    })
}

/// A node is drained, and comes back.
pub fn drain(stage: &ContentStage, seed: u64, found: &mut Findings) -> anyhow::Result<ContentRead> {
    let victim = Rng::with_seed(seed).usize(..NODES);
    beside(stage, ("drain", "3 nodes, one drained and back".into()), 1, found, |runtime, nodes| {
        wait_until_serving(runtime, nodes, victim)?;
        nodes.drain(runtime, victim, false)?;
        std::thread::sleep(AWAY);
        nodes.drain(runtime, victim, true)?;
        nodes.wait_until_agreed(runtime)?;
        wait_until_serving(runtime, nodes, victim)
    })
}

/// SIGTERM of all nodes and their start, one after the other.
pub fn rolling_restart(stage: &ContentStage, found: &mut Findings) -> anyhow::Result<ContentRead> {
    let way = "3 nodes, all restarted one after the other";
    beside(stage, ("rolling_restart", way.into()), 1, found, |runtime, nodes| {
        for node in 0..nodes.count() {
            wait_until_serving(runtime, nodes, node)?;
            nodes.stop(node)?;
            nodes.up(node)?;
            nodes.wait_until_agreed(runtime)?;
        }
        Ok(())
    })
}

/// The epochs that are under way while something is done to the nodes.
fn beside(
    stage: &ContentStage,
    (name, way): (&'static str, String),
    replicas: u32,
    found: &mut Findings,
    fault: impl FnOnce(&Runtime, &mut Nodes) -> anyhow::Result<()>,
) -> anyhow::Result<ContentRead> {
    let world = &stage.world;
    let mut nodes = world.nodes(NODES, replicas)?;
    let reader = world.warm(&nodes, &stage.table, stage.job(2, STEP, None), replicas)?;
    // Epochs count from 0: their number is that of the one under way.
    let first = reader.epochs() as u64;
    fault(&world.runtime, &mut nodes)?;
    let last = reader.epochs() as u64;
    wait_for_epoch(&reader, last)?;
    let contents = reader.contents();
    let digests: Vec<_> = contents.range(first..=last).map(|(n, digest)| (*n, digest.to_string())).collect();
    anyhow::ensure!(digests.len() as u64 == last - first + 1, "epochs {first} to {last}: {digests:?}");
    world.end(&format!("content_{name}"), reader, nodes, found)?;
    Ok(ContentRead { name, way, digests })
}

/// Waits until all ranks are through an epoch.
fn wait_for_epoch(reader: &BackgroundReader, number: u64) -> anyhow::Result<()> {
    try_until(&format!("epoch {number} is read"), PATIENCE, || {
        anyhow::ensure!(reader.errors().is_empty(), "a rank ended: {:?}", reader.errors());
        Ok(reader.epochs() as u64 > number)
    })
}

/// Waits until a node serves rows.
fn wait_until_serving(runtime: &Runtime, nodes: &Nodes, node: usize) -> anyhow::Result<()> {
    let before = nodes.counters(runtime, node).rows_served;
    try_until(&format!("node {node} serves rows"), PATIENCE, || {
        Ok(nodes.counters(runtime, node).rows_served > before)
    })
}
