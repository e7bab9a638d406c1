//! Nodes that die, and one that falls silent, while a job reads.

use super::jobs::steady;
use super::nodes::{Nodes, name};
use super::world::World;
use crate::harness::background::BackgroundReader;
use crate::harness::check::Findings;
use crate::harness::report::Row;
use crate::harness::table::Table;
use fastrand::Rng;
use forebay_proto::{ring, v1};
use std::time::{Duration, Instant};

/// Waits that end within this time after a fault count as its effect. Readers recover long before.
pub const AFTERMATH: Duration = Duration::from_secs(4);

/// On a machine that stalls: nodes that stall with the lost one may be passed over too, and others fetch what
/// only they hold. Without any replica it would be all that the lost node owned.
const STALLED_SHARE: f64 = 0.5;

/// The faults of one stage.
pub struct NodeFaults {
    pub nodes: usize,
    pub replicas: u32,
    pub kills: u32,
    /// For how long a killed node is away.
    pub down: Duration,
    /// For how long a node is silent; `None`: none is.
    pub silence_s: Option<u64>,
    pub seed: u64,
    /// A factor on all promised times; above 1 some of a lost node's segments may be read from S3 again.
    pub slack: f64,
}

/// Runs it.
pub fn run(world: &World, settings: &NodeFaults) -> anyhow::Result<Findings> {
    let what = match settings.replicas {
        1 => "kill_1_replica".to_owned(),
        _ => "kill".to_owned(),
    };
    let table = world.table(&what, 160, 384)?;
    let mut nodes = world.nodes(settings.nodes, settings.replicas)?;
    let reader = world.warm(&nodes, &table, steady(), settings.replicas)?;
    let mut found = Findings::default();
    let mut random = Rng::with_seed(settings.seed);
    if settings.replicas > 1 {
        let began = Instant::now();
        std::thread::sleep(Duration::from_secs(5));
        found.value("no_fault_wait_ms_max", "ms", reader.longest_wait_ms(began));
    }
    kills(world, settings, &what, &table, &mut nodes, &reader, &mut random, &mut found)?;
    if let Some(seconds) = settings.silence_s {
        let victim = random.usize(..nodes.count());
        world.s3_bytes(&table);
        let began = Instant::now();
        nodes.server(victim)?.pause();
        std::thread::sleep(Duration::from_secs(seconds));
        nodes.server(victim)?.resume();
        nodes.wait_until_agreed(&world.runtime)?;
        std::thread::sleep(AFTERMATH);
        let stall = reader.longest_wait_ms(began);
        found.value("sigstop_stall_ms_max", "ms", stall);
        let most = 2000.0 * settings.slack;
        found.check(stall <= most, format!("a node silent for {seconds} s: {stall:.0} ms, at most {most}"));
        let share = world.s3_bytes(&table) as f64 / owned_bytes(&reader, &table, nodes.count(), victim);
        found.value("sigstop_s3_over_owned", "ratio", share);
        check_s3(settings, "is silent", share, &mut found);
    }
    world.end(&what, reader, nodes, &mut found)?;
    Ok(found)
}

/// kill -9 of nodes at random moments.
#[expect(clippy::too_many_arguments, reason = "the parts of one stage")]
fn kills(
    world: &World,
    settings: &NodeFaults,
    what: &str,
    table: &Table,
    nodes: &mut Nodes,
    reader: &BackgroundReader,
    random: &mut Rng,
    found: &mut Findings,
) -> anyhow::Result<()> {
    let (mut stalls, mut fetched, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..settings.kills {
        std::thread::sleep(Duration::from_millis(random.u64(..1500)));
        let victim = random.usize(..nodes.count());
        world.s3_bytes(table);
        let at = Instant::now();
        nodes.kill(victim)?;
        std::thread::sleep(settings.down);
        let stall = reader.longest_wait_ms(at);
        nodes.up(victim)?;
        nodes.wait_until_agreed(&world.runtime)?;
        std::thread::sleep(Duration::from_secs(2));
        let bytes = world.s3_bytes(table) as f64;
        eprintln!("kill of node {victim}: {stall:.0} ms, {bytes:.0} bytes from S3");
        stalls.push(stall);
        fetched.push(bytes);
        shares.push(bytes / owned_bytes(reader, table, nodes.count(), victim));
        world.wait_for_copies(nodes, table, settings.replicas)?;
    }
    let mut sorted = stalls.clone();
    sorted.sort_by(f64::total_cmp);
    let quantile = |q: f64| sorted.get(((sorted.len() as f64 * q).ceil() as usize).saturating_sub(1));
    for (row, q) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
        let value = quantile(q).copied().unwrap_or(f64::NAN);
        found.rows.push(Row { value, ..Row::of(format!("{what}_stall_ms_{row}"), "ms", &stalls) });
    }
    let worst = quantile(1.0).copied().unwrap_or(f64::NAN);
    let most = settings.slack * if settings.replicas > 1 { 1000.0 } else { 3000.0 };
    let text = format!(
        "{} kills, seed {}, {} replicas: {worst:.0} ms at most",
        stalls.len(),
        settings.seed,
        settings.replicas
    );
    found.check(worst <= most, format!("{text}, {most} allowed"));
    let share = shares.iter().copied().fold(0.0, f64::max);
    found.rows.push(Row::of(format!("{what}_s3_bytes"), "bytes", &fetched));
    found.rows.push(Row::of(format!("{what}_s3_over_owned"), "ratio", &shares));
    check_s3(settings, "dies", share, found);
    Ok(())
}

/// Judges the bytes read from S3 again when a node is lost, as a share of those that it owned: with one
/// replica all of them at most, with more none.
fn check_s3(settings: &NodeFaults, loss: &str, share: f64, found: &mut Findings) {
    let most = match settings.replicas {
        1 => 1.0,
        _ if settings.slack > 1.0 => STALLED_SHARE,
        _ => 0.0,
    };
    let replicas = settings.replicas;
    let text = format!(
        "S3 was read again for {share:.2} of what a node owned that {loss}, {most} allowed with {replicas} replicas"
    );
    found.check(share <= most, text);
}

/// Bytes in S3 of the segments that a node owns.
fn owned_bytes(reader: &BackgroundReader, table: &Table, count: usize, node: usize) -> f64 {
    let members: Vec<v1::Node> =
        (0..count).map(|node| v1::Node { name: name(node), weight: 1.0, ..Default::default() }).collect();
    let manifest = &reader.dataset().manifest;
    let (ring, balance) = (ring::Ring::new(&members), ring::Balance::of(&members, [&**manifest]));
    let owner = |segment| manifest.segment_id(segment).ok().and_then(|id| balance.owner(&ring, id));
    let owned = (0..table.segments as u32).filter(|&segment| owner(segment) == Some(node)).count();
    table.projected_bytes() as f64 / table.segments as f64 * owned as f64
}
