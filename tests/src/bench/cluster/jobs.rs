//! The training jobs that must not notice.

use crate::harness::reader::Job;
use forebay_client::LoaderSettings;
use forebay_client::loader::Shuffle;
use std::time::Duration;

/// Two ranks at a steady pace without end. Little is read ahead, so that a fault shows.
pub fn steady() -> Job {
    job(5, 2, Duration::from_millis(8), 2 << 20, None)
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
        ..Default::default()
    };
    Job { columns: None, world, step, settings }
}
