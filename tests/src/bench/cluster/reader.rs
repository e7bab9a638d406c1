//! The training job that must not notice: ranks that read epoch after epoch at a steady pace, and how long each step
//! made them wait.

use crate::harness::table::Table;
use forebay_client::loader::Shuffle;
use forebay_client::{Access, Dataset, DatasetSpec, Event, Loader, LoaderSettings};
use forebay_proto::digest::OrderDigest;
use forebay_proto::plan::Order;
use forebay_proto::plan::steps::{Cut, Ending, Layout, Steps};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// Samples of a step over all ranks.
const GLOBAL_BATCH: u64 = 240;

/// What a job reads, and how fast.
#[derive(Debug, Clone)]
pub struct Job {
    /// What its order depends on.
    pub seed: u64,
    /// Its ranks.
    pub world: u32,
    /// What a step takes to compute: the emulated accelerator.
    pub step: Duration,
    /// Batches ahead.
    pub prefetch_bytes: u64,
    /// `None`: it reads until it is dropped.
    pub epochs: Option<u64>,
}

impl Job {
    /// Two ranks at a steady pace without end. Little is read ahead, so that a fault shows: it covers a few dozen steps.
    pub fn steady() -> Self {
        let step = Duration::from_millis(8);
        Self { seed: 5, world: 2, step, prefetch_bytes: 2 << 20, epochs: None }
    }

    /// As fast as it can, with much read ahead.
    pub fn greedy(seed: u64, world: u32, epochs: Option<u64>) -> Self {
        Self { seed, world, step: Duration::ZERO, prefetch_bytes: 32 << 20, epochs }
    }

    fn settings(&self, rank: u32) -> LoaderSettings {
        LoaderSettings {
            seed: self.seed,
            shuffle: Shuffle::Window(8),
            global_batch: GLOBAL_BATCH,
            rank,
            world: self.world,
            epochs: self.epochs,
            prefetch_bytes: self.prefetch_bytes,
            ..Default::default()
        }
    }
}

/// A job that reads until it is dropped.
pub struct Reader {
    dataset: Dataset,
    job: Job,
    seen: Arc<Mutex<Seen>>,
    ranks: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Seen {
    /// When each batch came, and how long it was waited for.
    waits: Vec<(Instant, Duration)>,
    /// Since when each rank waits.
    waiting: BTreeMap<u32, Instant>,
    /// By epoch: ranks that are through, digest, samples.
    epochs: BTreeMap<u64, (u32, OrderDigest, u64)>,
    errors: Vec<String>,
}

impl Reader {
    /// Opens a dataset and starts reading.
    pub fn start(runtime: &Runtime, endpoints: &str, table: &Table, job: Job) -> anyhow::Result<Self> {
        let spec = DatasetSpec { segment_bytes: Some(table.segment_bytes), ..DatasetSpec::new(&table.uri) };
        let access = Access::endpoint(endpoints)?;
        let dataset = runtime.block_on(Dataset::open(&access, &spec))?;
        let seen = Arc::new(Mutex::new(Seen::default()));
        let _context = runtime.enter();
        let start = |rank| {
            let loader = Loader::start(&dataset, job.settings(rank))?;
            anyhow::Ok(tokio::spawn(read(loader, rank, job.step, seen.clone())))
        };
        let ranks = (0..job.world).map(start).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { dataset, job, seen, ranks })
    }

    /// The dataset.
    pub fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// Waits until it has read all its epochs or failed.
    pub fn wait(&self, patience: Duration) -> anyhow::Result<()> {
        let began = Instant::now();
        while !self.ranks.iter().all(JoinHandle::is_finished) {
            anyhow::ensure!(began.elapsed() < patience, "the job is not done after {patience:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// The longest wait for a batch that ended after `since` or still goes on.
    pub fn longest_wait_ms(&self, since: Instant) -> f64 {
        let seen = lock(&self.seen);
        let ended = seen.waits.iter().rev().take_while(|(at, _)| *at >= since).map(|(_, wait)| *wait);
        let now = seen.waiting.values().map(Instant::elapsed);
        ended.chain(now).max().unwrap_or_default().as_secs_f64() * 1e3
    }

    /// Errors that ranks ended with.
    pub fn errors(&self) -> Vec<String> {
        lock(&self.seen).errors.clone()
    }

    /// Epochs that all ranks are through, and how many of them are not what the plan says.
    pub fn epochs(&self) -> anyhow::Result<(usize, usize)> {
        let done: Vec<_> = {
            let seen = lock(&self.seen);
            let whole = seen.epochs.iter().filter(|(_, (ranks, ..))| *ranks == self.job.world);
            whole.map(|(epoch, (_, digest, samples))| (*epoch, *digest, *samples)).collect()
        };
        let mut wrong = 0;
        for (epoch, digest, samples) in &done {
            let right = *digest == self.planned(*epoch)? && *samples == self.dataset.manifest().rows();
            wrong += usize::from(!right);
        }
        Ok((done.len(), wrong))
    }

    fn planned(&self, epoch: u64) -> anyhow::Result<OrderDigest> {
        let manifest = self.dataset.manifest();
        let settings = self.job.settings(0);
        let order = Order::new(manifest, settings.seed, epoch, settings.shuffle);
        let cut = Cut {
            first_position: 0,
            global_batch: GLOBAL_BATCH,
            world: 1,
            ending: Ending::Pad,
            layout: Layout::Segment,
        };
        let steps = Steps::new(&order, cut)?;
        let (mut digest, mut slots) = (OrderDigest::default(), Vec::new());
        for step in 0..steps.count() {
            steps.batch(step, 0, &mut slots);
            digest.merge(steps.digest(&slots, |s| manifest.segments()[s as usize].first_row));
        }
        Ok(digest)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.ranks.iter().for_each(JoinHandle::abort);
    }
}

async fn read(mut loader: Loader, rank: u32, step: Duration, seen: Arc<Mutex<Seen>>) {
    loop {
        let began = Instant::now();
        lock(&seen).waiting.insert(rank, began);
        let event = loader.next().await;
        let next = lock(&seen).note(rank, began, event);
        match next {
            Next::Compute => tokio::time::sleep(step).await,
            Next::Read => {}
            Next::End => return,
        }
    }
}

/// What a rank does after an event.
enum Next {
    Compute,
    Read,
    End,
}

impl Seen {
    fn note(&mut self, rank: u32, began: Instant, event: forebay_proto::Result<Option<Event>>) -> Next {
        self.waiting.remove(&rank);
        match event {
            Ok(Some(Event::Batch(_))) => {
                self.waits.push((Instant::now(), began.elapsed()));
                Next::Compute
            }
            Ok(Some(Event::EpochEnd(end))) => {
                let (ranks, digest, samples) = self.epochs.entry(end.epoch).or_default();
                *ranks += 1;
                digest.merge(end.digest);
                *samples += end.samples;
                Next::Read
            }
            Ok(None) => Next::End,
            Err(e) => {
                self.errors.push(e.message);
                Next::End
            }
        }
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock()
}
