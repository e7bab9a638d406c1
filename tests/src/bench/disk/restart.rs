//! Restarts: cached segments stay cached, and the index is rebuilt fast.

use super::node::counters;
use crate::harness::check::Findings;
use crate::harness::process::{Run, Server, ServerOptions};
use crate::harness::reader::{Job, read};
use crate::harness::s3::S3Server;
use crate::harness::table::{MIB_ROWS, Table};
use anyhow::Context;
use std::path::Path;
use std::time::Duration;
use tokio::runtime::Runtime;

/// How large the measurement is.
#[derive(Debug, Clone, Copy)]
pub struct RestartSettings {
    /// Segments that are read again after the restart, 1 MiB each.
    pub segments: u64,
    /// Segments of one row whose index is rebuilt.
    pub tiny_segments: u64,
}

/// Runs it.
pub fn run(runtime: &Runtime, settings: &RestartSettings) -> anyhow::Result<Findings> {
    let mut found = runtime.block_on(warm(settings.segments))?;
    found.add(index(settings.tiny_segments)?);
    Ok(found)
}

/// Reads an epoch, restarts the node, reads another one.
pub async fn warm(segments: u64) -> anyhow::Result<Findings> {
    let s3 = S3Server::start();
    let table = Table::upload(&s3, "restart", segments, MIB_ROWS)?;
    let folder = tempfile::tempdir()?;
    let server = roomy(&s3, folder.path())?;
    read(&server.endpoint, &table, &Job::new(1, 1)).await?;
    server.try_stop()?;
    s3.take_log();
    let server = roomy(&s3, folder.path())?;
    let epoch = read(&server.endpoint, &table, &Job::new(2, 1)).await?;
    let counters = counters(&server).await?;
    server.try_stop()?;
    let from_objects = table.object_bytes(&s3.log());
    let reads = counters.hits + counters.joins + counters.misses;
    let mut found = Findings::default();
    found.value("restart_hit_ratio", "ratio", counters.hits as f64 / reads as f64);
    found.value("restart_s3_requests", "requests", counters.s3_requests as f64);
    found.value("restart_s3_log_requests", "requests", s3.log().len() as f64);
    found.value("restart_s3_object_bytes", "bytes", from_objects as f64);
    let warm =
        counters.hits == reads && from_objects == 0 && counters.s3_requests == 0 && epoch.wrong_values == 0;
    let text = format!(
        "after a restart {} of {reads} reads are hits, {from_objects} bytes of objects come from S3, footers \
         included, {} values are wrong",
        counters.hits, epoch.wrong_values
    );
    found.check(warm, text);
    Ok(found)
}

/// Fills a cache with tiny segments and times the rebuilding of their index, by the server's own log.
fn index(segments: u64) -> anyhow::Result<Findings> {
    let s3 = S3Server::start();
    let table = Table::upload_tiny(&s3, "tiny", segments)?;
    let folder = tempfile::tempdir()?;
    let server = roomy(&s3, folder.path())?;
    let load = Run::find("forebay")?;
    let load = load.args(["load", &table.uri, "--segment-bytes", "1", "--endpoint", &server.endpoint]);
    let loaded = load.limit(Duration::from_secs(600)).stdout();
    loaded?;
    server.try_stop()?;
    let mut speeds = Vec::new();
    for _ in 0..5 {
        std::fs::remove_file(folder.path().join("server.log"))?;
        let server = roomy(&s3, folder.path())?;
        let log = server.log();
        server.try_stop()?;
        let line = log.lines().find(|line| line.contains("the index is rebuilt"));
        let line = line.context("the server logs that the index is rebuilt")?;
        let (held, ms) = (field(line, "segments=")?, field(line, "ms=")?);
        anyhow::ensure!(held == segments, "{held} segments after a restart, not {segments}");
        speeds.push(held as f64 * 1e3 / ms.max(1) as f64);
    }
    let row = crate::harness::report::Row::of("index_segments_per_s", "segments/s", &speeds);
    let mut found = Findings::default();
    found.check(row.value >= 20_000.0, format!("index_segments_per_s = {:.0}, at least 20,000", row.value));
    found.rows.push(row);
    Ok(found)
}

fn roomy(s3: &S3Server, folder: &Path) -> anyhow::Result<Server> {
    let options = ServerOptions::for_s3(s3).folder(folder).args(["--cache-bytes", "8GiB"]);
    options.try_start()
}

/// A number in a line of the log, after its name.
fn field(line: &str, name: &str) -> anyhow::Result<u64> {
    let (_, after) = line.split_once(name).with_context(|| format!("no {name} in {line}"))?;
    Ok(after.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default().parse()?)
}
