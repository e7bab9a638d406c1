//! Readers: epochs through a node by all ranks of a job at once, each value checked as it comes.

use super::table::{Checked, Table};
use anyhow::Context;
use forebay_client::loader::{Ending, LoaderState, Shuffle};
use forebay_client::stream::StreamSettings;
use forebay_client::{Access, Dataset, DatasetSpec, Event, Loader, LoaderSettings};
use forebay_proto::plan::Order;
use std::time::{Duration, Instant};

/// A training job, as far as a cache sees it.
#[derive(Debug, Clone)]
pub struct Job {
    /// What its order depends on.
    pub seed: u64,
    /// Segments that are shuffled together.
    pub window: u32,
    /// The columns it reads; none: all.
    pub columns: Option<Vec<String>>,
    /// Its ranks.
    pub world: u32,
    /// How many epochs it will read.
    pub epochs: u64,
}

impl Job {
    /// One rank that reads all columns, with a window of 4.
    pub fn new(seed: u64, epochs: u64) -> Self {
        Self { seed, window: 4, columns: None, world: 1, epochs }
    }
}

/// The ranks of a job.
pub struct Reader {
    ranks: Vec<Loader>,
    rows: u64,
}

/// What an epoch was like.
#[derive(Debug, Clone, Copy, Default)]
pub struct Epoch {
    /// Rows, over all ranks.
    pub rows: u64,
    /// Values that were not what they should be.
    pub wrong_values: u64,
    /// The longest that a rank waited for a batch.
    pub stall: Duration,
    /// From the first rank's start to the last one's end.
    pub took: Duration,
}

impl Epoch {
    /// This epoch and another one as if they were one.
    pub fn and(self, other: Self) -> Self {
        Self {
            rows: self.rows + other.rows,
            wrong_values: self.wrong_values + other.wrong_values,
            stall: self.stall.max(other.stall),
            took: self.took + other.took,
        }
    }
}

impl Reader {
    /// Starts all ranks of `job`.
    pub async fn start(endpoint: &str, table: &Table, job: &Job) -> anyhow::Result<Self> {
        let spec = DatasetSpec {
            segment_bytes: Some(table.segment_bytes),
            columns: job.columns.clone(),
            ..DatasetSpec::new(&table.uri)
        };
        let dataset = Dataset::open(&Access::endpoint(endpoint)?, &spec).await?;
        let rank = |rank| {
            let settings = LoaderSettings {
                seed: job.seed,
                shuffle: Shuffle::Window(job.window),
                ending: Ending::Exact,
                global_batch: 256,
                rank,
                world: job.world,
                epochs: Some(job.epochs),
                // Little runs ahead, so that what a node does belongs to the epoch that is being read.
                prefetch_bytes: 2 << 20,
                patience: Duration::from_secs(90),
                stream: StreamSettings { window_bytes: 1 << 20, ..Default::default() },
                ..Default::default()
            };
            Loader::start(&dataset, settings)
        };
        let ranks = (0..job.world).map(rank).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { ranks, rows: dataset.manifest().rows() })
    }

    /// The segments of one of its epochs in the order in which they are read.
    pub fn trace(&self, epoch: u64) -> anyhow::Result<Vec<u32>> {
        let loader = self.ranks.first().context("a job has ranks")?;
        let LoaderState { key, .. } = loader.state();
        Ok(Order::new(loader.dataset().manifest(), key.seed, epoch, key.shuffle).segments_from(0))
    }

    /// Reads to the end of the epoch.
    pub async fn epoch(&mut self) -> anyhow::Result<Epoch> {
        let started = Instant::now();
        let ranks = self.ranks.drain(..).map(|rank| tokio::spawn(one_rank(rank)));
        let (mut checked, mut stall) = (Checked::default(), Duration::ZERO);
        for rank in ranks.collect::<Vec<_>>() {
            let (loader, read, waited) = rank.await??;
            checked.merge(&read);
            stall = stall.max(waited);
            self.ranks.push(loader);
        }
        let wrong_values = checked.wrong_of_epoch(self.rows);
        Ok(Epoch { rows: checked.rows, wrong_values, stall, took: started.elapsed() })
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
pub async fn read(endpoint: &str, table: &Table, job: &Job) -> anyhow::Result<Epoch> {
    let mut reader = Reader::start(endpoint, table, job).await?;
    let mut all = Epoch::default();
    for _ in 0..job.epochs {
        all = all.and(reader.epoch().await?);
    }
    Ok(all)
}
