//! `make bench-epoch`: how fast the loader reads MNIST, through the cache and without one, from an S3 that is
//! 30 ms away.
//!
//! Three ways in turn, several times over: through an empty cache, through the same cache when it holds
//! everything, and directly. The floor under the warm way is the speed of one TCP connection of the loopback
//! in the same minute.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use serde_json::json;

use super::stages::Stages;
use crate::harness::answers::{EpochReport, EpochsReport};
use crate::harness::check::Findings;
use crate::harness::mnist;
use crate::harness::process::{Run, Server, ServerOptions};
use crate::harness::report::Row;
use crate::harness::s3::{REGION, S3Server};
use crate::harness::slow::{SlowProxy, Slowness};

/// Times epochs of MNIST through the cache, cold and warm, beside reading S3 directly.
#[derive(Debug, Clone, Parser)]
#[command(name = "forebay-bench-epoch", version)]
pub struct EpochOptions {
    /// How often each way is taken.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Samples per step.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// Where the report goes.
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
}

/// The speeds of the epochs that were read one way.
#[derive(Default)]
struct WayRates {
    samples_per_s: Vec<f64>,
    mb_per_s: Vec<f64>,
}

impl WayRates {
    fn add(&mut self, epoch: &EpochReport, cold: bool) -> anyhow::Result<()> {
        let (samples, requests) = (epoch.samples, epoch.s3_requests);
        anyhow::ensure!(samples == mnist::TRAIN_SAMPLES, "an epoch had {samples} samples");
        let kind = if cold { "cold" } else { "warm" };
        anyhow::ensure!(cold == (requests > 0), "an epoch that should be {kind} sent {requests} requests");
        self.samples_per_s.push(epoch.samples_per_s);
        self.mb_per_s.push(epoch.mb_per_s);
        Ok(())
    }
}

/// Runs it; false if it broke off.
pub fn run(options: &EpochOptions) -> anyhow::Result<bool> {
    let s3 = S3Server::start();
    let proxy = SlowProxy::start(&s3.endpoint, Slowness::remote_s3());
    mnist::upload(&s3).context("read MNIST")?;
    let server = ServerOptions::for_endpoint(&s3, &proxy.endpoint).try_start()?;
    let mut stages = Stages::default();
    stages.run("Epoch", || measure(options, &s3, &proxy, &server));
    server.try_stop()?;
    let settings = json!({
        "runs": options.runs, "batch": options.batch, "s3_first_byte_ms": 30, "s3_connection_mb_s": 90,
    });
    stages.end(&options.folder, "epoch", settings)
}

fn measure(
    options: &EpochOptions,
    s3: &S3Server,
    proxy: &SlowProxy,
    server: &Server,
) -> anyhow::Result<Findings> {
    let uri = s3.uri("mnist/train/");
    let cached = |command| {
        anyhow::Ok(Run::find("forebay")?.args([command, uri.as_str(), "--endpoint", &server.endpoint]))
    };
    let epoch = |run: Run| {
        let run = run.args(["--batch", &options.batch.to_string()]).limit(Duration::from_secs(300));
        let report: EpochsReport = run.json()?;
        report.epochs.into_iter().next().context("forebay epoch read no epoch")
    };
    let (mut cold, mut warm, mut direct, mut floor) =
        (WayRates::default(), WayRates::default(), WayRates::default(), Vec::new());
    for _ in 0..options.runs {
        cached("free")?.stdout()?;
        cold.add(&epoch(cached("epoch")?)?, true)?;
        warm.add(&epoch(cached("epoch")?)?, false)?;
        let run = Run::find("forebay")?.args(["epoch", &uri, "--direct", "--s3-region", REGION]);
        direct.add(&epoch(run.args(["--s3-endpoint", &proxy.endpoint]).envs(s3.credentials()))?, true)?;
        floor.push(loopback_mb_per_s().context("measure the loopback")?);
    }
    let tcp = Row::of("loopback_tcp_mb_per_s", "MB/s", &floor);
    let tcp_value = tcp.value;
    let direct_value = Row::of("", "MB/s", &direct.mb_per_s).value;
    let rows = vec![
        Row::of("cold_samples_per_s", "samples/s", &cold.samples_per_s),
        Row::of("cold_mb_per_s", "MB/s", &cold.mb_per_s).against("reading S3 directly", direct_value),
        Row::of("warm_samples_per_s", "samples/s", &warm.samples_per_s),
        Row::of("warm_mb_per_s", "MB/s", &warm.mb_per_s)
            .against("one TCP connection of the loopback", tcp_value),
        Row::of("direct_samples_per_s", "samples/s", &direct.samples_per_s),
        Row::of("direct_mb_per_s", "MB/s", &direct.mb_per_s),
        tcp,
    ];
    Ok(Findings { rows, checks: Vec::new() })
}

/// The speed of one TCP connection of the loopback, reader and writer on a thread each.
fn loopback_mb_per_s() -> std::io::Result<f64> {
    const BYTES: usize = 1 << 30;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut writer = TcpStream::connect(listener.local_addr()?)?;
    let (mut reader, _) = listener.accept()?;
    let start = Instant::now();
    let sent = std::thread::spawn(move || {
        let piece = vec![7u8; 1 << 20];
        (0..BYTES >> 20).try_for_each(|_| writer.write_all(&piece))
    });
    let mut piece = vec![0u8; 1 << 20];
    let mut left = BYTES;
    while left > 0 {
        match reader.read(&mut piece)? {
            0 => break,
            n => left -= n,
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    sent.join().map_err(|_| std::io::Error::other("the writer broke off"))??;
    Ok(BYTES as f64 / 1e6 / seconds)
}
