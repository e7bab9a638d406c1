//! How often a byte leaves S3 and how often it is written to disk: a cold node, three jobs of four ranks each
//! at once.

use super::node::{counters, io_bytes, start};
use crate::harness::check::Findings;
use crate::harness::reader::{Job, read};
use crate::harness::report::Row;
use crate::harness::s3::S3Server;
use crate::harness::table::{MIB_ROWS, Table};
use tokio::runtime::Runtime;

/// Jobs at once, and the ranks of each.
const JOBS: u64 = 3;
const RANKS: u32 = 4;

/// How large the measurement is.
#[derive(Debug, Clone, Copy)]
pub struct AmplificationSettings {
    /// Segments of the dataset, 1 MiB each.
    pub segments: u64,
    /// How often, each time with an empty cache.
    pub runs: u64,
}

/// The cost of one cold epoch of all jobs, per byte that had to be read or written.
struct Cost {
    from_s3: f64,
    /// With footers, and the bytes of an object's end that are read before the footer's length is known.
    from_s3_with_footers: f64,
    written: f64,
    /// By the kernel's account of the process, which counts whole pages and every other file too.
    written_by_kernel: f64,
}

/// Runs it.
pub fn run(runtime: &Runtime, settings: &AmplificationSettings) -> anyhow::Result<Findings> {
    let s3 = S3Server::start();
    let table = Table::upload(&s3, "amplification", settings.segments, MIB_ROWS)?;
    let mut costs = Vec::new();
    for _ in 0..settings.runs {
        costs.push(runtime.block_on(cold(&s3, &table))?);
    }
    let row = |name, of: fn(&Cost) -> f64| Row::of(name, "ratio", &costs.iter().map(of).collect::<Vec<_>>());
    let s3_row = row("s3_amplification", |cost| cost.from_s3).against("each byte once", 1.0);
    let disk_row = row("disk_write_amplification", |cost| cost.written).against("each byte once", 1.0);
    let whole_row = row("s3_amplification_with_footers", |cost| cost.from_s3_with_footers);
    let kernel_row = row("disk_write_amplification_kernel", |cost| cost.written_by_kernel);
    let mut found = Findings::default();
    for row in [&s3_row, &disk_row] {
        found.check(row.max <= 1.01, format!("{} = {:.4}, at most 1.01", row.name, row.max));
    }
    found.rows.extend([s3_row, whole_row, disk_row, kernel_row]);
    Ok(found)
}

async fn cold(s3: &S3Server, table: &Table) -> anyhow::Result<Cost> {
    // Room for everything twice: all decoded segments are admitted.
    let server = start(s3, table.projected_bytes() * 2 + (64 << 20))?;
    s3.take_log();
    // What the process has caused to be written to a disk, now or later.
    let written_by_kernel = || io_bytes(server.pid(), "write_bytes");
    let before = written_by_kernel()?;
    let jobs = (0..JOBS).map(|seed| {
        let (endpoint, table) = (server.endpoint.clone(), table.clone());
        tokio::spawn(async move { read(&endpoint, &table, &Job { world: RANKS, ..Job::new(seed, 1) }).await })
    });
    for job in futures::future::try_join_all(jobs).await? {
        let wrong = job?.wrong_values;
        anyhow::ensure!(wrong == 0, "{wrong} wrong values");
    }
    let written_by_kernel = written_by_kernel()? - before;
    let counters = counters(&server).await?;
    server.try_stop()?;
    let decoded = counters.arrow_bytes_decoded as f64;
    let (log, projected) = (s3.log(), table.projected_bytes() as f64);
    Ok(Cost {
        from_s3: table.data_bytes(&log) as f64 / projected,
        from_s3_with_footers: table.object_bytes(&log) as f64 / projected,
        written: counters.disk_bytes_written as f64 / decoded,
        written_by_kernel: written_by_kernel as f64 / decoded,
    })
}
