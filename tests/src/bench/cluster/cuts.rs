//! A node cut off from etcd only, from clients only, from other nodes only, while a job reads.

use super::faults::AFTERMATH;
use super::jobs::steady;
use super::network::{CutFrom, Network};
use super::nodes::Nodes;
use super::world::World;
use crate::harness::check::Findings;
use crate::harness::process::ServerOptions;
use std::time::{Duration, Instant};

/// What a reader may wait: as for a node that dies.
const STALL_MS: f64 = 3000.0;

/// Runs it; each cut lasts `seconds`. Times that are promised may be `slack` times as long.
pub fn run(world: &World, count: usize, seconds: u64, slack: f64) -> anyhow::Result<Findings> {
    let mut found = Findings::default();
    if let Some(obstacle) = Network::obstacle() {
        found.skip(format!("cut networks: {obstacle}"));
        return Ok(found);
    }
    let table = world.table("cuts", 160, 384)?;
    let mut network = Network::new(count)?;
    let store = network.relay(&world.runtime, &world.proxy.endpoint)?;
    let members = world.etcd.borrow().endpoints();
    let etcd: Result<Vec<_>, _> = members.iter().map(|url| network.relay(&world.runtime, url)).collect();
    let etcd = etcd?;
    let arguments: Vec<String> =
        etcd.iter().flat_map(|address| ["--etcd".to_owned(), format!("http://{address}")]).collect();
    let base = ServerOptions::for_endpoint(&world.s3, &format!("http://{store}"));
    let base = world.clustered(base, &arguments, 1);
    let mut nodes = Nodes::start(&world.runtime, base, network.seats())?;
    let reader = world.warm(&nodes, &table, steady(), 1)?;
    let cuts = [("etcd", CutFrom::Services(&etcd)), ("clients", CutFrom::Clients), ("peers", CutFrom::Peers)];
    for (victim, (name, from)) in cuts.into_iter().enumerate() {
        let victim = victim % count;
        world.s3_bytes(&table);
        let began = Instant::now();
        network.cut(victim, from)?;
        std::thread::sleep(Duration::from_secs(seconds));
        network.heal(victim)?;
        nodes.wait_until_agreed(&world.runtime)?;
        std::thread::sleep(AFTERMATH);
        let (stall, s3) = (reader.longest_wait_ms(began), world.s3_bytes(&table));
        found.value(format!("cut_from_{name}_stall_ms_max"), "ms", stall);
        found.value(format!("cut_from_{name}_s3_bytes"), "bytes", s3 as f64);
        let most = STALL_MS * slack;
        let text = format!("a node cut off from {name} for {seconds} s: {stall:.0} ms, {most} allowed");
        found.check(stall <= most, text);
        eprintln!("node {victim} cut off from {name}: {stall:.0} ms, {s3} bytes from S3");
    }
    world.end("cuts", reader, nodes, &mut found)?;
    Ok(found)
}
