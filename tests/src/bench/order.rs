//! `make bench-order`: the order measured. How fast a plan yields positions and opens, how well it shuffles, what a
//! resume costs, and whether 200 SIGKILLs lose or repeat a sample.

mod kills;
mod plan;
mod reader;
mod resume;

use crate::harness::mnist;
use crate::harness::process::{Server, ServerOptions, free_addresses};
use crate::harness::report;
use crate::harness::s3::S3Server;
use clap::{Parser, Subcommand};
use forebay_client::{Access, Dataset, DatasetSpec};
use serde_json::json;
use std::path::PathBuf;

/// Small segments, so that 47 MB of MNIST make 40 of them.
const SEGMENT_BYTES: u64 = 1 << 20;

/// Measures the order.
#[derive(Debug, Clone, Parser)]
#[command(name = "forebay-bench-order", version)]
pub struct Options {
    /// How often the reading process is killed.
    #[arg(long, default_value_t = 200)]
    kills: u32,
    /// What the moments of the kills and the world sizes depend on.
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
    Reader(reader::Options),
}

/// Runs it; false if a promise was broken.
pub fn run(options: &Options) -> anyhow::Result<bool> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    if let Some(Role::Reader(reader)) = &options.role {
        runtime.block_on(reader::run(reader))?;
        return Ok(true);
    }
    let mut rows = plan::speed();
    rows.extend(plan::quality());
    let s3 = S3Server::start();
    mnist::upload(&s3)?;
    let uri = s3.uri("mnist/train");
    let nodes = [1, 3].map(|count| cluster(&s3, count));
    let [one, three] = nodes;
    let (one, three) = (one?, three?);
    let endpoints = [one[0].endpoint.clone(), three[0].endpoint.clone()];
    for endpoint in &endpoints {
        runtime.block_on(resume::read_once(endpoint, &uri))?;
    }
    rows.extend(runtime.block_on(resume::ttfb(&endpoints[0], &uri))?);
    rows.extend(runtime.block_on(resume::rollover(&endpoints[0], &uri))?);
    rows.extend(runtime.block_on(resume::throughput(&endpoints[0], &uri))?);
    let kills = kills::run(&runtime, &endpoints, &uri, options.kills, options.seed)?;
    rows.extend(kills.rows);
    for server in one.into_iter().chain(three) {
        server.try_stop().map_err(anyhow::Error::msg)?;
    }
    let settings = json!({"kills": options.kills, "seed": options.seed, "segment_bytes": SEGMENT_BYTES});
    report::write(&options.folder, "order", settings, &rows)?;
    println!("{} {}", if kills.exact { "PASS" } else { "FAIL" }, kills.verdict);
    Ok(kills.exact)
}

/// So many nodes that share what they hold.
fn cluster(s3: &S3Server, count: usize) -> anyhow::Result<Vec<Server>> {
    let addresses = free_addresses(count)?;
    let start = |address: &String| {
        let options = ServerOptions::for_s3(s3).args(["--listen", address]);
        let all = addresses.iter().flat_map(|a| ["--cluster-node".to_owned(), format!("http://{a}")]);
        options.args(all).try_start().map_err(anyhow::Error::msg)
    };
    addresses.iter().map(start).collect()
}

/// Opens MNIST in small segments.
async fn open(endpoint: &str, uri: &str) -> anyhow::Result<Dataset> {
    let spec = DatasetSpec { segment_bytes: Some(SEGMENT_BYTES), ..DatasetSpec::new(uri) };
    Ok(Dataset::open(&Access::endpoint(endpoint)?, &spec).await?)
}
