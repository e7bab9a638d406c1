//! The cost of a window, against a warm node.

use super::dataset::open;
use super::resume::{read_once, settings};
use crate::harness::check::Findings;
use crate::harness::report::Row;
use forebay_client::loader::Shuffle;
use forebay_client::{Loader, LoaderSettings};
use std::time::Instant;

/// Segments of the dataset that is larger than each of the windows.
pub const SEGMENTS: u64 = 256;

/// Measures it with MNIST (`rows_per_s_W`), which is smaller than the larger windows, and with a table of 256
/// segments (`rows_per_s_256_W`). It has no target.
pub async fn run(endpoint: &str, mnist: &str, table: &str) -> anyhow::Result<Findings> {
    read_once(endpoint, table).await?;
    let mut found = Findings::default();
    for (name, uri) in [("", mnist), ("256_", table)] {
        found.rows.extend(throughput(endpoint, uri, name).await?);
    }
    Ok(found)
}

/// Warm rows per second by window, interleaved.
async fn throughput(endpoint: &str, uri: &str, name: &str) -> anyhow::Result<Vec<Row>> {
    let dataset = open(endpoint, uri).await?;
    let shuffles = [
        ("w1", Shuffle::Window(1)),
        ("w4", Shuffle::Window(4)),
        ("w16", Shuffle::Window(16)),
        ("w64", Shuffle::Window(64)),
        ("full", Shuffle::Full),
    ];
    let mut speeds = vec![Vec::new(); shuffles.len()];
    for _ in 0..5 {
        for (speed, (_, shuffle)) in speeds.iter_mut().zip(shuffles) {
            let begin = Instant::now();
            let mut loader = Loader::start(&dataset, LoaderSettings { shuffle, ..settings() })?;
            while loader.next().await?.is_some() {}
            speed.push(dataset.manifest.rows() as f64 / begin.elapsed().as_secs_f64());
        }
    }
    let row = |((window, _), speed): ((&str, Shuffle), &Vec<f64>)| {
        Row::of(format!("rows_per_s_{name}{window}"), "rows/s", speed)
    };
    Ok(shuffles.into_iter().zip(&speeds).map(row).collect())
}
