//! `make bench-raw`: any object, mostly by the S3 endpoint. Whether its answers are the object store's, also
//! after kills and while objects change; how fast it reads beside nginx's slice cache, raw TCP, a bare hyper
//! and direct reads, and what it costs a training job beside it.
//!
//! Nothing here is changed once figures were seen: a new measurement is a new row.

mod amplification;
mod beside;
mod checked;
mod cold;
mod floor;
pub mod kills;
mod listing;
mod load;
mod nginx;
pub mod overwrites;
mod scale;
mod stage;
mod timed_part;
mod warm;

use super::stages::{Stages, wanted};
use crate::harness::check::Findings;
use crate::harness::differential::Twins;
use clap::{Parser, Subcommand, ValueEnum};
use scale::{FULL, RawScale, SHORT};
use serde_json::json;
use stage::RawStage;
use std::path::PathBuf;

/// Measures the S3 endpoint of a node.
#[derive(Debug, Clone, Parser)]
#[command(name = "forebay-bench-raw", version)]
pub struct RawOptions {
    /// Only these stages, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<RawPart>,
    /// How often each figure is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Little data and little time: for a look at whether it works.
    #[arg(long)]
    short: bool,
    /// Another number of kills.
    #[arg(long)]
    kills: Option<u64>,
    /// Another length of the large objects of the set that is read over kills: for smaller machines.
    #[arg(long)]
    large_bytes: Option<u64>,
    /// Where the report goes.
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
    #[command(subcommand)]
    role: Option<RawRole>,
}

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RawPart {
    /// Answers beside the object store's.
    Differential,
    /// Bytes that leave the object store.
    Amplification,
    /// Reads of what the node holds.
    Warm,
    /// Reads of what it does not.
    Cold,
    /// A million keys.
    Listing,
    /// A training job on the same node.
    Beside,
    /// Every byte of a large set, whatever happens to the node.
    Kills,
    /// Objects that change while they are read.
    Overwrites,
}

/// The processes that the benchmark itself starts.
#[derive(Debug, Clone, Subcommand)]
enum RawRole {
    /// A client with many connections.
    #[command(hide = true)]
    Load(load::LoadOptions),
    /// A server that does nothing but send a file.
    #[command(hide = true)]
    Floor(floor::FloorOptions),
}

/// Runs it; false if a promise was broken.
pub fn run(options: &RawOptions) -> anyhow::Result<bool> {
    match &options.role {
        Some(RawRole::Load(load)) => load::run(load).map(|()| true),
        Some(RawRole::Floor(floor)) => floor::run(floor).map(|()| true),
        None => measure(options),
    }
}

fn measure(options: &RawOptions) -> anyhow::Result<bool> {
    let mut scale = match options.short {
        true => RawScale { rounds: options.rounds.min(SHORT.rounds), ..SHORT },
        false => RawScale { rounds: options.rounds, ..FULL },
    };
    scale.kills.kills = options.kills.unwrap_or(scale.kills.kills);
    scale.kills.large_bytes = options.large_bytes.unwrap_or(scale.kills.large_bytes);
    let mut stages = Stages::default();
    for part in wanted(&options.only) {
        stages.run(part, || match part {
            RawPart::Differential => differential(),
            RawPart::Amplification => amplification::run(&scale),
            RawPart::Warm => warm::run(&scale),
            RawPart::Cold => cold::run(&scale),
            RawPart::Listing => listing::run(&scale),
            RawPart::Beside => beside::run(&scale),
            RawPart::Kills => kills::run(&scale.kills),
            RawPart::Overwrites => overwrites::run(&scale.overwrites),
        });
    }
    let settings = json!({
        "rounds": scale.rounds, "short": options.short, "seconds": scale.seconds, "connections": warm::CONNECTIONS,
        "warm_bytes": scale.warm_bytes, "warm_objects": warm::OBJECTS, "range_bytes": load::RANGE_BYTES,
        "cold_bytes": scale.cold_bytes, "cold_requests": cold::REQUESTS, "s3_first_byte_ms": 30, "s3_connection_mb_s": 90,
        "spread_bytes": scale.spread_bytes, "spread_readers": amplification::READERS, "keys": scale.keys,
        "kills": scale.kills.kills, "kills_small": scale.kills.small, "kills_large": scale.kills.large,
        "kills_large_bytes": scale.kills.large_bytes, "overwrites_each": scale.overwrites.each,
        "segments": scale.segments, "beside_mb_per_s": beside::MB_PER_S, "nginx_slice_bytes": 1 << 20,
    });
    stages.end(&options.folder, "raw", settings)
}

/// The differential suite of the tests, as figures.
fn differential() -> anyhow::Result<Findings> {
    let stage = RawStage::start(|options| options.env("FOREBAY_OBJECTS__BLOCK_BYTES", "65536"))?;
    let (store, node, bucket) = (stage.store(), stage.client()?, stage.s3.bucket.clone());
    let twins = Twins { store, node, bucket };
    let compared = stage.runtime.block_on(async {
        twins.fill().await?;
        twins.compare().await
    })?;
    compared.unequal.iter().take(10).for_each(|unequal| println!("{unequal}"));
    let mut found = Findings::default();
    found.value("differential_requests", "requests", compared.requests as f64);
    found.value("differential_unequal", "answers", compared.unequal.len() as f64);
    let (requests, unequal) = (compared.requests, compared.unequal.len());
    found.check(requests >= 400, format!("differential_requests = {requests}, at least 400"));
    found.check(unequal == 0, format!("differential_unequal = {unequal}, none"));
    Ok(found)
}
