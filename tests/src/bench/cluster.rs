//! `make bench-cluster`: nodes, etcd and networks fail, nodes come and go, many jobs want the same data at
//! once. It measures the effect on the jobs that read meanwhile. Processes and etcd are real; S3 is 30 ms
//! away.
//!
//! Each stage starts nodes of its own, warms them, and can be run by itself (`--only`).

mod cold;
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
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;
use world::World;

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
    /// For how long a node is silent, in seconds; a cut network lasts half of that.
    #[arg(long, default_value_t = 20)]
    silence_s: u64,
    /// For how long etcd is stopped, in seconds; its quorum is lost for a third of that.
    #[arg(long, default_value_t = 60)]
    etcd_down_s: u64,
    /// What the moments and the victims depend on.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the report goes.
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
    /// For tests on machines that stall: a factor on all promised times. Above 1 half of a lost node's
    /// segments may be read from S3 again, as a node that stalls is passed over like a dead one.
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
        "silence_s": options.silence_s, "etcd_down_s": options.etcd_down_s,
    });
    stages.end(&options.folder, "cluster", settings)
}

fn one(stage: Stage, world: &World, options: &ClusterOptions) -> anyhow::Result<Findings> {
    let nodes = options.nodes.into();
    match stage {
        Stage::Placement => Ok(placement::run()),
        Stage::Kills => faults::run(
            world,
            &faults::NodeFaults {
                nodes,
                replicas: 2,
                kills: options.kills,
                down: Duration::from_secs(options.down_s),
                silence_s: Some(options.silence_s),
                seed: options.seed,
                slack: options.slack,
            },
        ),
        Stage::KillsOneReplica => faults::run(
            world,
            &faults::NodeFaults {
                nodes,
                replicas: 1,
                kills: options.kills,
                down: Duration::from_secs(options.down_s),
                silence_s: None,
                seed: options.seed,
                slack: options.slack,
            },
        ),
        Stage::Cuts => cuts::run(world, nodes, options.silence_s / 2, options.slack),
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
