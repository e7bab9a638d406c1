//! SIGKILLs of the node at random moments of filling, evicting and topping up columns, while jobs read on and
//! check every value; and the size of the cache directory, every 10 ms.

use super::folder::{Watch, files_under};
use super::hits::stored_bytes;
use super::node::counters;
use crate::harness::check::Findings;
use crate::harness::ports::free_address;
use crate::harness::process::{Server, ServerOptions};
use crate::harness::reader::{EpochRead, Job, read_until};
use crate::harness::s3::S3Server;
use crate::harness::table::{MIB_ROWS, Table};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// With this many kills some must fall into the writing of a file.
const MANY: u64 = 100;

/// How large the measurement is.
#[derive(Debug, Clone, Copy)]
pub struct KillsSettings {
    /// How often.
    pub kills: u64,
    /// Segments of the dataset, 1 MiB each; the cache holds half of them.
    pub segments: u64,
    /// Decides the moments.
    pub seed: u64,
}

/// Runs it.
pub fn run(runtime: &Runtime, settings: &KillsSettings) -> anyhow::Result<Findings> {
    runtime.block_on(kills(settings))
}

async fn kills(settings: &KillsSettings) -> anyhow::Result<Findings> {
    let s3 = S3Server::start();
    let table = Table::upload(&s3, "kills", settings.segments, MIB_ROWS)?;
    let limit = stored_bytes(&s3, &table).await? / 2;
    let folder = tempfile::tempdir()?;
    let address = free_address()?;
    let start = || node(&s3, folder.path(), &address, limit);
    let mut server = start()?;
    let done = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> =
        jobs().into_iter().map(|job| read_until(&server.endpoint, &table, job, done.clone())).collect();
    let watch = Watch::start(vec![folder.path().join("cache")]);
    let mut dice = fastrand::Rng::with_seed(settings.seed);
    let (mut killed, mut corrupt, mut in_mid_write) = (0, 0, 0);
    while killed < settings.kills && !readers.iter().all(JoinHandle::is_finished) {
        tokio::time::sleep(Duration::from_millis(dice.u64(20..300))).await;
        // The count is of this process alone: it has found files that a killed process left unfit to be read.
        let counters = counters(&server).await?;
        corrupt += counters.corrupt_segments;
        server.kill();
        // Files are written there, and renamed into place.
        in_mid_write += u64::from(!files_under(&folder.path().join("cache/v1/tmp")).is_empty());
        killed += 1;
        server = tokio::task::block_in_place(start)?;
    }
    done.store(true, Ordering::Relaxed);
    let mut seen = EpochRead::default();
    let mut errors = Vec::new();
    for reader in readers {
        match reader.await? {
            Ok(epoch) => seen = seen.and(epoch),
            Err(error) => errors.push(format!("{error:#}")),
        }
    }
    let (most, looks) = watch.end();
    server.try_stop()?;
    let over = most.saturating_sub(limit);
    let mut found = Findings::default();
    found.value("kills", "kills", killed as f64);
    found.value("kills_in_mid_write", "kills", in_mid_write as f64);
    found.value("kills_wrong_values", "values", seen.wrong_values as f64);
    found.value("kills_rows_checked", "rows", seen.rows as f64);
    found.value("kills_corrupt_segments", "files", corrupt as f64);
    found.value("kills_stall_s", "s", seen.stall.as_secs_f64());
    found.value("du_over_limit_max", "bytes", over as f64);
    found.value("du_looks", "looks", looks as f64);
    let text = format!(
        "{killed} of {} kills, seed {}: {} rows checked, {} wrong values, readers' errors: {errors:?}",
        settings.kills, settings.seed, seen.rows, seen.wrong_values
    );
    found.check(killed == settings.kills && seen.wrong_values == 0 && errors.is_empty(), text);
    if settings.kills >= MANY {
        found.check(in_mid_write > 0, format!("{in_mid_write} kills in the middle of writing a file"));
    }
    let text = format!("{corrupt} segment files that a killed process had written do not verify");
    found.check(corrupt == 0, text);
    found.check(
        over == 0,
        format!("du of the cache directory: at most {most} bytes of {limit}, {looks} looks"),
    );
    Ok(found)
}

/// Jobs that fill, evict, and top up each other's columns.
fn jobs() -> Vec<Job> {
    let columns = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
    vec![
        Job { columns: columns(&["id", "a"]), ..Job::new(1, u64::MAX / 2) },
        Job { columns: columns(&["id", "b", "c"]), world: 2, ..Job::new(2, u64::MAX / 2).window(8) },
        Job::new(3, u64::MAX / 2).window(2),
    ]
}

fn node(s3: &S3Server, folder: &Path, address: &str, limit: u64) -> anyhow::Result<Server> {
    let options = ServerOptions::for_s3(s3).folder(folder).args(["--listen", address]);
    let options = options.args(["--cache-bytes", &limit.to_string()]);
    // A file that a kill left without its content is found and removed, as it should be.
    options.allow_log("a segment file is damaged").try_start()
}
