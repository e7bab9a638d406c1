//! Readers of a [`Table`]: epochs by all ranks of a job at once, each value checked as it comes.
//!
//! A [`Reader`] reads an epoch when it is told to. A
//! [`BackgroundReader`](super::background::BackgroundReader) reads on by itself.

use super::table::{Checked, Table};
use anyhow::Context;
use forebay_client::loader::{Ending, LoaderState, Shuffle};
use forebay_client::{Access, Dataset, DatasetSpec, Event, Loader, LoaderSettings};
use forebay_proto::digest::OrderDigest;
use forebay_proto::manifest::Manifest;
use forebay_proto::plan::Order;
use forebay_proto::plan::steps::{Cut, Layout, Steps};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// A training job, as far as a cache sees it.
#[derive(Debug, Clone)]
pub struct Job {
    /// The columns it reads; none: all.
    pub columns: Option<Vec<String>>,
    /// Its ranks.
    pub world: u32,
    /// How long a step computes: the emulated accelerator.
    pub step: Duration,
    /// The settings that its ranks share.
    pub settings: LoaderSettings,
}

impl Job {
    /// One rank that reads all columns as fast as it can, with a window of 4.
    pub fn new(seed: u64, epochs: u64) -> Self {
        let settings = LoaderSettings {
            seed,
            shuffle: Shuffle::Window(4),
            ending: Ending::Exact,
            global_batch: 256,
            epochs: Some(epochs),
            // Little is read ahead, so that the work of a node belongs to the epoch that is being read.
            prefetch_bytes: 2 << 20,
            patience: Duration::from_secs(90),
            window_bytes: 1 << 20,
            // What networks and nodes do to streams is measured, and all of it is on one host.
            same_host: false,
            ..Default::default()
        };
        Self { columns: None, world: 1, step: Duration::ZERO, settings }
    }

    /// The same with this many segments shuffled together.
    pub fn window(mut self, segments: u32) -> Self {
        self.settings.shuffle = Shuffle::Window(segments);
        self
    }

    /// Opens the table as this job reads it.
    pub async fn open(&self, endpoint: &str, table: &Table) -> anyhow::Result<Dataset> {
        let spec = DatasetSpec {
            segment_bytes: Some(table.segment_bytes),
            columns: self.columns.clone(),
            ..DatasetSpec::new(&table.uri)
        };
        Ok(Dataset::open(&Access::endpoint(endpoint)?, &spec).await?)
    }

    /// Starts its ranks. Must be called within a Tokio runtime.
    pub fn ranks(&self, dataset: &Dataset) -> anyhow::Result<Vec<Loader>> {
        let rank = |rank| {
            Loader::start(dataset, LoaderSettings { rank, world: self.world, ..self.settings.clone() })
        };
        Ok((0..self.world).map(rank).collect::<Result<_, _>>()?)
    }
}

/// The ranks of a job.
pub struct Reader {
    ranks: Vec<Loader>,
    rows: u64,
}

/// The rows of an epoch, and the waits for them.
#[derive(Debug, Clone, Copy, Default)]
pub struct EpochRead {
    /// Rows, over all ranks.
    pub rows: u64,
    /// Values that were not what they should be.
    pub wrong_values: u64,
    /// The longest that a rank waited for a batch.
    pub stall: Duration,
}

impl EpochRead {
    /// This epoch and another one as if they were one.
    pub fn and(self, other: Self) -> Self {
        Self {
            rows: self.rows + other.rows,
            wrong_values: self.wrong_values + other.wrong_values,
            stall: self.stall.max(other.stall),
        }
    }
}

impl Reader {
    /// Starts all ranks of `job`.
    pub async fn start(endpoint: &str, table: &Table, job: &Job) -> anyhow::Result<Self> {
        let dataset = job.open(endpoint, table).await?;
        Ok(Self { ranks: job.ranks(&dataset)?, rows: dataset.manifest.rows() })
    }

    /// The segments of one of its epochs in the order in which they are read.
    pub fn trace(&self, epoch: u64) -> anyhow::Result<Vec<u32>> {
        let loader = self.ranks.first().context("a job has ranks")?;
        let LoaderState { key, .. } = loader.state();
        Ok(Order::new(&loader.dataset().manifest, key.seed, epoch, key.shuffle).segments_from(0))
    }

    /// Reads to the end of the epoch.
    pub async fn epoch(&mut self) -> anyhow::Result<EpochRead> {
        let ranks = self.ranks.drain(..).map(|rank| tokio::spawn(one_rank(rank)));
        let (mut checked, mut stall) = (Checked::default(), Duration::ZERO);
        for rank in ranks.collect::<Vec<_>>() {
            let (loader, read, waited) = rank.await??;
            checked.merge(&read);
            stall = stall.max(waited);
            self.ranks.push(loader);
        }
        let wrong_values = checked.wrong_of_epoch(self.rows);
        Ok(EpochRead { rows: checked.rows, wrong_values, stall })
    }
}

async fn one_rank(mut loader: Loader) -> anyhow::Result<(Loader, Checked, Duration)> {
    let (mut checked, mut stall) = (Checked::default(), Duration::ZERO);
    loop {
        let asked = Instant::now();
        let event = loader.next().await?;
        stall = stall.max(asked.elapsed());
        match event {
            Some(Event::Batch(batch)) => checked.add(&batch),
            Some(Event::EpochEnd(_)) | None => return Ok((loader, checked, stall)),
        }
    }
}

/// All epochs of a job, as one.
pub async fn read(endpoint: &str, table: &Table, job: &Job) -> anyhow::Result<EpochRead> {
    let mut reader = Reader::start(endpoint, table, job).await?;
    let mut all = EpochRead::default();
    for _ in 0..job.settings.epochs.context("a job that ends")? {
        all = all.and(reader.epoch().await?);
    }
    Ok(all)
}

/// Reads epoch after epoch until told to stop; the last one is read to its end.
pub fn read_until(
    endpoint: &str,
    table: &Table,
    job: Job,
    done: Arc<AtomicBool>,
) -> JoinHandle<anyhow::Result<EpochRead>> {
    let (endpoint, table) = (endpoint.to_owned(), table.clone());
    tokio::spawn(async move {
        let mut reader = Reader::start(&endpoint, &table, &job).await?;
        let mut all = EpochRead::default();
        while !done.load(Ordering::Relaxed) {
            all = all.and(reader.epoch().await?);
        }
        Ok(all)
    })
}

/// The order digest that the plan gives an epoch of a job with these settings.
pub fn planned_digest(
    manifest: &Manifest,
    settings: &LoaderSettings,
    epoch: u64,
) -> anyhow::Result<OrderDigest> {
    let order = Order::new(manifest, settings.seed, epoch, settings.shuffle);
    let cut = Cut {
        first_position: 0,
        global_batch: settings.global_batch,
        world: 1,
        ending: Ending::Pad,
        layout: Layout::Segment,
    };
    let steps = Steps::new(&order, cut)?;
    let (mut digest, mut slots) = (OrderDigest::default(), Vec::new());
    for step in 0..steps.count() {
        steps.batch(step, 0, &mut slots);
        digest.merge(steps.digest(&slots, |segment| manifest.segments()[segment as usize].first_row));
    }
    Ok(digest)
}
