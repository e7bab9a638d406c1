//! The parts of the demo, started in order, and their figures.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::accelerator::{self, Accelerated};
use super::figures::{NodeCounters, Status, Training};
use super::options::DemoOptions;
use super::parts::Parts;
use crate::harness::answers::EpochsReport;
use crate::harness::mnist;
use crate::harness::process::{Run, Server, ServerOptions};
use crate::harness::s3::S3Server;
use crate::harness::slow::{Passed, SlowProxy, Slowness};

/// The cache may hold this much: MNIST decoded is 48 MB.
const CACHE_BYTES: &str = "2147483648";

/// Everything that was measured.
pub(super) struct Outcome {
    pub(super) training: Training,
    pub(super) reread: EpochsReport,
    /// The cache node's count from its start to the end of training.
    pub(super) served: NodeCounters,
    /// The count of the proxy before S3 in the same time.
    pub(super) passed: Passed,
    /// The proxy's count while one rank read the epochs again.
    pub(super) passed_reread: Passed,
    pub(super) accelerated: Accelerated,
    /// Bytes of the Parquet objects.
    pub(super) dataset_bytes: u64,
    /// The whole run, without builds.
    pub(super) seconds: f64,
}

/// Runs everything; an error names the part that failed.
pub(super) fn run(options: &DemoOptions) -> anyhow::Result<Outcome> {
    let start = Instant::now();
    let folder = fresh(&options.folder)?;
    let s3 = S3Server::start();
    let proxy = SlowProxy::start(&s3.endpoint, Slowness::remote_s3());
    let dataset_bytes = mnist::upload(&s3).with_context(|| format!("read {}", mnist::folder().display()))?;
    let megabytes = dataset_bytes as f64 / 1e6;
    println!("S3      {} (30 ms to the first byte, 90 MB/s per connection)", proxy.endpoint);
    println!("        {megabytes:.1} MB of MNIST as Parquet in {}", s3.uri("mnist/"));
    let server = ServerOptions::for_endpoint(&s3, &proxy.endpoint)
        .args(["--cache-bytes", CACHE_BYTES])
        .folder(&folder)
        .try_start()?;
    println!("cache   {} (empty; log in {})", server.endpoint, folder.join("server.log").display());
    let parts = Parts { options, s3: &s3, proxy: &proxy, server: &server, folder: &folder };
    let outcome = measure(&parts, dataset_bytes, start);
    let stopped = server.try_stop();
    let outcome = outcome?;
    stopped?;
    Ok(outcome)
}

fn measure(parts: &Parts<'_>, dataset_bytes: u64, start: Instant) -> anyhow::Result<Outcome> {
    let options = parts.options;
    println!("train   {} ranks, {} epochs, global batch {}", options.nproc, options.epochs(), options.batch);
    let training = train(parts)?;
    let passed = parts.proxy.passed();
    let served = status(parts.server)?.counters;
    println!("reread  the same epochs by one rank");
    let reread = reread(parts)?;
    let passed_reread = parts.proxy.passed().since(&passed);
    println!("faster  the same epochs on an emulated accelerator: without a cache, cold, warm");
    let accelerated = accelerator::run(parts, &training)?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(Outcome { training, reread, served, passed, passed_reread, accelerated, dataset_bytes, seconds })
}

fn train(parts: &Parts<'_>) -> anyhow::Result<Training> {
    let report = parts.folder.join("training.json");
    let ended = Run::find("forebay-train")?
        .args(["--endpoint", &parts.server.endpoint])
        .args(["--train", &parts.train_uri(), "--test", &parts.s3.uri("mnist/test/")])
        .args(["--epochs", &parts.options.epochs().to_string()])
        .args(parts.options.run_flags())
        .arg("--report")
        .arg(&report)
        .limit(parts.options.patience())
        .show_progress()
        .try_end()?;
    let (code, log) = (ended.code, parts.server.log());
    anyhow::ensure!(code == Some(0), "forebay-train ended with {code:?}; the cache's log:\n{log}");
    let text = std::fs::read(&report).with_context(|| format!("read {}", report.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("read {}", report.display()))
}

fn reread(parts: &Parts<'_>) -> anyhow::Result<EpochsReport> {
    let options = parts.options;
    Run::find("forebay")?
        .args(["epoch", &parts.train_uri(), "--endpoint", &parts.server.endpoint, "--world", "1"])
        .args(["--batch", &options.batch.to_string(), "--epochs", &options.epochs().to_string()])
        .args(["--seed", &options.seed.to_string(), "--window", &options.window.to_string()])
        .limit(Duration::from_secs(300))
        .json()
}

fn status(server: &Server) -> anyhow::Result<Status> {
    Run::find("forebay")?.args(["status", "--endpoint", &server.endpoint]).json()
}

/// The folder, absolute, with nothing of an earlier run in it.
fn fresh(folder: &Path) -> anyhow::Result<PathBuf> {
    emptied(folder).with_context(|| format!("prepare {}", folder.display()))
}

fn emptied(folder: &Path) -> std::io::Result<PathBuf> {
    std::fs::create_dir_all(folder)?;
    let folder = folder.canonicalize()?;
    let reports = ["training.json", "accelerated.json", "report.json", "report.html", "epochs.svg"];
    for name in ["cache", "server.log"].into_iter().chain(reports) {
        let path = folder.join(name);
        let removed =
            if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        match removed {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(folder)
}
