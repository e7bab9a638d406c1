//! Warm epochs of a table that got a column half-way, beside the same values in one schema.

use super::files::parquet;
use crate::harness::answers::EpochsReport;
use crate::harness::check::Findings;
use crate::harness::process::{Run, Server, ServerOptions};
use crate::harness::report::Row;
use crate::harness::s3::S3Server;
use anyhow::Context;
use arrow::array::{ArrayRef, Float32Array, Int64Array};
use std::sync::Arc;
use std::time::Duration;

/// Rows a second beside those of one schema.
pub const RATIO: f64 = 0.98;

const ROWS: f64 = 6_000_000.0;
const OBJECTS: i64 = 12;

pub fn run(rounds: u32, scale: f64) -> anyhow::Result<Findings> {
    let s3 = S3Server::start();
    let rows = (ROWS * scale) as i64 / OBJECTS;
    for (name, grows) in [("grown", true), ("uniform", false)] {
        for object in 0..OBJECTS {
            let bytes = object_of(object, rows, grows)?;
            s3.put(&format!("{name}/{object:02}.parquet"), bytes);
        }
    }
    let node = ServerOptions::for_s3(&s3).try_start()?;
    let epoch = |name: &str| epoch(&s3, &node, name);
    epoch("grown")?;
    epoch("uniform")?;
    let (mut grown, mut uniform) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        // The order turns, so that neither is always first.
        let (first, second) = if round % 2 == 0 { ("grown", "uniform") } else { ("uniform", "grown") };
        let (a, b) = (epoch(first)?, epoch(second)?);
        let (of_grown, of_uniform) = if round % 2 == 0 { (a, b) } else { (b, a) };
        grown.push(of_grown);
        uniform.push(of_uniform);
    }
    let ratios: Vec<f64> = grown.iter().zip(&uniform).map(|(grown, uniform)| grown / uniform).collect();
    let ratio = Row::of("real_growth_ratio", "of rows/s in one schema", &ratios);
    let of_uniform = Row::of("real_uniform_rows_per_s", "rows/s", &uniform);
    let of_grown = Row::of("real_growth_rows_per_s", "rows/s", &grown);
    let mut found = Findings::default();
    let text =
        format!("warm epochs of a table with growth: {:.3} of one schema's, {RATIO} wanted", ratio.value);
    if scale < 1.0 {
        found.leave_out(text)
    } else {
        found.check(ratio.value >= RATIO, text)
    }
    let against = of_grown.against("the same values in one schema", of_uniform.value);
    found.rows.extend([against, of_uniform, ratio]);
    node.try_stop()?;
    Ok(found)
}

/// The last column is null in the first half of the objects; one that grows has it not at all there.
fn object_of(object: i64, rows: i64, grows: bool) -> anyhow::Result<Vec<u8>> {
    let ids = object * rows..(object + 1) * rows;
    let id: ArrayRef = Arc::new(Int64Array::from_iter_values(ids.clone()));
    let mut columns = vec![("id".to_owned(), id)];
    for c in 0..8 {
        let values = ids.clone().map(|id| ((id * 31 + c) % 1009) as f32);
        columns.push((format!("x{c}"), Arc::new(Float32Array::from_iter_values(values))));
    }
    let is_late = object >= OBJECTS / 2;
    if is_late || !grows {
        let values = ids.map(|id| is_late.then_some(id as f32));
        columns.push(("late".to_owned(), Arc::new(values.collect::<Float32Array>())));
    }
    parquet(columns, 100_000)
}

/// Rows a second of an epoch, the second of a process.
fn epoch(s3: &S3Server, node: &Server, name: &str) -> anyhow::Result<f64> {
    let uri = s3.uri(name);
    let run = Run::find("forebay")?.args(["epoch", &uri, "--endpoint", &node.endpoint]);
    let run = run.args(["--batch", "1024", "--epochs", "2"]).limit(Duration::from_secs(300));
    let report: EpochsReport = run.json()?;
    let last = report.epochs.into_iter().last().context("forebay epoch read no epoch")?;
    anyhow::ensure!(last.s3_requests == 0, "a warm epoch sent {} requests to S3", last.s3_requests);
    Ok(last.samples_per_s)
}
