//! A node cut off from etcd only, from clients only, from other nodes only, while a job reads.
//!
//! Cut off from clients, the node still gives the others what they lack; cut off from the others, it still
//! serves clients: S3 is not read. Cut off from etcd, its key runs out and nobody knows it any more: what it
//! owned may be read from S3 again, once.

use super::faults::{AFTERMATH, STALLED_SHARE, late_bytes, owned_bytes};
use super::jobs::steady;
use super::network::{CutFrom, Network};
use super::nodes::Nodes;
use super::world::World;
use crate::harness::check::Findings;
use crate::harness::process::ServerOptions;
use std::time::{Duration, Instant};

/// What a reader may wait: as for a node that dies.
const STALL_MS: f64 = 3000.0;

/// The part of a cut that a reader may wait at most, whatever the slack: one that goes on only when the cut
/// is over has to fail.
const PART_OF_CUT: f64 = 1.0 / 3.0;

/// Runs it; each cut lasts `seconds`. Times that are promised may be `slack` times as long. If they may be
/// longer at all, what silent nodes may cost at S3 is allowed too, see [`late_bytes`].
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
    let cuts = [
        ("etcd", CutFrom::Services(&etcd), 1.0),
        ("clients", CutFrom::Clients, 0.0),
        ("peers", CutFrom::Peers, 0.0),
    ];
    let most_ms = (STALL_MS * slack).min(seconds as f64 * 1e3 * PART_OF_CUT);
    for (victim, (name, from, share)) in cuts.into_iter().enumerate() {
        let victim = victim % count;
        let missed = nodes.missed()?;
        world.s3_bytes(&table);
        let began = Instant::now();
        network.cut(victim, from)?;
        std::thread::sleep(Duration::from_secs(seconds));
        network.heal(victim)?;
        nodes.wait_until_agreed(&world.runtime)?;
        std::thread::sleep(AFTERMATH);
        let (stall, s3) = (reader.longest_wait_ms(began), world.s3_bytes(&table));
        let late = late_bytes(&nodes, &missed, &table)?;
        let owned = owned_bytes(&reader, &table, count, victim);
        let over_owned = s3 as f64 / owned;
        found.value(format!("cut_from_{name}_stall_ms_max"), "ms", stall);
        found.value(format!("cut_from_{name}_s3_bytes"), "bytes", s3 as f64);
        found.value(format!("cut_from_{name}_s3_over_owned"), "ratio", over_owned);
        let text = format!("a node cut off from {name} for {seconds} s: {stall:.0} ms, {most_ms:.0} allowed");
        found.check(stall <= most_ms, text);
        let most = share + if slack > 1.0 { (late / owned).min(STALLED_SHARE) } else { 0.0 };
        let text = format!(
            "S3 was read again for {over_owned:.2} of what a node owned that was cut off from {name}, {most:.2} allowed"
        );
        found.check(over_owned <= most, text);
        eprintln!("node {victim} cut off from {name}: {stall:.0} ms, {s3} bytes from S3");
    }
    world.end("cuts", reader, nodes, &mut found)?;
    Ok(found)
}
