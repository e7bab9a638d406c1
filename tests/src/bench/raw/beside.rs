//! A training job, alone and beside an S3 client that reads more than the cache holds: its hits and its
//! speed.

use super::load::get_once;
use super::scale::{RawScale, judge};
use super::stage::RawStage;
use crate::harness::check::Findings;
use crate::harness::differential::bytes_of;
use crate::harness::reader::{Job, read};
use crate::harness::report::Row;
use crate::harness::s3_client::S3Ask;
use crate::harness::table::{MIB_ROWS, Table};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What the client reads.
pub const MB_PER_S: f64 = 20.0;

const OBJECT_BYTES: usize = 16 << 20;

/// Runs it.
pub fn run(scale: &RawScale) -> anyhow::Result<Findings> {
    let table_bytes = scale.segments << 20;
    // The job's guaranteed share, three quarters, holds its data with some room.
    let cache = table_bytes * 3 / 2 + (64 << 20);
    let stage = RawStage::start(|options| options.args(["--cache-bytes", &cache.to_string()]))?;
    let table = Table::upload(&stage.s3, "beside", scale.segments, MIB_ROWS)?;
    let objects = (2 * cache as usize).div_ceil(OBJECT_BYTES);
    (0..objects).for_each(|n| stage.s3.put(&format!("raw/{n}"), bytes_of(n as u64, OBJECT_BYTES)));
    // The first fills the cache.
    epoch(&stage, &table)?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..scale.rounds {
        alone.push(epoch(&stage, &table)?);
        beside.push(with_client(&stage, objects, || epoch(&stage, &table))?);
    }
    let of =
        |all: &[EpochFigures], figure: fn(&EpochFigures) -> f64| all.iter().map(figure).collect::<Vec<_>>();
    let mut found = Findings::default();
    let lost: Vec<f64> = alone.iter().zip(&beside).map(|(a, b)| a.hit_ratio - b.hit_ratio).collect();
    let speed: Vec<f64> = alone.iter().zip(&beside).map(|(a, b)| b.rows_per_s / a.rows_per_s).collect();
    found.rows.push(Row::of("raw_alone_rows_per_s", "rows/s", &of(&alone, |e| e.rows_per_s)));
    found.rows.push(Row::of("raw_alone_hit_ratio", "ratio", &of(&alone, |e| e.hit_ratio)));
    judge(&mut found, Row::of("raw_beside_hits_lost", "ratio", &lost), None, Some(0.01));
    judge(&mut found, Row::of("raw_beside_rows_ratio", "ratio", &speed), Some(0.9), None);
    Ok(found)
}

struct EpochFigures {
    rows_per_s: f64,
    hit_ratio: f64,
}

/// An epoch of a job, and how much of its data came from the cache.
fn epoch(stage: &RawStage, table: &Table) -> anyhow::Result<EpochFigures> {
    stage.s3.take_log();
    let start = Instant::now();
    let job = Job::new(1, 1);
    let epoch = stage.runtime.block_on(read(&stage.node.endpoint, table, &job))?;
    let wrong = epoch.wrong_values;
    let seconds = start.elapsed().as_secs_f64();
    anyhow::ensure!(wrong == 0, "{wrong} wrong values");
    let fetched = table.data_bytes(&stage.s3.log()) as f64 / table.projected_bytes() as f64;
    Ok(EpochFigures { rows_per_s: epoch.rows as f64 / seconds, hit_ratio: 1.0 - fetched })
}

/// Runs something while a client reads objects, one after the other.
fn with_client<T>(
    stage: &RawStage,
    objects: usize,
    run: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let (client, has_ended) = (stage.client()?, AtomicBool::new(false));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| -> anyhow::Result<()> {
            for n in (0..objects).cycle() {
                let start = Instant::now();
                let ask = client.sign(&S3Ask::new("GET", format!("/{}/raw/{n}", stage.s3.bucket)))?;
                get_once(&client.endpoint, &ask)?;
                let pace = Duration::from_secs_f64(OBJECT_BYTES as f64 / 1e6 / MB_PER_S);
                if has_ended.load(Relaxed) {
                    break;
                }
                std::thread::sleep(pace.saturating_sub(start.elapsed()));
            }
            Ok(())
        });
        let done = run();
        has_ended.store(true, Relaxed);
        reader.join().map_err(|_| anyhow::anyhow!("the client broke off"))??;
        done
    })
}
