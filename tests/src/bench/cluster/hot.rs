//! One dataset with one replica on one node, and six jobs that want it at once. Nodes serve 200 MB/s each at
//! most, so copies on the other nodes must make up for it, and go away afterwards.

use super::jobs::{greedy, steady};
use super::nodes::Nodes;
use super::world::{World, verdict};
use crate::harness::background::BackgroundReader;
use crate::harness::check::Findings;
use crate::harness::table::Table;
use forebay_client::Endpoints;
use forebay_client::survey;
use forebay_proto::v1;
use std::time::{Duration, Instant};

/// Reading jobs.
const JOBS: u64 = 6;

/// What a node serves at most.
const LIMIT: &str = "200MB";

/// Between two looks.
const LOOK: Duration = Duration::from_millis(500);

/// How long copies may take to be made, and to go away.
const HEAT: Duration = Duration::from_secs(30);
const COOL: Duration = Duration::from_secs(180);

/// Served by all nodes together over a while.
struct Look {
    bytes_per_s: f64,
    hot: u64,
}

/// Runs it.
pub fn run(world: &World) -> anyhow::Result<Findings> {
    let table = world.table("hot", 160, 384)?;
    let base = world.options(1).args(["--serve-bytes-per-s", LIMIT]);
    let mut seats = world.seats(3)?;
    seats[1..].iter_mut().for_each(|seat| *seat = seat.clone().args(["--weight", "0.000001"]));
    let nodes = Nodes::start(&world.runtime, base, seats)?;
    let mut found = Findings::default();
    // Read once, and not by many: it is there, and not hot.
    let mut once = steady();
    once.settings.epochs = Some(1);
    let first = BackgroundReader::start(&world.runtime, &nodes.endpoints(), &table, once)?;
    first.wait(Duration::from_secs(300))?;
    verdict("hot_warm_up", vec![first], &mut found)?;
    world.wait_for_copies(&nodes, &table, 1)?;
    world.s3_bytes(&table);
    let start =
        |seed| BackgroundReader::start(&world.runtime, &nodes.endpoints(), &table, greedy(seed, 1, None));
    let readers = (0..JOBS).map(start).collect::<anyhow::Result<Vec<_>>>()?;
    let looks = watch(world, &nodes);
    // What one node serves: before there are copies, but not while readers start.
    let alone: Vec<f64> =
        looks.iter().skip(1).take_while(|look| look.hot == 0).map(|look| look.bytes_per_s).collect();
    let before = match alone.is_empty() {
        true => looks.first().map_or(f64::NAN, |look| look.bytes_per_s),
        false => mean(&alone),
    };
    // From the first copies on, until the jobs stop: while further copies are made too.
    let spread: Vec<f64> =
        looks.iter().skip_while(|look| look.hot == 0).map(|look| look.bytes_per_s).collect();
    let pairs = looks.windows(4).map(|four| four.iter().map(|look| look.bytes_per_s).sum::<f64>() / 4.0);
    let after = pairs.fold(0.0, f64::max);
    let ratio = after / before;
    let held = world.held(&nodes, &table);
    found.value("hot_served_bytes_per_s_before", "bytes/s", before);
    found.value("hot_served_bytes_per_s_after", "bytes/s", after);
    found.value("hot_served_ratio", "ratio", ratio);
    found.value("hot_served_mean_ratio", "ratio", mean(&spread) / before);
    found.value("hot_copies", "segments", held[1..].iter().sum::<u64>() as f64);
    let first_hot =
        looks.iter().position(|look| look.hot > 0).map_or(f64::NAN, |i| i as f64 * LOOK.as_secs_f64());
    found.value("hot_noticed_after_s", "s", first_hot);
    found.check(ratio >= 2.5, format!("hot data: {ratio:.2} x as much served within {} s", HEAT.as_secs()));
    verdict("hot", readers, &mut found)?;
    cool(world, &nodes, &table, &mut found)?;
    let s3 = world.s3_bytes(&table);
    found.value("hot_s3_bytes", "bytes", s3 as f64);
    found.check(s3 == 0, format!("hot data: {s3} bytes from S3"));
    nodes.end()?;
    Ok(found)
}

/// NaN of none.
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Looks at the nodes for as long as copies may take to be made.
fn watch(world: &World, nodes: &Nodes) -> Vec<Look> {
    let served = || -> Vec<(u64, u64)> {
        let of = |node| nodes.status(&world.runtime, node).ok();
        let figures = |s: v1::StatusReply| (s.counters.unwrap_or_default().bytes_served, s.segments_hot);
        (0..nodes.count()).map(|node| of(node).map(figures).unwrap_or_default()).collect()
    };
    let began = Instant::now();
    let (mut looks, mut last) = (Vec::new(), (Instant::now(), served()));
    while began.elapsed() < HEAT {
        std::thread::sleep(LOOK);
        let (now, all) = (Instant::now(), served());
        let seconds = (now - last.0).as_secs_f64();
        let rate =
            |(after, before): (&(u64, u64), &(u64, u64))| after.0.saturating_sub(before.0) as f64 / seconds;
        let each: Vec<f64> = all.iter().zip(&last.1).map(rate).collect();
        let hot = all.iter().map(|(_, hot)| hot).sum();
        let text: Vec<String> = each.iter().map(|rate| format!("{:.0}", rate / 1e6)).collect();
        let at = began.elapsed().as_secs_f64();
        eprintln!("{at:.1} s: {hot} segments hot, {} MB/s", text.join(" + "));
        looks.push(Look { bytes_per_s: each.iter().sum(), hot });
        last = (now, all);
    }
    looks
}

/// Waits until the copies are gone, from the topology and from the disks.
fn cool(world: &World, nodes: &Nodes, table: &Table, found: &mut Findings) -> anyhow::Result<()> {
    let endpoints = Endpoints::parse(&nodes.endpoints())?;
    let began = Instant::now();
    let (mut listed, mut held) = (usize::MAX, u64::MAX);
    while (listed > 0 || held > 0) && began.elapsed() < COOL {
        listed = world.runtime.block_on(survey::topology(&endpoints))?.hot.len();
        held = world.held(nodes, table)[1..].iter().sum();
        std::thread::sleep(LOOK);
    }
    found.value("hot_cooled_after_s", "s", began.elapsed().as_secs_f64());
    found.value("hot_copies_left", "segments", held as f64);
    found.value("hot_entries_left", "segments", listed as f64);
    found.check(
        listed == 0 && held == 0,
        format!("of the further copies {held} are left, and {listed} in the topology"),
    );
    Ok(())
}
