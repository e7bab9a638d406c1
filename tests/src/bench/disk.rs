//! `make bench-store`: the store and the plan measured. How many reads are hits when the cache is smaller than the data,
//! how often a byte leaves S3 and is written, what a restart costs; and whether kills, damaged files, full disks and a
//! failing S3 ever lead to a wrong value.
//!
//! Each part can be run by itself (`--only`), and the tests run the faster ones at a smaller size.

pub mod amplification;
pub mod cold;
pub mod faults;
pub mod flips;
pub mod folder;
pub mod hits;
pub mod kills;
pub mod memory;
mod replay;
pub mod restart;
pub mod ticker;

use crate::harness::check::{Findings, line};
use crate::harness::process::Server;
use crate::harness::report;
use crate::harness::s3::S3Server;
use clap::{Parser, ValueEnum};
use forebay_client::Access;
use forebay_proto::v1::StatusReply;
use serde_json::json;
use std::path::PathBuf;
use std::time::Instant;
use tokio::runtime::Runtime;

/// Measures the store.
#[derive(Debug, Clone, Parser)]
#[command(name = "forebay-bench-store", version)]
pub struct Options {
    /// Only these parts, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// A tenth of everything: a look at whether it works.
    #[arg(long)]
    short: bool,
    /// What the orders of hits, the moments of kills and the places of flips depend on.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the report goes.
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
}

/// The parts of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Hits,
    Amplification,
    Restart,
    Kills,
    Flips,
    Faults,
    Memory,
    Ticker,
    Cold,
}

/// Runs it; false if a promise was broken.
pub fn run(options: &Options) -> anyhow::Result<bool> {
    let runtime = runtime()?;
    let mut all = Findings::default();
    for part in Part::value_variants() {
        if !options.only.is_empty() && !options.only.contains(part) {
            continue;
        }
        println!("{part:?} ...");
        let started = Instant::now();
        let found = one(*part, &runtime, options).unwrap_or_else(|error| {
            let mut found = Findings::default();
            found.check(false, format!("{part:?} did not come to its end: {error:#}"));
            found
        });
        for check in &found.checks {
            println!("  {}", line(check));
        }
        println!("  {:.0} s", started.elapsed().as_secs_f64());
        all.add(found);
    }
    let settings = json!({"seed": options.seed, "short": options.short});
    report::write(&options.folder, "store", settings, &all.rows)?;
    all.checks.iter().for_each(|check| println!("{}", line(check)));
    Ok(all.checks.iter().all(|check| check.passed != Some(false)))
}

fn one(part: Part, runtime: &Runtime, options: &Options) -> anyhow::Result<Findings> {
    let share = |full: u64, short: u64| if options.short { short } else { full };
    match part {
        Part::Hits => {
            let (segments, epochs) = (share(1000, 600), share(7, 4));
            hits::run(runtime, &hits::Settings { segments, epochs, seed: options.seed })
        }
        Part::Amplification => amplification::run(
            runtime,
            &amplification::Settings { segments: share(128, 32), runs: share(5, 1) },
        ),
        Part::Restart => restart::run(
            runtime,
            &restart::Settings { segments: share(64, 16), tiny_segments: share(50_000, 2_000) },
        ),
        Part::Kills => {
            let (kills, segments) = (share(200, 10), share(64, 32));
            kills::run(runtime, &kills::Settings { kills, segments, seed: options.seed })
        }
        Part::Flips => {
            let (flips, segments) = (share(1000, 60), share(64, 32));
            flips::run(runtime, &flips::Settings { flips, segments, seed: options.seed })
        }
        Part::Faults => faults::run(
            runtime,
            &faults::Settings {
                segments: share(64, 32),
                outage_s: share(30, 3),
                trainer: true,
                seed: options.seed,
            },
        ),
        Part::Ticker => ticker::run(&ticker::Settings { segments: share(512, 64), runs: share(5, 2) }),
        Part::Cold => {
            let (objects, runs) = (share(20, 2) as usize, share(5, 1) as usize);
            cold::run(runtime, &cold::Settings { objects, runs })
        }
        Part::Memory => {
            memory::run(runtime, &memory::Settings { budget_mib: share(64, 16), runs: share(5, 1) })
        }
    }
}

/// The runtime that readers live on.
pub fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}

/// What a node holds and has done.
async fn status(endpoint: &str) -> anyhow::Result<StatusReply> {
    match Access::endpoint(endpoint)? {
        Access::Endpoint(node) => Ok(node.node().status().await?),
        Access::Direct(_) => anyhow::bail!("{endpoint} is no node"),
    }
}

/// Ends a server; an error holds what it should not have logged.
fn stop(server: Server) -> anyhow::Result<()> {
    server.try_stop().map_err(anyhow::Error::msg)
}

/// Starts a server that holds so many bytes.
fn start(s3: &S3Server, cache_bytes: u64) -> anyhow::Result<Server> {
    use crate::harness::process::ServerOptions;
    let options = ServerOptions::for_s3(s3).args(["--cache-bytes", &cache_bytes.to_string()]);
    options.try_start().map_err(anyhow::Error::msg)
}
