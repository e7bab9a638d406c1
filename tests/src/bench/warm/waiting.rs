//! A loader that waits for its consumer, for an hour's steps of 20 ms: 180,000. The consumer takes 0.2 ms
//! for each, so that the hour is over in 36 s. What the loader has read ahead must stay within its budget.
//!
//! One rank reads by TCP and one through shared memory, at the same time, each in a process of its own.
//! Loader and node have their defaults, but batches are small, so that the loader is the faster side. Memory
//! is looked at every 100 ms. What counts is anonymous and shared memory. The pages of files that a process
//! maps are those of the node's files in the page cache, and stand apart.

use super::child::{ChildProcess, run_together, run_when_told, say_ready, say_report};
use super::rank::{MEASURED_EPOCH, RankOptions, touch};
use super::shape::{Shape, Stored};
use super::subject::{Subject, Transport};
use crate::bench::stages::runtime;
use crate::harness::check::Findings;
use crate::harness::process::{Server, ServerOptions};
use crate::harness::reader::planned_digest;
use crate::harness::s3::S3Server;
use anyhow::Context;
use clap::Args;
use forebay_client::loader::Shuffle;
use forebay_client::{Access, Dataset, DatasetSpec, Event, Loader, LoaderSettings};
use serde::{Deserialize, Serialize};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// What its rows are called.
pub const NAME: &str = "warm.waiting";

/// Steps of 20 ms in an hour.
pub const STEPS: u64 = 180_000;

/// What the consumer takes for a step, in microseconds: a hundredth of 20 ms.
pub const STEP_US: u64 = 200;

/// Rows of a batch: 50 KB.
pub const BATCH_ROWS: u64 = 16;

/// How often memory is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// What a loader may take beyond its budget.
pub const BEYOND_MB: f64 = 100.0;

/// A consumer that waits longer than this share of its time has no loader that waits for it.
const MOST_WAIT: f64 = 0.5;

const TRANSPORTS: [Transport; 2] = [Transport::Grpc, Transport::Fd];

/// A process whose consumer takes its time.
#[derive(Debug, Clone, Args)]
pub struct WaitingOptions {
    #[command(flatten)]
    rank: RankOptions,
    #[arg(long)]
    steps: u64,
}

/// Its report.
#[derive(Debug, Serialize, Deserialize)]
struct WaitingRead {
    /// The most that was seen of each, beyond what there was before the loader started.
    growth: ResidentMemory,
    /// The share of its time in which the consumer waited for a batch.
    data_wait_share: f64,
}

/// Resident memory of this process, in MB.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct ResidentMemory {
    anonymous: f64,
    shared: f64,
    /// Both together.
    own: f64,
    /// Of files that are mapped.
    files: f64,
}

/// MB that the loader may take, of batches that are ready or being filled.
pub fn budget_mb() -> f64 {
    LoaderSettings::default().prefetch_bytes as f64 / 1e6
}

/// Measures it. `scale` is the share of the data and of the steps.
pub fn measure(scale: f64) -> anyhow::Result<Findings> {
    let s3 = S3Server::start();
    let data = Shape::X.upload(&s3, scale)?;
    let node = ServerOptions::for_s3(&s3).slow_disk().try_start()?;
    fill(&s3, &node, &data)?;
    let steps = (STEPS as f64 * scale).ceil() as u64;
    let mut ranks = TRANSPORTS
        .iter()
        .map(|transport| {
            let rank = subject(*transport, Shuffle::Window(16)).rank(0, &node, &data);
            let rank = RankOptions { global_batch: BATCH_ROWS, ..rank };
            let steps = ["--steps".to_owned(), steps.to_string()];
            let line = std::iter::once("waiting".to_owned()).chain(rank.flags()).chain(steps);
            ChildProcess::start(line)
        })
        .collect::<Result<Vec<_>, _>>()?;
    for rank in &ranks {
        rank.ready()?;
    }
    let reads: Vec<WaitingRead> = run_together(&mut ranks)?;
    node.try_stop()?;
    let mut found = Findings::default();
    found.value(format!("{NAME}.budget_mb"), "MB", budget_mb());
    for (transport, read) in TRANSPORTS.iter().zip(&reads) {
        read.add(&mut found, &format!("{NAME}.{}", transport.name()), scale);
    }
    Ok(found)
}

fn subject(transport: Transport, shuffle: Shuffle) -> Subject {
    Subject { shape: Shape::X, shuffle, ranks: 1, transport }
}

/// Fills the node's disk. Another process reads for that: those that are measured must begin with no memory.
fn fill(s3: &S3Server, node: &Server, data: &Stored) -> anyhow::Result<()> {
    let access = Access::endpoint(&node.endpoint)?;
    let dataset = runtime()?.block_on(Dataset::open(&access, &DatasetSpec::new(&data.uri)))?;
    let subject = subject(Transport::Fd, Shuffle::None);
    let planned = planned_digest(&dataset.manifest, &subject.rank(0, node, data).settings(), MEASURED_EPOCH)?;
    subject.measure(s3, node, data, planned)?;
    rustix::fs::sync();
    Ok(())
}

impl WaitingRead {
    fn add(&self, found: &mut Findings, name: &str, scale: f64) {
        let ResidentMemory { anonymous, shared, own, files } = self.growth;
        let most = budget_mb() + BEYOND_MB;
        let waited = 100.0 * self.data_wait_share;
        found.value(format!("{name}.rss_growth_mb"), "MB", own);
        found.value(format!("{name}.anonymous_growth_mb"), "MB", anonymous);
        found.value(format!("{name}.shared_growth_mb"), "MB", shared);
        found.value(format!("{name}.files_growth_mb"), "MB", files);
        found.value(format!("{name}.data_wait"), "% of the time", waited);
        let text = format!(
            "{name}.rss_growth_mb = {own:.0} MB, at most {most:.0} wanted; the consumer waited {waited:.1} % of its \
             time"
        );
        let is_ahead = self.data_wait_share <= MOST_WAIT;
        match (scale < 1.0, is_ahead) {
            (true, _) => found.leave_out(text),
            (false, true) => found.check(own <= most, text),
            (false, false) => found.check(false, format!("{text}: the loader was too slow to wait")),
        }
    }
}

/// Is such a process.
pub fn wait(options: &WaitingOptions) -> anyhow::Result<()> {
    let runtime = runtime()?;
    let dataset = runtime.block_on(async {
        let access = Access::endpoint(&options.rank.endpoint)?;
        Dataset::open(&access, &DatasetSpec::new(&options.rank.uri)).await
    })?;
    say_ready("")?;
    let (_, read) = run_when_told(|| {
        let before = ResidentMemory::now()?;
        let (most, data_wait_share) = most_while(|| runtime.block_on(consume(&dataset, options)))?;
        Ok(WaitingRead { growth: most.beyond(before), data_wait_share })
    })?;
    say_report(&read)
}

/// Takes the steps; the share of the time that was spent in waiting for them. Every epoch that ends must be
/// in the plan's order.
async fn consume(dataset: &Dataset, options: &WaitingOptions) -> anyhow::Result<f64> {
    let settings = LoaderSettings { epochs: None, ..options.rank.settings() };
    let mut loader = Loader::start(dataset, settings.clone())?;
    let (began, mut waited, mut steps) = (Instant::now(), Duration::ZERO, 0);
    while steps < options.steps {
        let asked = Instant::now();
        let event = loader.next().await?.context("a run without end has ended")?;
        waited += asked.elapsed();
        match event {
            Event::Batch(batch) => {
                touch(&batch.columns)?;
                steps += 1;
                // As training does, it keeps its thread. A sleep that is too long makes the next one shorter.
                let due = began + Duration::from_micros(steps * STEP_US);
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            Event::EpochEnd(end) => {
                let planned = planned_digest(&dataset.manifest, &settings, end.epoch)?;
                let (epoch, digest) = (end.epoch, end.digest);
                anyhow::ensure!(digest == planned, "epoch {epoch} has digest {digest}, the plan {planned}");
            }
        }
    }
    Ok(waited.as_secs_f64() / began.elapsed().as_secs_f64())
}

/// Runs something; beside it, the most of each kind of memory that is seen meanwhile and at the end.
fn most_while<T>(run: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(ResidentMemory, T)> {
    let (done, told) = sync_channel::<()>(1);
    std::thread::scope(|scope| {
        let watch = scope.spawn(move || {
            let mut most = ResidentMemory::now()?;
            while told.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                most = most.or(ResidentMemory::now()?, f64::max);
            }
            anyhow::Ok(most)
        });
        let ran = run();
        let last = ResidentMemory::now()?;
        drop(done);
        let most = watch.join().map_err(|_| anyhow::anyhow!("nobody looks at the memory"))??;
        Ok((most.or(last, f64::max), ran?))
    })
}

impl ResidentMemory {
    fn now() -> anyhow::Result<Self> {
        Self::of(&std::fs::read_to_string("/proc/self/status")?)
    }

    /// From the text of `/proc/PID/status`.
    fn of(status: &str) -> anyhow::Result<Self> {
        let mb = |field: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
            let kib = line.and_then(|line| line.trim().split(' ').next()?.parse::<f64>().ok());
            Ok::<_, anyhow::Error>(
                kib.with_context(|| format!("the kernel tells no {field}"))? * 1024.0 / 1e6,
            )
        };
        let (anonymous, shared, files) = (mb("RssAnon")?, mb("RssShmem")?, mb("RssFile")?);
        Ok(Self { anonymous, shared, own: anonymous + shared, files })
    }

    /// What there is beyond that.
    fn beyond(self, before: Self) -> Self {
        self.or(before, |now, before| now - before)
    }

    fn or(self, other: Self, choose: fn(f64, f64) -> f64) -> Self {
        Self {
            anonymous: choose(self.anonymous, other.anonymous),
            shared: choose(self.shared, other.shared),
            own: choose(self.own, other.own),
            files: choose(self.files, other.files),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "VmRSS:\t 9000 kB\nRssAnon:\t 4000 kB\nRssFile:\t 3000 kB\nRssShmem:\t 2000 kB\n";

    #[test]
    fn the_kernel_tells_each_kind_of_memory() {
        let memory = ResidentMemory::of(STATUS).expect("memory");
        let all = [memory.anonymous, memory.shared, memory.own, memory.files];
        assert_eq!(all.map(|mb| (mb * 1e6 / 1024.0).round()), [4000.0, 2000.0, 6000.0, 3000.0]);
        assert!(ResidentMemory::of("VmRSS:\t 1 kB\n").is_err());
        let none = memory.beyond(memory);
        assert_eq!((none.own, none.files), (0.0, 0.0));
    }

    #[test]
    fn memory_that_is_held_at_the_end_is_seen() {
        const BYTES: usize = 256 << 20;
        let before = ResidentMemory::now().expect("memory");
        let (most, bytes) = most_while(|| Ok(vec![1_u8; BYTES])).expect("looked");
        let growth = most.beyond(before).own;
        // Other tests of this process may release some meanwhile.
        assert!(growth > 0.5 * bytes.len() as f64 / 1e6, "{growth} MB were seen of {BYTES} bytes");
    }

    #[test]
    fn a_loader_beyond_its_budget_or_too_slow_to_wait_fails() {
        let verdict = |own: f64, data_wait_share: f64| {
            let growth = ResidentMemory { anonymous: own, shared: 0.0, own, files: 900.0 };
            let mut found = Findings::default();
            WaitingRead { growth, data_wait_share }.add(&mut found, "warm.waiting.fd", 1.0);
            let value = |what: &str| {
                found
                    .rows
                    .iter()
                    .find(|row| row.name == format!("warm.waiting.fd.{what}"))
                    .map(|row| row.value)
            };
            assert_eq!((value("rss_growth_mb"), value("files_growth_mb")), (Some(own), Some(900.0)));
            found.checks[0].passed
        };
        let most = budget_mb() + BEYOND_MB;
        assert_eq!(verdict(most - 1.0, 0.01), Some(true));
        assert_eq!(verdict(most + 1.0, 0.01), Some(false));
        assert_eq!(verdict(1.0, 0.9), Some(false));
    }
}
