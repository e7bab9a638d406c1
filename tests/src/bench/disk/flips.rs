//! Damaged segment files: bits flipped and files cut short under a running node.
//!
//! In each round some of the files that a job will read are damaged between two of its epochs, each once;
//! then the job reads all of them. In every fourth round the node is killed and restarted in between. Another
//! job, whose files stay whole, reads on all the while: the node has to serve it undisturbed.

use super::folder::{Identity, identity, segment_files};
use super::node::counters;
use crate::harness::check::Findings;
use crate::harness::ports::free_address;
use crate::harness::process::{Server, ServerOptions};
use crate::harness::reader::{EpochRead, Job, read, read_until};
use crate::harness::s3::S3Server;
use crate::harness::table::{MIB_ROWS, Table};
use anyhow::Context;
use fastrand::Rng;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// How long the scrub may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Fast enough to read everything through many times meanwhile.
const SCRUB_MB_PER_S: &str = "200";

/// How large the measurement is.
#[derive(Debug, Clone, Copy)]
pub struct FlipsSettings {
    /// How many files are damaged in all.
    pub flips: u64,
    /// Segments of the dataset, 1 MiB each.
    pub segments: u64,
    /// Decides which files are damaged, and how.
    pub seed: u64,
}

/// Damage done and damage noticed.
#[derive(Debug, Default)]
struct Tally {
    injected: u64,
    /// Damaged files that are no longer there.
    detected: u64,
    /// By the node's own counter; two readers that meet the same file may count it twice.
    counted: u64,
    read: EpochRead,
}

/// Runs it.
pub fn run(runtime: &Runtime, settings: &FlipsSettings) -> anyhow::Result<Findings> {
    let mut found = runtime.block_on(flips(settings))?;
    found.add(runtime.block_on(scrub(settings))?);
    Ok(found)
}

/// Damages half of the files of an idle node, waits until its scrub has found all of them, then reads.
pub async fn scrub(settings: &FlipsSettings) -> anyhow::Result<Findings> {
    let s3 = S3Server::start();
    let table = Table::upload(&s3, "scrub", settings.segments, MIB_ROWS)?;
    let folder = tempfile::tempdir()?;
    let server = node(&s3, folder.path(), "127.0.0.1:0", SCRUB_MB_PER_S)?;
    read(&server.endpoint, &table, &Job::new(1, 1)).await?;
    let (half, mut dice) = (settings.segments / 2, Rng::with_seed(settings.seed));
    let damaged = damage(&folder.path().join("cache"), &BTreeSet::new(), half, &mut dice)?;
    let injected = damaged.len() as u64;
    let since = Instant::now();
    while counters(&server).await?.corrupt_segments < injected && since.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (took, detected) = (since.elapsed().as_secs_f64(), gone(&damaged));
    let wrong = read(&server.endpoint, &table, &Job::new(2, 1)).await?.wrong_values;
    server.try_stop()?;
    let mut found = Findings::default();
    found.value("scrub_injected", "files", injected as f64);
    found.value("scrub_detected", "files", detected as f64);
    found.value("scrub_took_s", "s", took);
    let text =
        format!("{injected} files damaged: the scrub found {detected} in {took:.1} s, {wrong} wrong values");
    found.check(detected == injected && wrong == 0, text);
    Ok(found)
}

async fn flips(settings: &FlipsSettings) -> anyhow::Result<Findings> {
    let s3 = S3Server::start();
    let calm = Table::upload(&s3, "calm", 8, MIB_ROWS)?;
    let table = Table::upload(&s3, "flips", settings.segments, MIB_ROWS)?;
    let folder = tempfile::tempdir()?;
    let address = free_address()?;
    let mut server = node(&s3, folder.path(), &address, "0")?;
    read(&server.endpoint, &calm, &Job::new(1, 1)).await?;
    let spared: BTreeSet<PathBuf> = segment_files(&folder.path().join("cache")).into_iter().collect();
    let done = Arc::new(AtomicBool::new(false));
    let bystander = read_until(&server.endpoint, &calm, Job::new(3, u64::MAX / 2), done.clone());
    read(&server.endpoint, &table, &Job::new(1, 1)).await?;
    let (mut dice, mut tally, mut round) = (Rng::with_seed(settings.seed), Tally::default(), 0);
    while tally.injected < settings.flips {
        round += 1;
        let most = (settings.flips - tally.injected).min(settings.segments / 3);
        let damaged = damage(&folder.path().join("cache"), &spared, most, &mut dice)?;
        anyhow::ensure!(
            !damaged.is_empty(),
            "after {} flips there are no segment files left",
            tally.injected
        );
        tally.injected += damaged.len() as u64;
        if round % 4 == 0 {
            tally.counted += counters(&server).await?.corrupt_segments;
            server.kill();
            server = tokio::task::block_in_place(|| node(&s3, folder.path(), &address, "0"))?;
        }
        let (endpoint, job) = (server.endpoint.clone(), Job::new(round, 1));
        let epoch = tokio::select! {
            epoch = read(&endpoint, &table, &job) => epoch,
            status = death(&mut server) => Err(anyhow::anyhow!("the node ended with {status}")),
        };
        tally.read = tally.read.and(epoch.with_context(|| format!("round {round}"))?);
        tally.detected += gone(&damaged);
    }
    done.store(true, Ordering::Relaxed);
    let beside = bystander.await??;
    tally.counted += counters(&server).await?.corrupt_segments;
    server.try_stop()?;
    Ok(findings(settings, &tally, &beside))
}

fn findings(settings: &FlipsSettings, tally: &Tally, beside: &EpochRead) -> Findings {
    let wrong = tally.read.wrong_values + beside.wrong_values;
    let mut found = Findings::default();
    found.value("flips_injected", "files", tally.injected as f64);
    found.value("flips_detected", "files", tally.detected as f64);
    found.value("flips_counted", "files", tally.counted as f64);
    found.value("flips_wrong_values", "values", wrong as f64);
    found.value("flips_rows_checked", "rows", (tally.read.rows + beside.rows) as f64);
    let text = format!(
        "{} files damaged, seed {}: {} detected, {wrong} wrong values in {} rows",
        tally.injected,
        settings.seed,
        tally.detected,
        tally.read.rows + beside.rows
    );
    let all = tally.detected == tally.injected && tally.counted >= tally.injected;
    found.check(all && wrong == 0, text);
    found
}

/// Damages at most `most` files, none of those in `spared`. Returns the damaged ones.
fn damage(
    cache: &Path,
    spared: &BTreeSet<PathBuf>,
    most: u64,
    dice: &mut Rng,
) -> anyhow::Result<Vec<(PathBuf, Identity)>> {
    let mut files: Vec<PathBuf> =
        segment_files(cache).into_iter().filter(|file| !spared.contains(file)).collect();
    files.sort();
    let mut damaged = Vec::new();
    while (damaged.len() as u64) < most && !files.is_empty() {
        let path = files.swap_remove(dice.usize(..files.len()));
        let file = File::options().read(true).write(true).open(&path)?;
        let at = dice.u64(..file.metadata()?.len());
        match dice.u8(..4) {
            0 => file.set_len(at)?,
            _ => {
                let mut byte = [0];
                file.read_exact_at(&mut byte, at)?;
                byte[0] ^= 1 << dice.u64(..8);
                file.write_all_at(&byte, at)?;
            }
        }
        damaged.push((path, identity(&file.metadata()?)));
    }
    Ok(damaged)
}

/// How many of these files are gone or replaced.
fn gone(files: &[(PathBuf, Identity)]) -> u64 {
    let is_there =
        |(path, was): &&(PathBuf, Identity)| std::fs::metadata(path).is_ok_and(|of| identity(&of) == *was);
    files.len() as u64 - files.iter().filter(is_there).count() as u64
}

/// Returns when the node has ended by itself.
async fn death(server: &mut Server) -> ExitStatus {
    loop {
        if let Some(status) = server.ended() {
            return status;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn node(s3: &S3Server, folder: &Path, address: &str, scrub_mb_per_s: &str) -> anyhow::Result<Server> {
    let options = ServerOptions::for_s3(s3).folder(folder).args(["--listen", address]);
    let options = options.args(["--cache-bytes", "4GiB", "--scrub-mb-per-s", scrub_mb_per_s]);
    options.allow_log("a segment file is damaged").try_start()
}
