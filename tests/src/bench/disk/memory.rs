//! Memory: the most that a node takes with a dataset of many times its memory budget (20 with small segments,
//! 8 with segments of the default size), of which its cache holds a quarter. Segments are evicted, and most
//! are served from memory, to four jobs at once.
//!
//! The figure is the kernel's high-water mark of resident memory, mapped segment files included. Further rows
//! have its parts, each at its own highest: anonymous memory, and files, which are segments and the program.

use super::node::counters;
use crate::harness::check::Findings;
use crate::harness::process::ServerOptions;
use crate::harness::reader::{Job, read};
use crate::harness::report::Row;
use crate::harness::s3::S3Server;
use crate::harness::table::{MIB_ROWS, Table};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::runtime::Runtime;

/// How large the measurement is.
#[derive(Debug, Clone, Copy)]
pub struct MemorySettings {
    /// The node's memory budget.
    pub budget_mib: u64,
    /// Segments of the dataset.
    pub segments: u64,
    /// The size of each.
    pub segment_mib: u64,
    /// Epochs of each job.
    pub epochs: u64,
    /// How often, each time with a fresh node.
    pub runs: u64,
    /// What tells the rows apart.
    pub kind: &'static str,
}

/// The most memory that a process had.
struct Peak {
    resident_mib: f64,
    anonymous_mib: f64,
    files_mib: f64,
}

/// Runs it.
pub fn run(runtime: &Runtime, settings: &MemorySettings) -> anyhow::Result<Findings> {
    let s3 = S3Server::start();
    let MemorySettings { segments, segment_mib, kind, .. } = *settings;
    let table = Table::upload(&s3, "memory", segments, segment_mib * MIB_ROWS)?;
    let mut peaks = Vec::new();
    for _ in 0..settings.runs {
        peaks.push(runtime.block_on(peak(&s3, &table, settings))?);
        s3.take_log();
    }
    let budget = settings.budget_mib as f64;
    let over = |of: fn(&Peak) -> f64| peaks.iter().map(|peak| of(peak) - budget).collect::<Vec<_>>();
    let row = Row::of(format!("rss_over_budget{kind}_mb"), "MiB", &over(|peak| peak.resident_mib));
    let anonymous = over(|peak| peak.anonymous_mib);
    let anonymous = Row::of(format!("rss_anonymous_over_budget{kind}_mb"), "MiB", &anonymous);
    let mut found = Findings::default();
    let text = format!("{} = {:.0}, at most 200, with a budget of {budget} MiB", row.name, row.max);
    found.check(row.max <= 200.0, text);
    let files: Vec<f64> = peaks.iter().map(|peak| peak.files_mib).collect();
    found.rows.extend([row, anonymous, Row::of(format!("rss_files{kind}_mb"), "MiB", &files)]);
    Ok(found)
}

/// The epochs of four jobs of four ranks each.
async fn peak(s3: &S3Server, table: &Table, settings: &MemorySettings) -> anyhow::Result<Peak> {
    let MemorySettings { budget_mib, epochs, .. } = *settings;
    let cache_bytes = table.projected_bytes() / 4;
    let options = ServerOptions::for_s3(s3).args(["--cache-bytes", &cache_bytes.to_string()]);
    let options = options.args(["--memory-bytes", &format!("{budget_mib}MiB")]);
    let options = options.allow_log("neither the cache nor memory has room");
    let server = options.try_start()?;
    let (parts, done) = (Arc::new(<[AtomicU64; 2]>::default()), Arc::new(AtomicBool::new(false)));
    let watch = {
        let (pid, parts, done) = (server.pid(), parts.clone(), done.clone());
        tokio::spawn(async move {
            while !done.load(Ordering::Relaxed) {
                for (part, field) in parts.iter().zip(["RssAnon", "RssFile"]) {
                    part.fetch_max(kib(pid, field).unwrap_or(0), Ordering::Relaxed);
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
    };
    let jobs = (0..4).map(|seed| {
        let (endpoint, table) = (server.endpoint.clone(), table.clone());
        tokio::spawn(
            async move { read(&endpoint, &table, &Job { world: 4, ..Job::new(seed, epochs) }).await },
        )
    });
    for job in futures::future::try_join_all(jobs).await? {
        let wrong = job?.wrong_values;
        anyhow::ensure!(wrong == 0, "{wrong} wrong values");
    }
    done.store(true, Ordering::Relaxed);
    watch.await?;
    let resident = kib(server.pid(), "VmHWM").unwrap_or(0);
    let counters = counters(&server).await?;
    anyhow::ensure!(counters.evictions > 0 && counters.bypassed > 0, "nothing was evicted or kept in memory");
    server.try_stop()?;
    let [anonymous, files] = [0, 1].map(|part: usize| parts[part].load(Ordering::Relaxed));
    let [resident_mib, anonymous_mib, files_mib] =
        [resident, anonymous, files].map(|kib| kib as f64 / 1024.0);
    Ok(Peak { resident_mib, anonymous_mib, files_mib })
}

/// A field of `/proc/PID/status`, in KiB.
fn kib(pid: u32, field: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.trim().split(' ').next()?.parse().ok()
}
