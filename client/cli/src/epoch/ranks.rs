//! One epoch read by several ranks at the same time, as a training run would, and what they counted together.

use super::report::Read;
use crate::figures;
use forebay_client::loader::{Event, Loader, LoaderSettings};
use forebay_client::{Dataset, delay};
use forebay_proto::{Error, Result};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::convert::Infallible;
use std::io::Write;
use std::ops::Range;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How often a log is told how far an epoch is.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);

/// Reads the epoch that `settings` name as each of `ranks`; the first error ends all.
pub(super) async fn read(dataset: &Dataset, settings: &LoaderSettings, ranks: Range<u32>) -> Result<Read> {
    let bar = progress(dataset, settings.first_epoch);
    let (started, cpu_before) = (Instant::now(), cpu_s());
    let mut tasks = JoinSet::new();
    for rank in ranks.clone() {
        let settings = LoaderSettings { rank, ..settings.clone() };
        // Room for ahead of all ranks together is what one rank has by default.
        let prefetch_bytes = settings.prefetch_bytes / u64::from(ranks.end - ranks.start).max(1);
        let loader = Loader::start(dataset, LoaderSettings { prefetch_bytes, ..settings })?;
        tasks.spawn(one(loader, started, bar.clone()));
    }
    let mut all = Read { ranks: ranks.end - ranks.start, ..Default::default() };
    let telling = tell(dataset, settings.first_epoch, &bar);
    tokio::pin!(telling);
    loop {
        let done = tokio::select! {
            done = tasks.join_next() => done,
            never = &mut telling => match never {},
        };
        let Some(done) = done else { break };
        let one = done.map_err(|e| Error::closed(format!("reading broke off: {e}")))??;
        all.samples += one.samples;
        all.bytes += one.bytes;
        all.wait_s += one.wait_s;
        all.first_batch_s = all.first_batch_s.max(one.first_batch_s);
        // Every rank takes part in every step.
        all.steps = one.steps;
        all.digest.merge(one.digest);
        all.add_content(one.content);
    }
    all.seconds = started.elapsed().as_secs_f64();
    all.cpu_s = cpu_s() - cpu_before;
    bar.finish_and_clear();
    Ok(all)
}

async fn one(mut loader: Loader, started: Instant, bar: ProgressBar) -> Result<Read> {
    let mut read = Read::default();
    loop {
        let asked = Instant::now();
        let event = loader.next().await?;
        read.wait_s += asked.elapsed().as_secs_f64();
        match event {
            Some(Event::Batch(batch)) => {
                if read.bytes == 0 {
                    read.first_batch_s = started.elapsed().as_secs_f64();
                }
                read.bytes += batch.bytes() as u64;
                bar.inc(batch.real_rows as u64);
            }
            Some(Event::EpochEnd(summary)) => {
                read.samples += summary.samples;
                read.steps += summary.steps;
                read.digest.merge(summary.digest);
                read.add_content(summary.content);
            }
            None => return Ok(read),
        }
    }
}

/// Says on standard error when no rank's data comes, and why; where there is no terminal, also how far the
/// epoch is.
async fn tell(dataset: &Dataset, epoch: u64, bar: &ProgressBar) -> Infallible {
    let say = |line: String| bar.suspend(|| writeln!(std::io::stderr(), "forebay: {line}").ok());
    let waiting = delay::watch(
        &dataset.access,
        || bar.position(),
        |waited, why| {
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            say(format!("no data for {} s, {} samples were read{why}", waited.as_secs(), bar.position()));
        },
    );
    let progress = async {
        loop {
            tokio::time::sleep(PROGRESS_EVERY).await;
            if bar.is_hidden() {
                let (done, all) = (bar.position(), dataset.epoch_samples());
                say(format!("epoch {epoch}: {} of {}", figures::count(done), figures::of(all, "sample")));
            }
        }
    };
    tokio::select! {
        never = waiting => never,
        never = progress => never,
    }
}

/// Processor time of this process so far, in seconds.
fn cpu_s() -> f64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ProcessCPUTime);
    tv_sec as f64 + tv_nsec as f64 / 1e9
}

/// A live line on a terminal, nothing elsewhere.
fn progress(dataset: &Dataset, epoch: u64) -> ProgressBar {
    let style = "epoch {msg} {bar:30} {human_pos} of {human_len} samples, {per_sec}";
    let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(dataset.epoch_samples()).with_style(style).with_message(epoch.to_string());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
