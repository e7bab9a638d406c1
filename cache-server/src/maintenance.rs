//! Work on the side: asks the object store at start whether it will answer, tries cache directories that were
//! set aside, and reads segment files through (the scrub) at a modest rate.

pub(crate) mod stall_probe;
pub(crate) mod store_check;

use crate::auth::authority::Authority;
use crate::disk::DiskCache;
use crate::runtime::{blocking, give_up_disk_work};
use forebay_proto::{Error, Kind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// How often directories that were set aside are looked at; how often each is tried is the disk cache's
/// business.
const HEAL_EVERY: Duration = Duration::from_secs(1);

/// How often directories are looked at that may hang.
const HANGS_LOOK_EVERY: Duration = Duration::from_millis(100);

/// Pause after each round of the scrub.
const SCRUB_PAUSE: Duration = Duration::from_secs(1);

/// How late the scrub may notice in a pause that the node stops.
const STOP_LOOK_EVERY: Duration = Duration::from_millis(50);

/// Keeps the disk cache in order until `stop` is called, and what it holds of principals within their limits.
/// `scrub_mb_per_s` = 0: nothing is scrubbed.
pub async fn run(
    disk: Arc<DiskCache>,
    authority: Arc<Authority>,
    scrub_mb_per_s: f64,
    stop: CancellationToken,
) {
    if scrub_mb_per_s > 0.0 {
        tokio::spawn(scrub(disk.clone(), scrub_mb_per_s * 1e6, stop.clone()));
    }
    let mut generation = 0;
    while timeout(HEAL_EVERY, stop.cancelled()).await.is_err() {
        let now = authority.generation();
        // The policy at start counts since the disk cache was opened.
        if now != generation {
            let (disk, limits) = (disk.clone(), authority.cache_limits());
            match blocking(move || disk.set_prefix_limits(limits)).await {
                Ok(()) => generation = now,
                // Where a disk hung they are for the next look.
                Err(e) if e.kind == Kind::Retry => {}
                Err(e) => return gave_up(&e, "the limits of prefixes are no longer followed"),
            }
        }
        let disk = disk.clone();
        match blocking(move || drop(disk.try_again(Instant::now()))).await {
            Err(e) if e.kind != Kind::Retry => {
                return gave_up(&e, "cache directories are no longer tried again");
            }
            _ => {}
        }
    }
}

/// Looks for directories that hang, on a thread that waits for none, as long as the disk cache lives.
pub fn watch(disk: &Arc<DiskCache>) {
    let disk = Arc::downgrade(disk);
    let look = move || {
        while let Some(disk) = disk.upgrade() {
            if disk.set_hung_aside(Instant::now()) > 0 {
                give_up_disk_work();
            }
            drop(disk);
            std::thread::sleep(HANGS_LOOK_EVERY);
        }
    };
    if let Err(e) = std::thread::Builder::new().name("forebay-hangs".to_owned()).spawn(look) {
        tracing::error!(error = %e, "nobody will notice a disk that hangs");
    }
}

/// Says why work that should last as long as the node has ended, unless the node ends too.
fn gave_up(e: &Error, what: &str) {
    if e.kind != Kind::Closed {
        tracing::error!(error = %e, "{what}");
    }
}

async fn scrub(disk: Arc<DiskCache>, bytes_per_s: f64, stop: CancellationToken) {
    while timeout(SCRUB_PAUSE, stop.cancelled()).await.is_err() {
        // A round whose disk hangs is given up, and must not go on beside the next one.
        let round = stop.child_token();
        let _ends = round.clone().drop_guard();
        let (disk, mut begun) = (disk.clone(), Instant::now());
        let pause = move |read| {
            let due = Duration::from_secs_f64(read as f64 / bytes_per_s);
            let goes_on = sleep_unless(&round, due.saturating_sub(begun.elapsed()));
            begun = Instant::now();
            goes_on
        };
        match blocking(move || disk.scrub(pause)).await {
            Err(e) if e.kind != Kind::Retry => return gave_up(&e, "segment files are no longer scrubbed"),
            _ => {}
        }
    }
}

/// Sleeps on a thread that may block. Returns false if `stop` was called. It needs no timer of the runtime,
/// which may end before this thread does.
fn sleep_unless(stop: &CancellationToken, time: Duration) -> bool {
    let until = Instant::now() + time;
    while !stop.is_cancelled() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(STOP_LOOK_EVERY));
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scrub_pauses_without_a_runtime_and_ends_when_told() {
        // The runtime of a node that stops ends before its threads do: a timer of it panicked here.
        let stop = CancellationToken::new();
        let begun = Instant::now();
        assert!(sleep_unless(&stop, Duration::from_millis(70)));
        assert!(begun.elapsed() >= Duration::from_millis(70));
        let told = stop.clone();
        let sleeper = std::thread::spawn(move || sleep_unless(&told, Duration::from_secs(3600)));
        stop.cancel();
        assert!(!sleeper.join().unwrap());
        assert!(!sleep_unless(&stop, Duration::ZERO));
    }
}
