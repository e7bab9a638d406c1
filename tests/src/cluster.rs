//! `make bench-cluster`: nodes, etcd and quorums that die, fall silent, drain and restart under a job that reads, and
//! what the job notices of it. Real processes, real etcd; S3 is 30 ms away.

mod faults;
mod nodes;
mod placement;
mod reader;

use crate::etcd::Etcd;
use crate::mnist;
use crate::process::ServerOptions;
use crate::report;
use crate::s3::S3Server;
use crate::slow::{SlowProxy, Slowness};
use clap::Parser;
use faults::Stage;
use nodes::Nodes;
use reader::Reader;
use serde_json::json;
use std::path::PathBuf;

/// Torments a cluster and measures what its readers notice.
#[derive(Debug, Clone, Parser)]
#[command(name = "forebay-bench-cluster", version)]
pub struct Options {
    /// Cache nodes.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=16))]
    nodes: u8,
    /// How often a cache node is killed.
    #[arg(long, default_value_t = 20)]
    kills: u32,
    /// For how long a node is silent, in seconds.
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
}

/// Runs it; false if a promise was broken.
pub fn run(options: &Options) -> anyhow::Result<bool> {
    let mut rows = placement::rows();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let s3 = S3Server::start();
    mnist::upload(&s3)?;
    let proxy = SlowProxy::start(&s3.endpoint, Slowness::remote_s3());
    let mut etcd = Etcd::try_start(3).map_err(anyhow::Error::msg)?;
    let base = ServerOptions::for_endpoint(&s3, &proxy.endpoint);
    let mut nodes = Nodes::start(&runtime, &base, options.nodes.into(), &etcd.arguments())?;
    let reader = Reader::start(&runtime, &nodes.endpoints(), &s3.uri("mnist/train"))?;
    let mut stage = Stage::new(&runtime, &mut nodes, &mut etcd, &reader, options.seed);
    stage.warm_up()?;
    let faults = [
        stage.kills(options.kills)?,
        stage.silence(options.silence_s)?,
        stage.drain()?,
        stage.rolling_restart()?,
        stage.etcd_stopped(options.etcd_down_s)?,
        stage.etcd_leader_killed()?,
        stage.etcd_quorum_lost(options.etcd_down_s.div_ceil(3))?,
    ];
    rows.extend(faults.into_iter().flatten());
    let (epochs, wrong) = reader.epochs()?;
    let errors = reader.errors();
    errors.iter().for_each(|error| eprintln!("a rank ended: {error}"));
    drop(reader);
    nodes.end()?;
    let row = |name, unit, value: usize| report::Row::of(name, unit, &[value as f64]);
    rows.extend([
        row("reader_errors", "errors", errors.len()),
        row("epochs", "epochs", epochs),
        row("epochs_with_wrong_digest", "epochs", wrong),
    ]);
    let settings = json!({
        "nodes": options.nodes, "kills": options.kills, "seed": options.seed, "replicas": 1,
        "silence_s": options.silence_s, "etcd_down_s": options.etcd_down_s, "segment_bytes": reader::SEGMENT_BYTES,
    });
    report::write(&options.folder, "cluster", settings, &rows)?;
    let good = errors.is_empty() && wrong == 0 && epochs > 0;
    let verdict = if good { "PASS" } else { "FAIL" };
    println!("{verdict} {epochs} epochs, {wrong} with a wrong digest, {} errors", errors.len());
    Ok(good)
}
