//! One epoch read by several ranks at the same time, as a training run would, and what they counted together.

use super::report::Read;
use arrow::array::Array;
use forebay_client::Dataset;
use forebay_client::loader::{Batch, Event, Loader, LoaderSettings};
use forebay_proto::{Error, Result};
use indicatif::{ProgressBar, ProgressStyle};
use std::ops::Range;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Reads the epoch that `settings` name as each of `ranks`; the first error ends all.
pub(super) async fn read(dataset: &Dataset, settings: &LoaderSettings, ranks: Range<u32>) -> Result<Read> {
    let bar = progress(dataset, settings.first_epoch);
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for rank in ranks.clone() {
        let settings = LoaderSettings { rank, ..settings.clone() };
        // Room for ahead of all ranks together is what one rank has by default.
        let prefetch_bytes = settings.prefetch_bytes / u64::from(ranks.end - ranks.start).max(1);
        let loader = Loader::start(dataset, LoaderSettings { prefetch_bytes, ..settings })?;
        tasks.spawn(one(loader, bar.clone()));
    }
    let mut all = Read { ranks: ranks.end - ranks.start, ..Default::default() };
    while let Some(done) = tasks.join_next().await {
        let one = done.map_err(|e| Error::closed(format!("reading broke off: {e}")))??;
        all.samples += one.samples;
        all.bytes += one.bytes;
        all.wait_s += one.wait_s;
        // Every rank takes part in every step.
        all.steps = one.steps;
        all.digest.merge(one.digest);
    }
    all.seconds = started.elapsed().as_secs_f64();
    bar.finish_and_clear();
    Ok(all)
}

async fn one(mut loader: Loader, bar: ProgressBar) -> Result<Read> {
    let mut read = Read::default();
    loop {
        let asked = Instant::now();
        let event = loader.next().await?;
        read.wait_s += asked.elapsed().as_secs_f64();
        match event {
            Some(Event::Batch(batch)) => {
                read.bytes += bytes(&batch);
                bar.inc(batch.real_rows as u64);
            }
            Some(Event::EpochEnd(summary)) => {
                read.samples += summary.samples;
                read.steps += summary.steps;
                read.digest.merge(summary.digest);
            }
            None => return Ok(read),
        }
    }
}

/// Bytes of the batch's values, without what its buffers have to spare.
fn bytes(batch: &Batch) -> u64 {
    let sizes = batch.columns.columns().iter().map(|c| c.to_data().get_slice_memory_size().unwrap_or(0));
    sizes.sum::<usize>() as u64
}

/// A live line on a terminal, nothing elsewhere.
fn progress(dataset: &Dataset, epoch: u64) -> ProgressBar {
    let style = "epoch {msg} {bar:30} {human_pos} of {human_len} samples, {per_sec}";
    let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(dataset.epoch_samples()).with_style(style).with_message(epoch.to_string());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
