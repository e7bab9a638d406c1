//! The cost of a resume, against a warm node.

use super::dataset::open;
use crate::harness::check::{Check, Findings};
use crate::harness::report::Row;
use forebay_client::loader::{LoaderState, Shuffle};
use forebay_client::{Event, Loader, LoaderSettings};
use forebay_proto::plan::PlanKey;
use std::time::{Duration, Instant};

/// Which epochs are read, here and of each window.
pub fn settings() -> LoaderSettings {
    LoaderSettings {
        seed: 3,
        shuffle: Shuffle::Window(8),
        global_batch: 240,
        epochs: Some(1),
        ..Default::default()
    }
}

/// The time to a resume's first batch, over that from an epoch's start.
const TTFB_RATIO: f64 = 1.2;

/// Measures all of it. Waits have no target.
pub async fn run(endpoint: &str, uri: &str) -> anyhow::Result<Findings> {
    let (mut rows, ratio) = ttfb(endpoint, uri).await?;
    rows.extend(rollover(endpoint, uri).await?);
    let claim = format!("resume_ttfb_ratio = {ratio:.2}, at most {TTFB_RATIO}");
    Ok(Findings { rows, checks: vec![Check::of(claim, "", ratio <= TTFB_RATIO)] })
}

/// Reads one epoch, so that the node holds every segment.
pub async fn read_once(endpoint: &str, uri: &str) -> anyhow::Result<()> {
    let mut loader = Loader::start(&open(endpoint, uri).await?, settings())?;
    while loader.next().await?.is_some() {}
    Ok(())
}

/// Time to the first batch from the start and from 90 % of an epoch, interleaved, and their ratio.
async fn ttfb(endpoint: &str, uri: &str) -> anyhow::Result<(Vec<Row>, f64)> {
    let dataset = open(endpoint, uri).await?;
    let settings = settings();
    let key = PlanKey {
        manifest: dataset.manifest.digest(),
        seed: settings.seed,
        epoch: 0,
        shuffle: settings.shuffle,
    };
    let at = |share: f64| LoaderState {
        key,
        samples_done: (dataset.manifest.rows() as f64 * share) as u64 / settings.global_batch
            * settings.global_batch,
        tokens_done: None,
    };
    let (mut start, mut late) = (Vec::new(), Vec::new());
    // Two more than are kept: the first two warm the connection's and the allocator's habits.
    for round in 0..23 {
        for (state, times) in [(at(0.0), &mut start), (at(0.9), &mut late)] {
            let begin = Instant::now();
            let resumed = LoaderSettings { resume: Some(state), ..settings.clone() };
            let mut loader = Loader::start(&dataset, resumed)?;
            anyhow::ensure!(matches!(loader.next().await?, Some(Event::Batch(_))), "no batch after a resume");
            if round >= 2 {
                times.push(begin.elapsed().as_secs_f64() * 1e3);
            }
        }
    }
    let (start, late) = (Row::of("ttfb_ms_at_0", "ms", &start), Row::of("ttfb_ms_at_90", "ms", &late));
    let value = late.value / start.value;
    let ratio = Row { n: late.n, ..Row::of("resume_ttfb_ratio", "ratio", &[value]) };
    Ok((vec![start, late, ratio], value))
}

/// The wait for the first batch of an epoch after the last of the one before, with a consumer that takes 1 ms
/// for a step; and the same for all other batches.
async fn rollover(endpoint: &str, uri: &str) -> anyhow::Result<Vec<Row>> {
    let dataset = open(endpoint, uri).await?;
    let mut loader = Loader::start(&dataset, LoaderSettings { epochs: Some(8), ..settings() })?;
    let (mut first, mut other, mut fresh) = (Vec::new(), Vec::new(), false);
    loop {
        let begin = Instant::now();
        match loader.next().await? {
            Some(Event::Batch(batch)) => {
                let waited = begin.elapsed().as_secs_f64() * 1e3;
                match (batch.epoch, std::mem::take(&mut fresh)) {
                    (0, _) => {}
                    (_, true) => first.push(waited),
                    (_, false) => other.push(waited),
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Some(Event::EpochEnd(_)) => fresh = true,
            None => break,
        }
    }
    Ok(vec![Row::of("rollover_wait_ms", "ms", &first), Row::of("step_wait_ms", "ms", &other)])
}
