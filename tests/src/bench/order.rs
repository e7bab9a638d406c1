//! `make bench-order`: the order, measured. How fast a plan yields positions and opens, how well it shuffles,
//! its cost for a node with many ranks and for a reader with many nodes, the cost of a resume and of a
//! window, and whether 200 SIGKILLs lose or repeat a sample.

mod dataset;
mod groups;
mod kills;
mod node_plans;
mod plan;
mod reader;
mod resume;
mod windows;

use super::stages::{Stages, runtime};
use crate::harness::mnist;
use crate::harness::ports::free_addresses;
use crate::harness::process::{Server, ServerOptions};
use crate::harness::s3::S3Server;
use crate::harness::table::{MIB_ROWS, Table};
use clap::{Parser, Subcommand};
use serde_json::json;
use std::path::PathBuf;

/// Measures the order.
#[derive(Debug, Clone, Parser)]
#[command(name = "forebay-bench-order", version)]
pub struct OrderOptions {
    /// How often the reading process is killed.
    #[arg(long, default_value_t = 200)]
    kills: u32,
    /// Decides the moments of the kills and the world sizes.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the report goes.
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, Clone, Subcommand)]
enum Role {
    /// The reading process that gets killed; started by the benchmark itself.
    #[command(hide = true)]
    Reader(reader::ReaderOptions),
}

/// Runs it; false if a promise was broken.
pub fn run(options: &OrderOptions) -> anyhow::Result<bool> {
    let runtime = runtime()?;
    if let Some(Role::Reader(reader)) = &options.role {
        runtime.block_on(reader::run(reader))?;
        return Ok(true);
    }
    let mut stages = Stages::default();
    stages.run("Plan", || Ok(plan::run()));
    stages.run("NodePlans", node_plans::run);
    stages.run("Groups", groups::run);
    let s3 = S3Server::start();
    mnist::upload(&s3)?;
    let uri = s3.uri("mnist/train");
    let (one, three) = (cluster(&s3, 1)?, cluster(&s3, 3)?);
    let endpoints = [one[0].endpoint.clone(), three[0].endpoint.clone()];
    for endpoint in &endpoints {
        runtime.block_on(resume::read_once(endpoint, &uri))?;
    }
    stages.run("Resume", || runtime.block_on(resume::run(&endpoints[0], &uri)));
    let table = Table::upload(&s3, "windows", windows::SEGMENTS, MIB_ROWS)?;
    stages.run("Windows", || runtime.block_on(windows::run(&endpoints[0], &uri, &table.uri)));
    stages.run("Kills", || kills::run(&runtime, &endpoints, &uri, options.kills, options.seed));
    one.into_iter().chain(three).try_for_each(Server::try_stop)?;
    let settings =
        json!({"kills": options.kills, "seed": options.seed, "segment_bytes": dataset::SEGMENT_BYTES});
    stages.end(&options.folder, "order", settings)
}

/// `count` nodes that share their segments.
fn cluster(s3: &S3Server, count: usize) -> anyhow::Result<Vec<Server>> {
    let addresses = free_addresses(count)?;
    let start = |address: &String| {
        let options = ServerOptions::for_s3(s3).args(["--listen", address]);
        let all = addresses.iter().flat_map(|a| ["--cluster-node".to_owned(), format!("http://{a}")]);
        options.args(all).try_start()
    };
    addresses.iter().map(start).collect()
}
