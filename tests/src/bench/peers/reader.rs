//! Our own subject: a process that reads epochs through a node with the loader's defaults, which are shared
//! memory as the node is on this host, or as from another host; it reports them as the peers' scripts do. The
//! node's processor time and memory count as its own.

use super::consumer::{Content, PeerEpoch, PeerEpochs};
use super::peer::WINDOW;
use crate::bench::stages::runtime;
use crate::bench::warm::{Shape, Span};
use anyhow::Context;
use arrow::array::BooleanArray;
use arrow::compute::filter_record_batch;
use clap::Args;
use forebay_client::loader::Shuffle;
use forebay_client::{Access, Dataset, DatasetSpec, Event, Loader, LoaderSettings};
use std::fs;
use std::time::{Duration, Instant};

/// The order's seed, of the peers too.
pub const SEED: u64 = 15;

#[derive(Debug, Clone, Args)]
pub struct PeerReaderOptions {
    #[arg(long)]
    pub endpoint: String,
    #[arg(long)]
    pub uri: String,
    #[arg(long, value_enum)]
    pub shape: Shape,
    #[arg(long)]
    pub shuffle: bool,
    /// No shared memory with the node.
    #[arg(long)]
    pub tcp: bool,
    #[arg(long)]
    pub epochs: u32,
    /// The process whose work is counted with ours.
    #[arg(long)]
    pub node: u32,
}

/// Is the reader, in a process of its own.
pub fn run(options: &PeerReaderOptions) -> anyhow::Result<()> {
    let runtime = runtime()?;
    let mut dataset = None;
    let mut epochs = Vec::new();
    for epoch in 0..u64::from(options.epochs) {
        let node = cpu_s(options.node)?;
        // The dataset is opened in the first epoch, as the peers open their files there.
        let (span, read) = Span::of(|| runtime.block_on(read(options, epoch, &mut dataset)));
        let cpu_s = span.cpu_s + cpu_s(options.node)? - node;
        epochs.push(PeerEpoch { seconds: span.seconds(), cpu_s, ..read? });
    }
    let peak_mb = peak_mb(options.node)? + peak_mb(std::process::id())?;
    println!("{}", serde_json::to_string(&PeerEpochs { cannot: None, epochs, peak_mb })?);
    Ok(())
}

/// An epoch; its whole time and its processor time are not told.
async fn read(
    options: &PeerReaderOptions,
    epoch: u64,
    dataset: &mut Option<Dataset>,
) -> anyhow::Result<PeerEpoch> {
    let began = Instant::now();
    let dataset = match dataset {
        Some(dataset) => dataset,
        None => {
            let access = Access::endpoint(&options.endpoint)?;
            dataset.insert(Dataset::open(&access, &DatasetSpec::new(&options.uri)).await?)
        }
    };
    let settings = LoaderSettings {
        seed: SEED,
        shuffle: if options.shuffle { Shuffle::Window(WINDOW) } else { Shuffle::None },
        global_batch: options.shape.batch_rows() as u64,
        first_epoch: epoch,
        epochs: Some(1),
        same_host: !options.tcp,
        ..Default::default()
    };
    let mut loader = Loader::start(dataset, settings)?;
    let (mut content, mut consumer, mut first_batch_ms) = (Content::default(), Duration::ZERO, None);
    loop {
        match loader.next().await?.context("an epoch has an end")? {
            Event::Batch(batch) => {
                let came = Instant::now();
                first_batch_ms.get_or_insert_with(|| (came - began).as_secs_f64() * 1e3);
                match batch.mask {
                    None => content.consume(options.shape, &batch.columns)?,
                    // Rows of a batch lie by segment, padding among them.
                    Some(mask) => {
                        let rows = filter_record_batch(&batch.columns, &BooleanArray::new(mask, None))?;
                        content.consume(options.shape, &rows)?;
                    }
                }
                consumer += came.elapsed();
            }
            Event::EpochEnd(_) => {
                let first_batch_ms = first_batch_ms.context("an epoch has batches")?;
                let consumer_s = consumer.as_secs_f64();
                return Ok(PeerEpoch { content, seconds: 0.0, consumer_s, cpu_s: 0.0, first_batch_ms });
            }
        }
    }
}

/// Processor time of another process, in hundredths of a second.
fn cpu_s(pid: u32) -> anyhow::Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').context("/proc/PID/stat has a name")?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    Ok(ticks.sum::<Result<f64, _>>()? / 100.0)
}

/// The most memory that a process had resident.
fn peak_mb(pid: u32) -> anyhow::Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()).context("VmHWM is told")?;
    Ok(kilobytes.parse::<f64>()? * 1024.0 / 1e6)
}
