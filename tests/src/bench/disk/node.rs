//! The node that is measured.

use crate::harness::process::{Server, ServerOptions};
use crate::harness::s3::S3Server;
use anyhow::Context;
use forebay_client::Access;
use forebay_proto::v1::{Counters, StatusReply};

/// Starts a node whose cache holds `cache_bytes`.
pub fn start(s3: &S3Server, cache_bytes: u64) -> anyhow::Result<Server> {
    ServerOptions::for_s3(s3).args(["--cache-bytes", &cache_bytes.to_string()]).try_start()
}

/// The status of a node.
pub async fn status(server: &Server) -> anyhow::Result<StatusReply> {
    match Access::endpoint(&server.endpoint)? {
        Access::Endpoint(node) => Ok(node.node().status().await?),
        Access::Direct(_) => anyhow::bail!("{} is no node", server.endpoint),
    }
}

/// The counters of a node since its start.
pub async fn counters(server: &Server) -> anyhow::Result<Counters> {
    status(server).await?.counters.context("a node has counters")
}

/// What the kernel counts of a process in `/proc/PID/io`.
pub fn io_bytes(pid: u32, what: &str) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':'));
    Ok(line.with_context(|| format!("/proc/PID/io has {what}"))?.trim().parse()?)
}
