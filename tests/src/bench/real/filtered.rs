//! The bytes that a filter of 1 % reads of a table that is clustered by its column.

use super::files::parquet;
use crate::harness::answers::EpochsReport;
use crate::harness::check::Findings;
use crate::harness::process::{Run, ServerOptions};
use crate::harness::s3::S3Server;
use anyhow::Context;
use arrow::array::{ArrayRef, Float64Array, Int64Array};
use std::sync::Arc;

/// The share of the table's bytes that it may read.
pub const SHARE: f64 = 0.05;

const ROWS: f64 = 2_000_000.0;
const OBJECTS: i64 = 4;
const GROUPS: usize = 100;

pub fn run(scale: f64) -> anyhow::Result<Findings> {
    let s3 = S3Server::start();
    let rows = (ROWS * scale) as i64 / OBJECTS;
    let mut stored = 0;
    for object in 0..OBJECTS {
        let keys = object * rows..(object + 1) * rows;
        let key: ArrayRef = Arc::new(Int64Array::from_iter_values(keys.clone()));
        let mut columns = vec![("key".to_owned(), key)];
        for c in 0..8 {
            let values = keys.clone().map(|key| ((key * 7919 + c) % 100_003) as f64 / 3.0);
            columns.push((format!("x{c}"), Arc::new(Float64Array::from_iter_values(values))));
        }
        let bytes = parquet(columns, (rows as usize).div_ceil(GROUPS))?;
        stored += bytes.len() as u64;
        s3.put(&format!("clustered/{object}.parquet"), bytes);
    }
    let node = ServerOptions::for_s3(&s3).try_start()?;
    let all = rows * OBJECTS;
    // Somewhere in the middle, across no object's end.
    let (from, wanted) = (all / 3, all / 100);
    let filter = format!("key >= {from} and key < {}", from + wanted);
    s3.take_log();
    let uri = s3.uri("clustered");
    let run = Run::find("forebay")?.args(["epoch", &uri, "--where", &filter, "--endpoint", &node.endpoint]);
    let report: EpochsReport = run.json()?;
    let epoch = report.epochs.into_iter().next().context("forebay epoch read no epoch")?;
    anyhow::ensure!(epoch.samples == wanted as u64, "{} rows passed, not {wanted}", epoch.samples);
    let read: u64 = s3.take_log().iter().filter(|seen| seen.is_object_get()).map(|seen| seen.bytes).sum();
    let share = read as f64 / stored as f64;
    let mut found = Findings::default();
    found.value("real_filter_bytes", "share of the table's bytes", share);
    let text = format!("a filter of 1 % reads {share:.4} of a clustered table, at most {SHARE} wanted");
    if scale < 1.0 {
        found.leave_out(text)
    } else {
        found.check(share <= SHARE, text)
    }
    node.try_stop()?;
    Ok(found)
}
