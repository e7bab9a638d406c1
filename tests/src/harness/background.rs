//! A training job that reads on by itself while a benchmark does something to its cluster. It checks every
//! value, and notes how long each step had to wait.

use super::reader::{Job, planned_digest};
use super::table::{Checked, Table};
use super::wait::try_until;
use forebay_client::{Dataset, Event, Loader};
use forebay_proto::digest::{ContentDigest, OrderDigest};
use futures::FutureExt;
use parking_lot::Mutex;
use std::any::Any;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// A job that reads until it is through or dropped.
pub struct BackgroundReader {
    dataset: Dataset,
    job: Job,
    progress: Arc<Mutex<Progress>>,
    ranks: Vec<JoinHandle<()>>,
}

/// How far a job is, over all its ranks.
#[derive(Default)]
struct Progress {
    /// When each batch came, and how long it was waited for.
    waits: Vec<(Instant, Duration)>,
    /// Since when each rank waits.
    waiting: BTreeMap<u32, Instant>,
    /// The epochs, by the ranks that are through them.
    epochs: BTreeMap<u64, EpochProgress>,
    errors: Vec<String>,
}

#[derive(Clone, Copy, Default)]
struct EpochProgress {
    ranks: u32,
    digest: OrderDigest,
    /// Of a job whose settings ask for it.
    content: Option<ContentDigest>,
    samples: u64,
    checked: Checked,
}

/// The epochs that all ranks are through.
#[derive(Debug, Clone, Copy, Default)]
pub struct EpochsRead {
    /// How many there are.
    pub epochs: usize,
    /// Of these, how many had other samples than the plan says.
    pub wrong_digests: usize,
    /// Values in them that differ from the table's rule. An epoch that does not hold each row once counts as
    /// one more.
    pub wrong_values: u64,
}

impl EpochsRead {
    /// Adds what another job has read.
    pub fn add(&mut self, other: Self) {
        self.epochs += other.epochs;
        self.wrong_digests += other.wrong_digests;
        self.wrong_values += other.wrong_values;
    }
}

impl BackgroundReader {
    /// Opens a table and starts reading.
    pub fn start(runtime: &Runtime, endpoints: &str, table: &Table, job: Job) -> anyhow::Result<Self> {
        let dataset = runtime.block_on(job.open(endpoints, table))?;
        let progress = Arc::new(Mutex::new(Progress::default()));
        let _context = runtime.enter();
        let read = |(rank, loader)| {
            let reading = read(loader, rank, job.step, progress.clone());
            tokio::spawn(to_its_end(rank, reading, progress.clone()))
        };
        let ranks = (0..).zip(job.ranks(&dataset)?).map(read).collect();
        Ok(Self { dataset, job, progress, ranks })
    }

    /// The dataset.
    pub fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// Waits until it has read all its epochs or failed.
    pub fn wait(&self, patience: Duration) -> anyhow::Result<()> {
        try_until("the job is done", patience, || Ok(self.ranks.iter().all(JoinHandle::is_finished)))
    }

    /// The longest wait for a batch that ended after `since` or still goes on.
    pub fn longest_wait_ms(&self, since: Instant) -> f64 {
        let progress = self.progress.lock();
        let ended = progress.waits.iter().rev().take_while(|(at, _)| *at >= since).map(|(_, wait)| *wait);
        let now = progress.waiting.values().map(Instant::elapsed);
        ended.chain(now).max().unwrap_or_default().as_secs_f64() * 1e3
    }

    /// How many batches came within a time.
    pub fn batches_between(&self, from: Instant, to: Instant) -> usize {
        self.progress.lock().waits.iter().filter(|(at, _)| (from..to).contains(at)).count()
    }

    /// Errors and panics that ranks ended with.
    pub fn errors(&self) -> Vec<String> {
        self.progress.lock().errors.clone()
    }

    /// How many epochs all ranks are through.
    pub fn epochs(&self) -> usize {
        self.progress.lock().epochs.values().filter(|epoch| epoch.ranks == self.job.world).count()
    }

    /// The content digests of the epochs that all ranks are through, by number; none of a job whose settings
    /// do not ask for them.
    pub fn contents(&self) -> BTreeMap<u64, ContentDigest> {
        let epochs = &self.progress.lock().epochs;
        let whole = epochs.iter().filter(|(_, epoch)| epoch.ranks == self.job.world);
        whole.filter_map(|(number, epoch)| Some((*number, epoch.content?))).collect()
    }

    /// Compares the epochs that all ranks are through with the plan and with the table's rule.
    pub fn compare(&self) -> anyhow::Result<EpochsRead> {
        let epochs = self.progress.lock().epochs.clone();
        let (manifest, mut all) = (&self.dataset.manifest, EpochsRead::default());
        for (number, epoch) in epochs.into_iter().filter(|(_, epoch)| epoch.ranks == self.job.world) {
            let planned = planned_digest(manifest, &self.job.settings, number)?;
            let is_planned = epoch.digest == planned && epoch.samples == manifest.rows();
            all.add(EpochsRead {
                epochs: 1,
                wrong_digests: usize::from(!is_planned),
                wrong_values: epoch.checked.wrong_of_epoch(manifest.rows()),
            });
        }
        Ok(all)
    }
}

impl Drop for BackgroundReader {
    fn drop(&mut self) {
        self.ranks.iter().for_each(JoinHandle::abort);
    }
}

/// Has a rank read. A panic is noted like an error: else the others would read on without it, and nothing
/// would tell.
async fn to_its_end(rank: u32, reading: impl Future<Output = ()>, progress: Arc<Mutex<Progress>>) {
    if let Err(panic) = AssertUnwindSafe(reading).catch_unwind().await {
        progress.lock().errors.push(format!("rank {rank} panicked: {}", words(&*panic)));
    }
}

/// What a panic says.
fn words(panic: &(dyn Any + Send)) -> &str {
    let literal = panic.downcast_ref::<&str>().copied();
    literal.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("it does not say why")
}

async fn read(mut loader: Loader, rank: u32, step: Duration, progress: Arc<Mutex<Progress>>) {
    let mut checked = Checked::default();
    loop {
        let began = Instant::now();
        progress.lock().waiting.insert(rank, began);
        let event = loader.next().await;
        let waited = began.elapsed();
        progress.lock().waiting.remove(&rank);
        match event {
            Ok(Some(Event::Batch(batch))) => {
                progress.lock().waits.push((Instant::now(), waited));
                checked.add(&batch);
                tokio::time::sleep(step).await;
            }
            Ok(Some(Event::EpochEnd(end))) => {
                let mut progress = progress.lock();
                let epoch = progress.epochs.entry(end.epoch).or_default();
                epoch.ranks += 1;
                epoch.digest.merge(end.digest);
                if let Some(content) = end.content {
                    epoch.content.get_or_insert_default().merge(content);
                }
                epoch.samples += end.samples;
                epoch.checked.merge(&std::mem::take(&mut checked));
            }
            Ok(None) => return,
            Err(error) => return progress.lock().errors.push(error.message),
        }
    }
}

#[tokio::test]
async fn a_rank_that_panics_ends_with_an_error() {
    async fn reading(rows: Option<u64>) {
        rows.expect("a batch has rows");
    }
    let progress = Arc::new(Mutex::new(Progress::default()));
    to_its_end(0, reading(Some(1)), progress.clone()).await;
    assert!(progress.lock().errors.is_empty());
    to_its_end(1, reading(None), progress.clone()).await;
    assert_eq!(progress.lock().errors, ["rank 1 panicked: a batch has rows"]);
}
