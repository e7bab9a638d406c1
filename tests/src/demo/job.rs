//! The parts of the demo, started in order, and what came out of them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use super::Options;
use super::figures::{Counters, Reread, Status, Training};
use crate::harness::mnist;
use crate::harness::process::{Run, Server, ServerOptions};
use crate::harness::s3::S3Server;
use crate::harness::slow::{Passed, SlowProxy, Slowness};

/// The cache may hold this much: MNIST decoded is 48 MB.
const CACHE_BYTES: &str = "2147483648";

/// Everything that was measured.
pub(super) struct Outcome {
    pub(super) training: Training,
    pub(super) reread: Reread,
    /// What the cache node counted from its start to the end of training.
    pub(super) served: Counters,
    /// What the proxy before S3 counted in the same time, by itself.
    pub(super) passed: Passed,
    /// What the proxy counted while one rank read the epochs again.
    pub(super) passed_reread: Passed,
    /// Bytes of the Parquet objects.
    pub(super) dataset_bytes: u64,
    /// The whole run, without builds.
    pub(super) seconds: f64,
}

/// Runs everything; an error names the part that failed.
pub(super) fn run(options: &Options) -> Result<Outcome, String> {
    let start = Instant::now();
    let folder = fresh(&options.folder)?;
    let s3 = S3Server::start();
    let proxy = SlowProxy::start(&s3.endpoint, Slowness::remote_s3());
    let dataset_bytes =
        mnist::upload(&s3).map_err(|error| format!("read {}: {error}", mnist::folder().display()))?;
    let megabytes = dataset_bytes as f64 / 1e6;
    println!("S3      {} (30 ms to the first byte, 90 MB/s per connection)", proxy.endpoint);
    println!("        {megabytes:.1} MB of MNIST as Parquet in {}", s3.uri("mnist/"));
    let server = ServerOptions::for_endpoint(&s3, &proxy.endpoint)
        .args(["--cache-bytes", CACHE_BYTES])
        .folder(&folder)
        .try_start()?;
    println!("cache   {} (empty; log in {})", server.endpoint, folder.join("server.log").display());
    let measured = measure(options, &s3, &proxy, &server, &folder);
    let stopped = server.try_stop();
    let (training, reread, served, passed, passed_reread) = measured?;
    stopped?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(Outcome { training, reread, served, passed, passed_reread, dataset_bytes, seconds })
}

fn measure(
    options: &Options,
    s3: &S3Server,
    proxy: &SlowProxy,
    server: &Server,
    folder: &Path,
) -> Result<(Training, Reread, Counters, Passed, Passed), String> {
    println!("train   {} ranks, {} epochs, global batch {}", options.nproc, options.epochs(), options.batch);
    let training = train(options, s3, server, folder)?;
    let passed = proxy.passed();
    let served = status(server)?.counters;
    println!("reread  the same epochs by one rank");
    let reread = reread(options, s3, server)?;
    Ok((training, reread, served, passed, proxy.passed().since(&passed)))
}

fn train(options: &Options, s3: &S3Server, server: &Server, folder: &Path) -> Result<Training, String> {
    let report = folder.join("training.json");
    let ended = Run::find("forebay-train")?
        .args(["--endpoint", &server.endpoint])
        .args(["--train", &s3.uri("mnist/train/"), "--test", &s3.uri("mnist/test/")])
        .args(["--nproc", &options.nproc.to_string(), "--epochs", &options.epochs().to_string()])
        .args(["--batch", &options.batch.to_string(), "--seed", &options.seed.to_string()])
        .args(["--window", &options.window.to_string()])
        .arg("--report")
        .arg(&report)
        .limit(options.patience())
        .show_progress()
        .try_end()?;
    if ended.code != Some(0) {
        return Err(format!("forebay-train ended with {:?}; the cache's log:\n{}", ended.code, server.log()));
    }
    let text = std::fs::read(&report).map_err(|error| format!("read {}: {error}", report.display()))?;
    parse("forebay-train", &text)
}

fn reread(options: &Options, s3: &S3Server, server: &Server) -> Result<Reread, String> {
    let ended = Run::find("forebay")?
        .args(["epoch", &s3.uri("mnist/train/"), "--endpoint", &server.endpoint, "--json", "--world", "1"])
        .args(["--batch", &options.batch.to_string(), "--epochs", &options.epochs().to_string()])
        .args(["--seed", &options.seed.to_string(), "--window", &options.window.to_string()])
        .limit(Duration::from_secs(300))
        .try_end()?;
    parse("forebay epoch", &ended.success("forebay epoch")?)
}

fn status(server: &Server) -> Result<Status, String> {
    let ended = Run::find("forebay")?.args(["status", "--json", "--endpoint", &server.endpoint]).try_end()?;
    parse("forebay status", &ended.success("forebay status")?)
}

fn parse<T: DeserializeOwned>(name: &str, json: &[u8]) -> Result<T, String> {
    serde_json::from_slice(json).map_err(|error| {
        format!("what {name} reports is not what was expected: {error}: {}", String::from_utf8_lossy(json))
    })
}

/// The folder, absolute, with nothing of an earlier run in it.
fn fresh(folder: &Path) -> Result<PathBuf, String> {
    let fail = |error: std::io::Error| format!("prepare {}: {error}", folder.display());
    std::fs::create_dir_all(folder).map_err(fail)?;
    let folder = folder.canonicalize().map_err(fail)?;
    for name in ["cache", "server.log", "training.json", "report.json", "report.html"] {
        let path = folder.join(name);
        let removed =
            if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        match removed {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(fail(error)),
            _ => {}
        }
    }
    Ok(folder)
}
