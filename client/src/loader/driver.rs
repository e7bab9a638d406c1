//! Keeps the workers of one epoch after the other going.

use super::run_plan::RunPlan;
use super::worker::{ReadContext, StreamWorker};
use forebay_proto::{Error, Result};
use futures::FutureExt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::task::JoinSet;

/// Runs the driver. Should it panic, the reader gets an error: it would wait for ever.
pub(super) async fn watched(context: Arc<ReadContext>, driver: impl Future<Output = ()>) {
    if AssertUnwindSafe(driver).catch_unwind().await.is_err() {
        context.buffer.fail(Error::corrupt("the loader panicked: its message is above"));
    }
}

/// Reads all epochs of a run.
pub(super) async fn run(context: Arc<ReadContext>, plan: RunPlan) {
    if let Some(cluster) = &context.cluster {
        cluster.ready().await;
    }
    let (mut epoch, mut seq) = (plan.first.0, 0);
    while plan.end.is_none_or(|end| epoch < end) {
        if let Err(e) = one_epoch(&context, &plan, epoch, seq).await {
            context.buffer.fail(e);
            return;
        }
        seq += plan.steps_of(&context.dataset, epoch);
        epoch += 1;
    }
}

/// Reads one epoch; its steps are numbered from `seq`.
async fn one_epoch(context: &Arc<ReadContext>, plan: &RunPlan, epoch: u64, seq: u64) -> Result<()> {
    let epoch = match plan.settings.pack {
        // It looks at each row of the dataset.
        Some(_) => {
            let (plan, dataset) = (plan.clone(), context.dataset.clone());
            let cut = tokio::task::spawn_blocking(move || plan.epoch(&dataset, epoch, seq)).await;
            Arc::new(cut.map_err(|e| Error::corrupt(format!("packing failed: {e}")))??)
        }
        None => Arc::new(plan.epoch(&context.dataset, epoch, seq)?),
    };
    let mut running = JoinSet::new();
    let mut next = StreamWorker::all(context, &epoch).await?;
    loop {
        for worker in next {
            running.spawn(worker.run());
        }
        epoch.workers.store(running.len(), Relaxed);
        next = match running.join_next().await {
            Some(ended) => ended.map_err(|e| Error::corrupt(format!("reading a stream failed: {e}")))??,
            None => break,
        };
    }
    // Each worker checks that it brought all it owed; if together they did not, waiting would be without end.
    match context.buffer.is_complete() {
        true => Ok(()),
        false => {
            Err(Error::corrupt(format!("epoch {}: all streams ended but a batch lacks rows", epoch.number())))
        }
    }
}
