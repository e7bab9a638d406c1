//! Opening a dataset of one schema: beside the program of before schemas could grow, and beside reading the
//! same footers by the parquet crate, which is the floor.

use super::files::parquet;
use crate::bench::stages::runtime;
use crate::harness::check::Findings;
use crate::harness::process::Run;
use crate::harness::report::Row;
use crate::harness::s3::{REGION, S3Server};
use anyhow::Context;
use arrow::array::{ArrayRef, Int64Array};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::file::FOOTER_SIZE;
use parquet::file::metadata::{FooterTail, ParquetMetaDataReader};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The commit that `--before` is built of.
pub const BEFORE: &str = "8f7afaf";

/// The time that opening may take, of before.
pub const RATIO: f64 = 1.1;

const OBJECTS: f64 = 1000.0;
const COLUMNS: usize = 30;
/// Of each object first, as Forebay reads them.
const TAIL_BYTES: u64 = 64 << 10;

pub fn run(before: Option<&Path>, rounds: u32, scale: f64) -> anyhow::Result<Findings> {
    let (s3, runtime) = (S3Server::start(), runtime()?);
    let objects = ((OBJECTS * scale) as usize).max(1);
    for object in 0..objects {
        let column = |c: usize| {
            let values: ArrayRef = Arc::new(Int64Array::from_iter_values((0..40).map(|i| (i * c) as i64)));
            (format!("column_{c}"), values)
        };
        let bytes = parquet((0..COLUMNS).map(column).collect(), 20)?;
        s3.put(&format!("one/{object:05}.parquet"), bytes);
    }
    let program = |path: Option<&Path>| match path {
        Some(path) => Ok(Run::program(path, "forebay of before")),
        None => Run::find("forebay"),
    };
    // The first of each is not measured.
    let (mut now, mut then, mut floor) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=rounds {
        let of_now = inspect(&s3, program(None)?)?;
        let of_then = before.map(|before| inspect(&s3, program(Some(before))?)).transpose()?;
        let of_floor = runtime.block_on(footers(&s3, objects))?;
        if round > 0 {
            now.push(of_now);
            then.extend(of_then);
            floor.push(of_floor);
        }
    }
    let mut found = Findings::default();
    let floor = Row::of("real_footers_s", "s", &floor);
    let against = "reading the footers by the parquet crate, without a process";
    found.rows.push(Row::of("real_freeze_s", "s", &now).against(against, floor.value));
    found.rows.push(floor);
    if then.is_empty() {
        let why = "needs --before PROGRAM, the `forebay` that tests/before.sh builds";
        found.leave_out(format!("opening a dataset of one schema beside commit {BEFORE}: {why}"));
        return Ok(found);
    }
    let ratios: Vec<f64> = now.iter().zip(&then).map(|(now, then)| now / then).collect();
    let ratio = Row::of("real_freeze_ratio", "of before", &ratios);
    let text = format!(
        "opening {objects} objects of one schema takes {:.3} of the time at {BEFORE}, {RATIO} wanted",
        ratio.value
    );
    if scale < 1.0 {
        found.leave_out(text)
    } else {
        found.check(ratio.value <= RATIO, text)
    }
    found.rows.extend([Row::of("real_freeze_before_s", "s", &then), ratio]);
    Ok(found)
}

/// Seconds of `forebay inspect`, which freezes and prints.
fn inspect(s3: &S3Server, run: Run) -> anyhow::Result<f64> {
    let uri = s3.uri("one");
    let run = run.args(["inspect", &uri, "--direct", "--s3-region", REGION]).envs(s3.credentials());
    let run = run.args(["--s3-endpoint", &s3.endpoint]).limit(Duration::from_secs(300));
    let started = Instant::now();
    let printed = String::from_utf8(run.stdout()?)?;
    let seconds = started.elapsed().as_secs_f64();
    anyhow::ensure!(printed.contains("column_1"), "forebay inspect printed no columns: {printed}");
    Ok(seconds)
}

/// Seconds to list the objects, and to read and decode their footers, as many at once as Forebay asks for by
/// default.
async fn footers(s3: &S3Server, objects: usize) -> anyhow::Result<f64> {
    let store = s3.client(&s3.endpoint)?;
    let started = Instant::now();
    let listed: Vec<_> = store.list(Some(&Key::from("one"))).try_collect().await?;
    let store = &store;
    let reads = listed.iter().map(|object| async move {
        let from = object.size.saturating_sub(TAIL_BYTES);
        let tail = store.get_range(&object.location, from..object.size).await?;
        let last = tail.last_chunk::<FOOTER_SIZE>().context("a short object")?;
        let length = FooterTail::try_new(last)?.metadata_length();
        let end = tail.len() - FOOTER_SIZE;
        let start = end.checked_sub(length).context("a long footer")?;
        let metadata = ParquetMetaDataReader::decode_metadata(&tail[start..end])?;
        anyhow::Ok(metadata.file_metadata().num_rows())
    });
    let at_once = forebay_client::SourceSettings::default().s3_max_requests;
    let rows: Vec<i64> = stream::iter(reads).buffer_unordered(at_once).try_collect().await?;
    let seconds = started.elapsed().as_secs_f64();
    anyhow::ensure!(rows.len() == objects && rows.iter().all(|rows| *rows == 40), "footers are missing");
    Ok(seconds)
}
