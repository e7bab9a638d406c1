//! `make bench-cluster`: nodes, etcd and networks fail, nodes come and go, many jobs want the same data at
//! once. It measures the effect on the jobs that read meanwhile. Processes and etcd are real; S3 is 30 ms
//! away.
//!
//! Each stage starts nodes of its own, warms them, and can be run by itself (`--only`).

mod cold;
pub mod content;
mod cuts;
mod faults;
mod hot;
mod jobs;
mod join;
mod leave;
mod network;
mod nodes;
mod placement;
mod quorum;
mod world;

use super::stages::{Stages, wanted};
use crate::harness::check::Findings;
use clap::{Parser, ValueEnum};
use faults::NodeFaults;
use jobs::{bare, steady};
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;
use world::World;

/// Nodes with bounded caches, and what each holds of the dataset in shares of one node: what it owns, 1.05
/// shares at most, and a little more. Without one of three nodes the others own 1.5 shares each. With more
/// nodes a survivor would have to keep less, and could.
const BOUNDED_NODES: usize = 3;
const BOUNDED_SHARES: f64 = 1.2;

/// Torments a cluster and measures what its readers notice.
#[derive(Debug, Clone, Parser)]
#[command(name = "forebay-bench-cluster", version)]
pub struct ClusterOptions {
    /// Only these stages, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Stage>,
    /// Cache nodes.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(3..=16))]
    nodes: u8,
    /// How often a cache node is killed.
    #[arg(long, default_value_t = 20)]
    kills: u32,
    /// For how long a killed node is away, in seconds.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(4..))]
    down_s: u64,
    /// For how long a node is silent, in seconds.
    #[arg(long, default_value_t = 20)]
    silence_s: u64,
    /// For how long a node's network is cut, in seconds: beyond a lease and the time until a node without
    /// one is forgotten.
    #[arg(long, default_value_t = 20)]
    cut_s: u64,
    /// For how long etcd is stopped, in seconds; its quorum is lost for a third of that.
    #[arg(long, default_value_t = 60)]
    etcd_down_s: u64,
    /// What the moments and the victims depend on.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the report goes.
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
    /// For tests on machines that stall: a factor on all promised times. Above 1 segments may be read from S3
    /// again that nodes did not get from others in time, as many as they count.
    #[arg(long, default_value_t = 1.0, hide = true)]
    slack: f64,
}

/// The stages of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Stage {
    /// How evenly segments lie on nodes, simulated.
    Placement,
    /// Nodes killed, and one that falls silent, with 2 replicas.
    Kills,
    /// Nodes killed with 1 replica.
    KillsOneReplica,
    /// The same with caches that hold little more than the nodes' own segments; always three nodes.
    KillsBounded,
    /// Nodes killed with 2 replicas, while a job reads that has hardly anything read ahead.
    KillsBare,
    /// A node cut off from etcd, from clients, from other nodes.
    Cuts,
    /// etcd stopped, its leader killed, its quorum lost.
    Etcd,
    /// A node joins.
    Join,
    /// A node is drained, and all are restarted one after the other; with 1 replica and with 2.
    Leave,
    /// Data that all want at once.
    Hot,
    /// A cold epoch, by one job and by three.
    Cold,
}

/// Runs it; false if a promise was broken.
pub fn run(options: &ClusterOptions) -> anyhow::Result<bool> {
    let world = World::start()?;
    let mut stages = Stages::default();
    for stage in wanted(&options.only) {
        stages.run(stage, || one(stage, &world, options));
    }
    let settings = json!({
        "nodes": options.nodes, "kills": options.kills, "down_s": options.down_s, "seed": options.seed,
        "silence_s": options.silence_s, "cut_s": options.cut_s, "etcd_down_s": options.etcd_down_s,
    });
    stages.end(&options.folder, "cluster", settings)
}

fn one(stage: Stage, world: &World, options: &ClusterOptions) -> anyhow::Result<Findings> {
    let nodes = options.nodes.into();
    match stage {
        Stage::Placement => Ok(placement::run()),
        Stage::Kills | Stage::KillsOneReplica | Stage::KillsBounded | Stage::KillsBare => {
            faults::run(world, &kills(stage, options))
        }
        Stage::Cuts => cuts::run(world, nodes, options.cut_s, options.slack),
        Stage::Etcd => quorum::run(world, nodes, options.etcd_down_s, options.seed, options.slack),
        Stage::Join => join::run(world, nodes),
        Stage::Leave => {
            let mut found = leave::run(world, nodes, 1, options.seed)?;
            found.add(leave::run(world, nodes, 2, options.seed)?);
            Ok(found)
        }
        Stage::Hot => hot::run(world),
        Stage::Cold => cold::run(world, nodes),
    }
}

/// What a stage of kills does.
fn kills(stage: Stage, options: &ClusterOptions) -> NodeFaults {
    let base = NodeFaults {
        what: "kill",
        nodes: options.nodes.into(),
        replicas: 2,
        cache_shares: None,
        job: steady(),
        kills: options.kills,
        down: Duration::from_secs(options.down_s),
        silence_s: None,
        seed: options.seed,
        slack: options.slack,
    };
    match stage {
        Stage::KillsOneReplica => NodeFaults { what: "kill_1_replica", replicas: 1, ..base },
        Stage::KillsBounded => NodeFaults {
            what: "kill_bounded",
            nodes: BOUNDED_NODES,
            replicas: 1,
            cache_shares: Some(BOUNDED_SHARES),
            ..base
        },
        Stage::KillsBare => NodeFaults { what: "kill_bare", job: bare(), ..base },
        _ => NodeFaults { silence_s: Some(options.silence_s), ..base },
    }
}
