//! The training jobs that must not notice.

use crate::harness::reader::Job;
use forebay_client::LoaderSettings;
use forebay_client::loader::Shuffle;
use std::time::Duration;

/// Two ranks at a steady pace without end. Little is read ahead, so that a fault shows.
pub fn steady() -> Job {
    job(5, 2, Duration::from_millis(8), 2 << 20, None)
}

/// As little read ahead as the loader permits: the next batch, 64 KiB on the way on each stream, and the rest
/// of the stream's last message, which has 1.5 MiB. The pace is fast, so that this lasts for 0.1 s.
pub fn bare() -> Job {
    let mut job = job(5, 2, Duration::from_millis(1), 0, None);
    job.settings.window_bytes = 64 << 10;
    job
}

/// As fast as it can, with much read ahead.
pub fn greedy(seed: u64, world: u32, epochs: Option<u64>) -> Job {
    job(seed, world, Duration::ZERO, 32 << 20, epochs)
}

fn job(seed: u64, world: u32, step: Duration, prefetch_bytes: u64, epochs: Option<u64>) -> Job {
    let settings = LoaderSettings {
        seed,
        shuffle: Shuffle::Window(8),
        global_batch: 240,
        epochs,
        prefetch_bytes,
        // All nodes are on this host. Through their Unix sockets batches would pass by every cut network.
        same_host: false,
        ..Default::default()
    };
    Job { columns: None, world, step, settings }
}
