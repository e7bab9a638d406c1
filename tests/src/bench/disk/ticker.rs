//! How long the node's async threads stand still: the worst lateness of its 1 ms ticker while it is idle,
//! while it serves from memory, and while it serves from files whose pages are not in memory.
//!
//! The reader is a process of its own with the lowest priority, so that it does not take the processor from
//! the node. Its rows come by TCP: on the same host it would read the files itself.

use super::folder::segment_files;
use super::node::io_bytes;
use crate::harness::check::Findings;
use crate::harness::process::{Run, Server, ServerOptions, binary};
use crate::harness::report::Row;
use crate::harness::s3::S3Server;
use crate::harness::table::{MIB_ROWS, Table};
use rustix::fs::{Advice, fadvise, fsync};
use std::fs::File;
use std::path::Path;
use std::time::Duration;

/// How long the gauge remembers a stall.
const WINDOW: Duration = Duration::from_secs(20);

/// The gauge.
const GAUGE: &str = "forebay_ticker_stall_ms_max";

/// By how much the ticker may be later with cold pages than while the node is idle: in the median of the
/// runs, each with its worst lateness, and in the worst of all.
const MOST: f64 = 3.0;

/// How much of the dataset an epoch with cold pages has the node read from the disk, at least: headers are
/// read at start. The scrub, 20 MB/s, counts too.
const COLD: f64 = 0.9;

/// How large the measurement is.
#[derive(Debug, Clone, Copy)]
pub struct TickerSettings {
    /// Segments of the dataset, 1 MiB each.
    pub segments: u64,
    /// How often each is measured, in turn.
    pub runs: u64,
}

/// Runs it.
pub fn run(settings: &TickerSettings) -> anyhow::Result<Findings> {
    let s3 = S3Server::start();
    let table = Table::upload(&s3, "ticker", settings.segments, MIB_ROWS)?;
    let folder = tempfile::tempdir()?;
    let server = node(&s3, folder.path())?;
    epoch(&server, &table)?;
    server.try_stop()?;
    let (mut idle, mut warm, mut cold, mut from_disk) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..settings.runs {
        // Pages that are mapped cannot be dropped, so that is done while no node runs.
        drop_pages(&folder.path().join("cache"))?;
        let server = node(&s3, folder.path())?;
        std::thread::sleep(WINDOW);
        idle.push(server.metric(GAUGE)?);
        let before = io_bytes(server.pid(), "read_bytes")?;
        epoch(&server, &table)?;
        cold.push(server.metric(GAUGE)?);
        let read = io_bytes(server.pid(), "read_bytes")? - before;
        from_disk.push(read as f64 / table.projected_bytes() as f64);
        std::thread::sleep(WINDOW);
        epoch(&server, &table)?;
        warm.push(server.metric(GAUGE)?);
        server.try_stop()?;
    }
    let idle = Row::of("ticker_stall_idle_ms", "ms", &idle);
    let cold = Row::of("ticker_stall_cold_ms", "ms", &cold).against("idle", idle.value);
    let warm = Row::of("ticker_stall_warm_ms", "ms", &warm).against("idle", idle.value);
    let ratio_of = |name, cold_ms, idle_ms| Row { n: cold.n, ..Row::of(name, "ratio", &[cold_ms / idle_ms]) };
    let ratio = ratio_of("ticker_stall_ratio", cold.value, idle.value);
    let worst = ratio_of("ticker_stall_worst_ratio", cold.max, idle.max);
    let mut found = Findings::default();
    let text = format!(
        "ticker_stall_ratio = {:.2}, at most 3: {:.2} ms with cold pages, {:.2} ms with warm ones, {:.2} ms idle",
        ratio.value, cold.value, warm.value, idle.value
    );
    found.check(ratio.value <= MOST, text);
    let text = format!(
        "ticker_stall_worst_ratio = {:.2}, at most 3: of all runs {:.2} ms with cold pages, {:.2} ms idle",
        worst.value, cold.max, idle.max
    );
    found.check(worst.value <= MOST, text);
    let from_disk = Row::of("ticker_cold_from_disk", "of the dataset", &from_disk);
    let text = format!("{} = {:.2} in the least cold run, at least {COLD}", from_disk.name, from_disk.min);
    found.check(from_disk.min >= COLD, text);
    found.rows.extend([ratio, worst, idle, warm, cold, from_disk]);
    Ok(found)
}

/// One epoch of four ranks, read by a process that yields to everybody.
fn epoch(server: &Server, table: &Table) -> anyhow::Result<()> {
    let run = Run::program("nice", "forebay epoch").args(["-n", "19"]).arg(binary("forebay"));
    let run = run.args(["epoch", &table.uri, "--endpoint", &server.endpoint, "--world", "4"]);
    let run = run.args(["--segment-bytes", &table.segment_bytes.to_string(), "--same-host", "off"]);
    let ended = run.stdout();
    ended.map(drop)
}

/// Lets the kernel forget the content of all segment files.
fn drop_pages(cache: &Path) -> anyhow::Result<()> {
    for path in segment_files(cache) {
        let file = File::open(path)?;
        fsync(&file)?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}

fn node(s3: &S3Server, folder: &Path) -> anyhow::Result<Server> {
    let options = ServerOptions::for_s3(s3).folder(folder).args(["--cache-bytes", "8GiB"]);
    options.try_start()
}
