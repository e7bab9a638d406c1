//! The training job that must not notice: ranks that read epoch after epoch at a steady pace, and how long each step
//! made them wait.

use forebay_client::loader::Shuffle;
use forebay_client::{Access, Dataset, DatasetSpec, Event, Loader, LoaderSettings};
use forebay_proto::digest::OrderDigest;
use forebay_proto::plan::Order;
use forebay_proto::plan::steps::{Cut, Ending, Layout, Steps};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// Samples of a step over all ranks.
const GLOBAL_BATCH: u64 = 240;

/// Ranks of the job.
const WORLD: u32 = 2;

/// What a step takes to compute: the emulated accelerator.
const STEP: Duration = Duration::from_millis(8);

/// Batches ahead: little, so that a fault shows. It covers a few dozen steps.
const PREFETCH_BYTES: u64 = 2 << 20;

/// Small segments, so that 47 MB of MNIST make 40 of them.
pub const SEGMENT_BYTES: u64 = 1 << 20;

/// A job that reads until it is dropped.
pub struct Reader {
    dataset: Dataset,
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
    /// Opens MNIST in small segments and starts reading.
    pub fn start(runtime: &Runtime, endpoints: &str, uri: &str) -> anyhow::Result<Self> {
        let spec = DatasetSpec { segment_bytes: Some(SEGMENT_BYTES), ..DatasetSpec::new(uri) };
        let access = Access::endpoint(endpoints)?;
        let dataset = runtime.block_on(Dataset::open(&access, &spec))?;
        let seen = Arc::new(Mutex::new(Seen::default()));
        let _context = runtime.enter();
        let start = |rank| {
            let loader = Loader::start(&dataset, settings(rank))?;
            anyhow::Ok(tokio::spawn(read(loader, rank, seen.clone())))
        };
        let ranks = (0..WORLD).map(start).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { dataset, seen, ranks })
    }

    /// The longest wait for a batch that ended after `since` or still goes on.
    pub fn longest_wait_ms(&self, since: Instant) -> f64 {
        let seen = lock(&self.seen);
        let ended = seen.waits.iter().rev().take_while(|(at, _)| *at >= since).map(|(_, wait)| *wait);
        let now = seen.waiting.values().map(Instant::elapsed);
        ended.chain(now).max().unwrap_or_default().as_secs_f64() * 1e3
    }

    /// Batches that came.
    pub fn batches(&self) -> usize {
        lock(&self.seen).waits.len()
    }

    /// Errors that ranks ended with.
    pub fn errors(&self) -> Vec<String> {
        lock(&self.seen).errors.clone()
    }

    /// Epochs that all ranks are through, and how many of them are not what the plan says.
    pub fn epochs(&self) -> anyhow::Result<(usize, usize)> {
        let done: Vec<_> = {
            let seen = lock(&self.seen);
            let whole = seen.epochs.iter().filter(|(_, (ranks, ..))| *ranks == WORLD);
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
        let settings = settings(0);
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

fn settings(rank: u32) -> LoaderSettings {
    LoaderSettings {
        seed: 5,
        shuffle: Shuffle::Window(8),
        global_batch: GLOBAL_BATCH,
        rank,
        world: WORLD,
        epochs: None,
        prefetch_bytes: PREFETCH_BYTES,
        ..Default::default()
    }
}

async fn read(mut loader: Loader, rank: u32, seen: Arc<Mutex<Seen>>) {
    loop {
        let began = Instant::now();
        lock(&seen).waiting.insert(rank, began);
        let event = loader.next().await;
        let next = lock(&seen).note(rank, began, event);
        match next {
            Next::Compute => tokio::time::sleep(STEP).await,
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
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}
