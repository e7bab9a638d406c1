//! One rank: a process with a loader, as a trainer has one. It reads an epoch to warm everything and checks
//! each value, and another one that is measured.

use super::child::{run_when_told, say_ready, say_report};
use super::marks::{row_marks, sample_mark, sum};
use super::span::Span;
use crate::bench::stages::runtime;
use anyhow::Context;
use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float32Type, Float64Type, Int64Type, UInt8Type};
use clap::Args;
use forebay_client::loader::Shuffle;
use forebay_client::{Access, Batch, Dataset, DatasetSpec, EpochSummary, Event, Loader, LoaderSettings};
use forebay_proto::digest::{ContentDigest, OrderDigest};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::time::Instant;

/// The order's seed.
pub const SEED: u64 = 15;

/// The epoch that is measured; the one before it warms.
pub const MEASURED_EPOCH: u64 = 1;

#[derive(Debug, Clone, Args)]
pub struct RankOptions {
    #[arg(long)]
    pub endpoint: String,
    #[arg(long)]
    pub uri: String,
    #[arg(long)]
    pub shuffle: Shuffle,
    #[arg(long)]
    pub world: u32,
    #[arg(long)]
    pub rank: u32,
    /// Samples of a step over all ranks.
    #[arg(long)]
    pub global_batch: u64,
    /// Batches come through shared memory.
    #[arg(long)]
    pub same_host: bool,
    /// The loader computes the content digest of the measured epoch.
    #[arg(long)]
    pub content_digest: bool,
}

/// The report of a rank.
#[derive(Debug, Serialize, Deserialize)]
pub struct RankRead {
    pub span: Span,
    /// Samples of the measured epoch, padding left out.
    pub samples: u64,
    pub first_batch_ms: f64,
    /// Of the measured epoch, as text.
    pub digest: String,
    /// The content digest of the measured epoch as text, if it was asked for.
    pub content: Option<String>,
    /// The marks of the samples of the epoch before it.
    pub mark: u64,
}

impl RankOptions {
    /// What its process is started with.
    pub fn arguments(&self) -> Vec<String> {
        std::iter::once("rank".to_owned()).chain(self.flags()).collect()
    }

    /// The same without the role.
    pub fn flags(&self) -> Vec<String> {
        let Self { endpoint, uri, shuffle, world, rank, global_batch, same_host, content_digest } = self;
        let (shuffle, world, rank) = (shuffle.to_string(), world.to_string(), rank.to_string());
        let pairs = [
            ("--endpoint", endpoint),
            ("--uri", uri),
            ("--shuffle", &shuffle),
            ("--world", &world),
            ("--rank", &rank),
            ("--global-batch", &global_batch.to_string()),
        ];
        let pairs = pairs.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value.clone()]);
        let same_host = same_host.then(|| "--same-host".to_owned());
        let content_digest = content_digest.then(|| "--content-digest".to_owned());
        pairs.chain(same_host).chain(content_digest).collect()
    }

    /// What its loader does, but for the epoch and the way: the defaults.
    pub fn settings(&self) -> LoaderSettings {
        LoaderSettings {
            seed: SEED,
            shuffle: self.shuffle,
            global_batch: self.global_batch,
            rank: self.rank,
            world: self.world,
            epochs: Some(1),
            same_host: self.same_host,
            content_digest: self.content_digest,
            ..Default::default()
        }
    }
}

/// Is a rank, in a process of its own.
pub fn run(options: &RankOptions) -> anyhow::Result<()> {
    let runtime = runtime()?;
    let dataset = runtime.block_on(async {
        let access = Access::endpoint(&options.endpoint)?;
        Dataset::open(&access, &DatasetSpec::new(&options.uri)).await
    })?;
    let mut mark = 0;
    let settings = options.settings();
    let warm = LoaderSettings { first_epoch: MEASURED_EPOCH - 1, content_digest: false, ..settings.clone() };
    let warm = epoch(&dataset, warm, |batch| {
        mark = sum([mark, mark_of(batch)?]);
        Ok(())
    });
    runtime.block_on(warm)?;
    say_ready("")?;
    let measured = LoaderSettings { first_epoch: MEASURED_EPOCH, ..settings };
    let read = || runtime.block_on(epoch(&dataset, measured, |batch| touch(&batch.columns)));
    let (span, MeasuredEpoch { samples, digest, content, first_batch_ms }) = run_when_told(read)?;
    let content = content.map(|content| content.to_string());
    say_report(&RankRead { span, samples, first_batch_ms, digest: digest.to_string(), content, mark })
}

/// An epoch of one rank.
struct MeasuredEpoch {
    samples: u64,
    digest: OrderDigest,
    content: Option<ContentDigest>,
    first_batch_ms: f64,
}

async fn epoch(
    dataset: &Dataset,
    settings: LoaderSettings,
    mut each: impl FnMut(&Batch) -> anyhow::Result<()>,
) -> anyhow::Result<MeasuredEpoch> {
    let began = Instant::now();
    let mut loader = Loader::start(dataset, settings)?;
    let mut first_batch_ms = None;
    loop {
        match loader.next().await?.context("an epoch has an end")? {
            Event::Batch(batch) => {
                first_batch_ms.get_or_insert_with(|| began.elapsed().as_secs_f64() * 1e3);
                each(&batch)?;
            }
            Event::EpochEnd(end) => {
                let first_batch_ms = first_batch_ms.context("an epoch has batches")?;
                let EpochSummary { samples, digest, content, .. } = end;
                return Ok(MeasuredEpoch { samples, digest, content, first_batch_ms });
            }
        }
    }
}

/// What a consumer does that costs nothing: it reads the first byte of each column.
pub fn touch(columns: &RecordBatch) -> anyhow::Result<()> {
    for column in columns.columns() {
        let byte = match column.data_type() {
            DataType::Float32 => column.as_primitive::<Float32Type>().value(0).to_bits() as u8,
            DataType::Float64 => column.as_primitive::<Float64Type>().value(0).to_bits() as u8,
            DataType::Int64 => column.as_primitive::<Int64Type>().value(0) as u8,
            DataType::FixedSizeList(..) => {
                column.as_fixed_size_list().values().as_primitive::<UInt8Type>().value(0)
            }
            DataType::Binary => *column.as_binary::<i32>().value(0).first().context("a value has bytes")?,
            // All of a batch may be empty, or null.
            DataType::Utf8 => {
                let texts = column.as_string::<i32>();
                let first = texts.value_offsets()[0] as usize;
                texts.value_data().get(first).copied().unwrap_or_default()
            }
            other => anyhow::bail!("a column is {other}"),
        };
        black_box(byte);
    }
    Ok(())
}

fn mark_of(batch: &Batch) -> anyhow::Result<u64> {
    let marks = row_marks(&batch.columns)?;
    let rows = batch.sample_ids.iter().zip(marks).enumerate();
    let real = rows.filter(|(row, _)| batch.mask.as_ref().is_none_or(|mask| mask.value(*row)));
    Ok(sum(real.map(|(_, (sample, mark))| sample_mark(*sample, mark))))
}
