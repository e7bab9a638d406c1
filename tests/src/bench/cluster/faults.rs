//! Nodes that die, and one that falls silent, while a job reads.

use super::nodes::{Nodes, name};
use super::world::World;
use crate::harness::background::BackgroundReader;
use crate::harness::check::Findings;
use crate::harness::reader::Job;
use crate::harness::report::Row;
use crate::harness::table::Table;
use fastrand::Rng;
use forebay_proto::{ring, v1};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Waits that end within this time after a fault count as its effect. Readers recover long before.
pub const AFTERMATH: Duration = Duration::from_secs(4);

/// On a machine that stalls: nodes that stall with the lost one may be passed over too, and others fetch what
/// only they hold. Without any replica it would be all that the lost node owned.
pub const STALLED_SHARE: f64 = 0.5;

/// Segments that were read again of which each kill tells.
const TOLD: usize = 8;

/// The faults of one stage.
pub struct NodeFaults {
    /// Its rows begin with it.
    pub what: &'static str,
    pub nodes: usize,
    pub replicas: u32,
    /// What a node's cache holds, in shares that one of the nodes has in the dataset. Survivors must not be
    /// able to keep all that they read of a dead node's. `None`: each holds the whole dataset.
    pub cache_shares: Option<f64>,
    /// The job that reads meanwhile.
    pub job: Job,
    pub kills: u32,
    /// For how long a killed node is away.
    pub down: Duration,
    /// For how long a node is silent; `None`: none is.
    pub silence_s: Option<u64>,
    pub seed: u64,
    /// A factor on all promised times; above 1 what silent nodes may cost at S3 is allowed too, see
    /// [`late_bytes`].
    pub slack: f64,
}

/// What each kill cost.
#[derive(Default)]
struct KillCosts {
    /// The longest wait until the node was started again.
    stalls_ms: Vec<f64>,
    /// The longest wait from then on.
    back_stalls_ms: Vec<f64>,
    s3_bytes: Vec<f64>,
    /// The same over what the node owned.
    shares: Vec<f64>,
    /// What silent nodes may cost at S3, over the same.
    late_shares: Vec<f64>,
    /// Of the bytes, over the same, the node's own segments. The rest is of segments that leave the
    /// survivors' caches.
    own_shares: Vec<f64>,
    /// Epochs read until the node was a member again.
    epochs: Vec<f64>,
}

/// Runs it.
pub fn run(world: &World, settings: &NodeFaults) -> anyhow::Result<Findings> {
    let what = settings.what;
    let table = world.table(what, 160, 384)?;
    let mut options = world.options(settings.replicas);
    if let Some(shares) = settings.cache_shares {
        let share = (table.segments * table.segment_bytes) as f64 / settings.nodes as f64;
        options = options.args(["--cache-bytes", &((shares * share) as u64).to_string()]);
    }
    let mut nodes = Nodes::start(&world.runtime, options, world.seats(settings.nodes)?)?;
    let reader = world.warm(&nodes, &table, settings.job.clone(), settings.replicas)?;
    let mut found = Findings::default();
    let mut random = Rng::with_seed(settings.seed);
    if settings.replicas > 1 {
        let began = Instant::now();
        std::thread::sleep(Duration::from_secs(5));
        let row = if what == "kill" { "no_fault".to_owned() } else { format!("{what}_no_fault") };
        found.value(format!("{row}_wait_ms_max"), "ms", reader.longest_wait_ms(began));
    }
    let costs = kills(world, settings, &table, &mut nodes, &reader, &mut random)?;
    judge(settings, &costs, &mut found);
    if let Some(seconds) = settings.silence_s {
        let victim = random.usize(..nodes.count());
        let missed = nodes.missed()?;
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
        let (bytes, late) = (world.s3_bytes(&table) as f64, late_bytes(&nodes, &missed, &table)?);
        let owned = owned_bytes(&reader, &table, nodes.count(), victim);
        found.value("sigstop_s3_over_owned", "ratio", bytes / owned);
        check_s3(settings, "is silent", (bytes / owned, late / owned), &mut found);
    }
    world.end(what, reader, nodes, &mut found)?;
    Ok(found)
}

/// kill -9 of nodes at random moments.
fn kills(
    world: &World,
    settings: &NodeFaults,
    table: &Table,
    nodes: &mut Nodes,
    reader: &BackgroundReader,
    random: &mut Rng,
) -> anyhow::Result<KillCosts> {
    let mut costs = KillCosts::default();
    let loader = &settings.job.settings;
    let batch_rows = loader.global_batch as f64 / f64::from(settings.job.world);
    let batches_per_epoch = reader.dataset().manifest.rows() as f64 / batch_rows;
    for _ in 0..settings.kills {
        std::thread::sleep(Duration::from_millis(random.u64(..1500)));
        let victim = random.usize(..nodes.count());
        let mut missed = nodes.missed()?;
        // It counts from the beginning when it is back.
        missed[victim] = 0.0;
        world.s3_bytes(table);
        let at = Instant::now();
        nodes.kill(victim)?;
        std::thread::sleep(settings.down);
        let stall = reader.longest_wait_ms(at);
        let up = Instant::now();
        nodes.up(victim)?;
        nodes.wait_until_agreed(&world.runtime)?;
        let epochs = reader.batches_between(at, Instant::now()) as f64 / batches_per_epoch;
        std::thread::sleep(Duration::from_secs(2));
        let log = world.s3.take_log();
        let bytes = table.data_bytes(&log) as f64;
        let own_bytes = table.data_bytes_of(&log, &owned(reader, table, nodes.count(), victim)) as f64;
        let late = late_bytes(nodes, &missed, table)?;
        // Bounded caches need not hold all copies at any time.
        if settings.cache_shares.is_none() {
            world.wait_for_copies(nodes, table, settings.replicas)?;
        }
        let back = reader.longest_wait_ms(up);
        eprintln!(
            "kill of node {victim}: {stall:.0} ms, then {back:.0} ms, {bytes:.0} bytes from S3, {own_bytes:.0} of them its own"
        );
        tell_read_again(&table.read_again(&log), at);
        costs.stalls_ms.push(stall);
        costs.back_stalls_ms.push(back);
        costs.s3_bytes.push(bytes);
        let owned = owned_bytes(reader, table, nodes.count(), victim);
        costs.shares.push(bytes / owned);
        costs.late_shares.push(late / owned);
        costs.own_shares.push(own_bytes / owned);
        costs.epochs.push(epochs);
    }
    Ok(costs)
}

/// Says of some segments that were read more than once since a kill which nodes read them, and when.
fn tell_read_again(read_again: &BTreeMap<u64, Vec<(&str, Instant)>>, kill: Instant) {
    for (segment, reads) in read_again.iter().take(TOLD) {
        let read = |(node, at): &(&str, Instant)| {
            format!("{node} after {:.0} ms", at.duration_since(kill).as_secs_f64() * 1e3)
        };
        eprintln!("  segment {segment}: {}", reads.iter().map(read).collect::<Vec<_>>().join(", "));
    }
    if read_again.len() > TOLD {
        eprintln!("  and {} more segments that were read again", read_again.len() - TOLD);
    }
}

/// Judges what kills cost.
fn judge(settings: &NodeFaults, costs: &KillCosts, found: &mut Findings) {
    let NodeFaults { what, seed, replicas, .. } = settings;
    let mut sorted = costs.stalls_ms.clone();
    sorted.sort_by(f64::total_cmp);
    let quantile = |q: f64| sorted.get(((sorted.len() as f64 * q).ceil() as usize).saturating_sub(1));
    for (row, q) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
        let value = quantile(q).copied().unwrap_or(f64::NAN);
        found.rows.push(Row { value, ..Row::of(format!("{what}_stall_ms_{row}"), "ms", &costs.stalls_ms) });
    }
    let back = Row::of(format!("{what}_back_stall_ms_max"), "ms", &costs.back_stalls_ms);
    let back = Row { value: back.max, ..back };
    let worst = quantile(1.0).copied().unwrap_or(f64::NAN);
    let most = settings.slack * if *replicas > 1 { 1000.0 } else { 3000.0 };
    let text = format!("{what}: {} kills, seed {seed}, {replicas} replicas", sorted.len());
    found.check(worst <= most, format!("{text}: {worst:.0} ms at most, {most} allowed"));
    let text = format!("{text}: {:.0} ms at most while the node comes back, {most} allowed", back.value);
    found.check(back.value <= most, text);
    found.rows.push(back);
    found.rows.push(Row::of(format!("{what}_s3_bytes"), "bytes", &costs.s3_bytes));
    let shares = Row::of(format!("{what}_s3_over_owned"), "ratio", &costs.shares);
    match settings.cache_shares {
        None => {
            let each = costs.shares.iter().copied().zip(costs.late_shares.iter().copied());
            let over = |&(share, late): &(f64, f64)| share - s3_share_most(settings, late);
            if let Some(worst) = each.max_by(|a, b| over(a).total_cmp(&over(b))) {
                check_s3(settings, "dies", worst, found);
            }
        }
        Some(_) => {
            check_s3_by_epochs(settings, costs, found);
            check_own_by_epochs(what, costs, found);
        }
    }
    found.rows.push(shares);
}

/// Judges the bytes read from S3 again when a node is lost, beside what silent nodes may have cost; both as
/// shares of the bytes that the node owned.
fn check_s3(settings: &NodeFaults, loss: &str, (share, late_share): (f64, f64), found: &mut Findings) {
    let (most, replicas) = (s3_share_most(settings, late_share), settings.replicas);
    let text = format!(
        "S3 was read again for {share:.2} of what a node owned that {loss}, {most:.2} allowed with {replicas} replicas"
    );
    found.check(share <= most, text);
}

/// The share that may be read again: with one replica all that the node owned, with more nothing. On a
/// machine that stalls, others stall with the lost one, and cost what silent nodes may, up to a share.
fn s3_share_most(settings: &NodeFaults, late_share: f64) -> f64 {
    match settings.replicas {
        1 => 1.0,
        _ if settings.slack > 1.0 => late_share.min(STALLED_SHARE),
        _ => 0.0,
    }
}

/// What silent nodes may have cost at S3 since the nodes had `missed` these numbers of segments, each for
/// itself (docs/runbook.md). To be asked after the bytes that left S3: a node counts before it fetches.
pub fn late_bytes(nodes: &Nodes, missed: &[f64], table: &Table) -> anyhow::Result<f64> {
    let growth: f64 = nodes.missed()?.iter().zip(missed).map(|(now, before)| now - before).sum();
    Ok(growth * table.segment_bytes as f64)
}

/// The same where survivors have no room for all that they read of a dead node's segments: each of these is
/// read from S3 at most once in each epoch until the node is back, and once more, as nodes and readers are
/// up to an epoch ahead. The survivors' own segments that leave for them are read again too, and are in the
/// bytes. And if a kill cost nothing, there was room, and the stage is not what it claims.
fn check_s3_by_epochs(settings: &NodeFaults, costs: &KillCosts, found: &mut Findings) {
    let what = settings.what;
    let over_reads: Vec<f64> =
        costs.shares.iter().zip(&costs.epochs).map(|(share, epochs)| share / (epochs + 1.0)).collect();
    let reads = Row::of(format!("{what}_s3_over_reads"), "ratio", &over_reads);
    let text = format!(
        "{what}: S3 was read again for {:.2} of what a dead node owned, once an epoch and once more, 1 allowed",
        reads.max
    );
    found.check(reads.max <= 1.0, text);
    let least = costs.shares.iter().copied().fold(f64::INFINITY, f64::min);
    found.check(
        least > 0.0,
        format!("{what}: every kill costs bytes from S3, {least:.2} of what the node owned at least"),
    );
    found.rows.push(Row::of(format!("{what}_epochs_read"), "epochs", &costs.epochs));
    found.rows.push(reads);
}

/// The same of the dead node's own segments alone. Each has one owner at a time, which reads it from S3 once
/// in an epoch for all readers. Survivors begin where the job stands when the node dies, and are back
/// at their own segments where it stands when the node is a member again. Nodes fetch ahead to the end of the
/// next epoch: two epochs more at most.
fn check_own_by_epochs(what: &str, costs: &KillCosts, found: &mut Findings) {
    let over_reads: Vec<f64> =
        costs.own_shares.iter().zip(&costs.epochs).map(|(share, epochs)| share / (epochs + 2.0)).collect();
    let reads = Row::of(format!("{what}_s3_own_over_reads"), "ratio", &over_reads);
    let text = format!(
        "{what}: a dead node's own segments were read from S3 {:.2} times in each epoch that was read or begun, 1 allowed",
        reads.max
    );
    found.check(reads.max <= 1.0, text);
    found.rows.push(Row::of(format!("{what}_s3_own_over_owned"), "ratio", &costs.own_shares));
    found.rows.push(reads);
}

/// Bytes in S3 of the segments that a node owns.
pub fn owned_bytes(reader: &BackgroundReader, table: &Table, count: usize, node: usize) -> f64 {
    let owned = owned(reader, table, count, node).len();
    table.projected_bytes() as f64 / table.segments as f64 * owned as f64
}

/// The segments that a node owns.
fn owned(reader: &BackgroundReader, table: &Table, count: usize, node: usize) -> BTreeSet<u64> {
    let members: Vec<v1::Node> =
        (0..count).map(|node| v1::Node { name: name(node), weight: 1.0, ..Default::default() }).collect();
    let manifest = &reader.dataset().manifest;
    let (ring, balance) = (ring::Ring::new(&members), ring::Balance::of(&members, [&**manifest]));
    let owner = |segment| manifest.segment_id(segment).ok().and_then(|id| balance.owner(&ring, id));
    (0..table.segments as u32).filter(|&segment| owner(segment) == Some(node)).map(u64::from).collect()
}

#[test]
fn with_replicas_a_lost_node_costs_s3_what_others_did_not_get_in_time_and_only_where_that_is_allowed() {
    let judged = |slack: f64, shares: [f64; 2], late_shares: [f64; 2]| {
        let settings = NodeFaults {
            what: "kill",
            nodes: 3,
            replicas: 2,
            cache_shares: None,
            job: super::jobs::steady(),
            kills: 2,
            down: Duration::ZERO,
            silence_s: None,
            seed: 1,
            slack,
        };
        let costs =
            KillCosts { shares: shares.into(), late_shares: late_shares.into(), ..Default::default() };
        let mut found = Findings::default();
        judge(&settings, &costs, &mut found);
        // There are no waits to judge.
        found.checks.retain(|check| check.claim.starts_with("S3 was read again"));
        assert_eq!(found.checks.len(), 1);
        found.broken().is_empty()
    };
    assert!(judged(5.0, [0.1, 0.4], [0.1, 0.5]));
    assert!(!judged(5.0, [0.3, 0.4], [0.2, 0.5]), "each kill has its own bound");
    assert!(judged(1.0, [0.0, 0.0], [0.0, 0.5]) && !judged(1.0, [0.0, 0.1], [0.0, 0.5]));
}

#[test]
fn only_a_dead_nodes_own_segments_are_held_against_its_reads() {
    let costs = |own_share: f64| KillCosts {
        // The survivors' own segments make the bytes more than the dead node's reads could.
        shares: vec![4.06],
        own_shares: vec![own_share],
        epochs: vec![1.7],
        ..Default::default()
    };
    let judged = |own_share: f64| {
        let mut found = Findings::default();
        check_own_by_epochs("kill_bounded", &costs(own_share), &mut found);
        (found.rows[1].name.clone(), found.broken().is_empty())
    };
    let row = || "kill_bounded_s3_own_over_reads".to_owned();
    assert_eq!(judged(2.5), (row(), true));
    assert_eq!(judged(3.7), (row(), true), "in each epoch that was read, and two more");
    assert_eq!(judged(3.8), (row(), false), "a segment twice in one epoch");
}
