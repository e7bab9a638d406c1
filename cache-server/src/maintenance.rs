//! Work on a timer: tries cache directories that were set aside, and reads segment files through (the scrub)
//! at a modest rate.

pub(crate) mod stall_probe;

use crate::disk::DiskCache;
use crate::runtime::blocking;
use forebay_proto::{Error, Kind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// How often directories that were set aside are looked at; how often each is tried is the disk cache's
/// business.
const HEAL_EVERY: Duration = Duration::from_secs(1);

/// Pause after each round of the scrub.
const SCRUB_PAUSE: Duration = Duration::from_secs(1);

/// Keeps the disk cache in order until `stop` is called. `scrub_mb_per_s` = 0: nothing is scrubbed.
pub async fn run(disk: Arc<DiskCache>, scrub_mb_per_s: f64, stop: CancellationToken) {
    let work = async {
        match scrub_mb_per_s > 0.0 {
            true => drop(tokio::join!(heal(disk.clone()), scrub(disk.clone(), scrub_mb_per_s * 1e6))),
            false => heal(disk.clone()).await,
        }
    };
    tokio::select! {
        () = work => {}
        () = stop.cancelled() => {}
    }
}

async fn heal(disk: Arc<DiskCache>) {
    loop {
        tokio::time::sleep(HEAL_EVERY).await;
        let disk = disk.clone();
        if let Err(e) = blocking(move || disk.heal(Instant::now())).await {
            return gave_up(&e, "cache directories are no longer tried again");
        }
    }
}

/// Says why work that should last as long as the node has ended, unless the node ends too.
fn gave_up(e: &Error, what: &str) {
    if e.kind != Kind::Closed {
        tracing::error!(error = %e, "{what}");
    }
}

async fn scrub(disk: Arc<DiskCache>, bytes_per_s: f64) {
    let mut scrub = disk.scrub();
    loop {
        let begun = Instant::now();
        let step = blocking(move || {
            let read = scrub.step();
            (scrub, read)
        });
        let read;
        (scrub, read) = match step.await {
            Ok(done) => done,
            Err(e) => return gave_up(&e, "segment files are no longer scrubbed"),
        };
        let pause = match read {
            0 => SCRUB_PAUSE,
            read => Duration::from_secs_f64(read as f64 / bytes_per_s).saturating_sub(begun.elapsed()),
        };
        tokio::time::sleep(pause).await;
    }
}
