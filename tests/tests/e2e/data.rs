//! What `forebay cat`, a stock Flight client and the loader yield equals what pyarrow reads, value by value:
//! through the cache, cold, warm and after a restart, and without it.

use std::path::PathBuf;

use arrow::array::{AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{Int64Type, SchemaRef};
use arrow_ipc::writer::StreamWriter;
use forebay_client::loader::{Ending, Event, Layout, Loader, LoaderSettings, Shuffle};
use forebay_client::{Access, Batch, Dataset, DatasetSpec};
use forebay_dataset::SourceSettings;
use forebay_proto::Result;
use forebay_proto::plan::{Order, Sample};
use forebay_tests::harness::mnist;
use forebay_tests::harness::process::{Server, ServerOptions};
use forebay_tests::harness::s3::{REGION, S3Server};

use crate::commands::{cached, counter, direct, rows};
use crate::fixtures::{self, Comparison};

#[test]
fn rows_equal_pyarrows_cold_warm_and_after_a_restart() {
    let s3 = S3Server::start();
    let mut datasets: Vec<(PathBuf, String)> =
        fixtures::upload_good(&s3).into_iter().map(|(name, uri)| (fixtures::folder(&name), uri)).collect();
    mnist::upload(&s3).expect("read MNIST");
    datasets.push((mnist::folder().join("train"), s3.uri("mnist/train/")));
    let folder = tempfile::tempdir().expect("make a folder");
    let start = || ServerOptions::for_s3(&s3).folder(folder.path()).start();

    let server = start();
    let cold: Vec<Vec<u8>> = datasets.iter().map(|(_, uri)| rows(&server, uri)).collect();
    assert!(counter(&server, "s3_requests") > 0 && counter(&server, "disk_bytes_written") > 0);
    server.stop();
    let mut comparison = Comparison::new();
    for ((folder, _), cold) in datasets.iter().zip(&cold) {
        comparison.add(folder.clone(), cold);
    }
    comparison.check(&[]);

    let server = start();
    for when in ["after a restart", "warm"] {
        for ((_, uri), cold) in datasets.iter().zip(&cold) {
            assert!(rows(&server, uri) == *cold, "{uri} differs {when}");
        }
    }
    for none in ["s3_requests", "s3_bytes", "parquet_bytes_decoded", "misses", "corrupt_segments"] {
        assert_eq!(counter(&server, none), 0, "{none} after a restart");
    }
    server.stop();
}

#[test]
fn rows_read_without_a_cache_equal_pyarrows() {
    let s3 = S3Server::start();
    let mut comparison = Comparison::new();
    for (name, uri) in fixtures::upload_good(&s3) {
        let read = direct(&s3, &["cat", &uri, "--format", "arrow"]).end().expect_success();
        comparison.add(fixtures::folder(&name), &read);
    }
    comparison.check(&[]);
}

#[test]
fn a_stock_flight_client_reads_whole_datasets() {
    let s3 = S3Server::start();
    let server = ServerOptions::for_s3(&s3).start();
    let folder = tempfile::tempdir().expect("make a folder");
    let datasets = fixtures::upload_good(&s3);
    let stream = |number: usize| folder.path().join(number.to_string());
    let mut read = fixtures::script("flight_read.py").arg(server.endpoint.replace("http://", "grpc://"));
    for (number, (_, uri)) in datasets.iter().enumerate() {
        read = read.arg(uri).arg(stream(number));
    }
    read.end().expect_success();
    let mut comparison = Comparison::new();
    for (number, (name, _)) in datasets.iter().enumerate() {
        comparison.add(fixtures::folder(name), &std::fs::read(stream(number)).expect("a stream"));
    }
    comparison.check(&[]);
    server.stop();
}

#[test]
fn columns_and_limits_choose_what_pyarrow_would() {
    let s3 = S3Server::start();
    let server = ServerOptions::for_s3(&s3).start();
    // The cache gets the columns in turns, and each turn adds to what it holds of the others.
    for (name, options) in [
        ("good/many-files", &["--columns", "score"][..]),
        ("good/many-files", &["--columns", "tags,id"]),
        ("good/many-files", &["--columns", "text,id", "--limit", "401"]),
        ("good/many-files", &["--limit", "0"]),
        ("good/many-files", &["--limit", "5000"]),
        ("good/wide", &["--columns", "c299,c000", "--limit", "5"]),
    ] {
        let uri = fixtures::upload(&s3, name);
        let line = [&["cat", &uri, "--format", "arrow"], options].concat();
        let mut comparison = Comparison::new();
        comparison.add(fixtures::folder(name), &cached(&server, &line).end().expect_success());
        comparison.check(options);
    }
    server.stop();
}

#[test]
fn small_segments_hold_the_same_values() {
    let s3 = S3Server::start();
    let server = ServerOptions::for_s3(&s3).start();
    let mut comparison = Comparison::new();
    for name in ["good/row-group-7", "good/many-files", "good/nested", "good/fixed-lists", "good/strings"] {
        let uri = fixtures::upload(&s3, name);
        let line = ["cat", &uri, "--format", "arrow", "--segment-bytes", "20000"];
        comparison.add(fixtures::folder(name), &cached(&server, &line).end().expect_success());
    }
    comparison.check(&[]);
    server.stop();
}

#[test]
fn one_object_of_many_can_be_read_as_lines() {
    let s3 = S3Server::start();
    let server = ServerOptions::for_s3(&s3).start();
    let object = format!("{}/part-00003.parquet", fixtures::upload(&s3, "good/many-files"));
    let lines = cached(&server, &["cat", &object, "--columns", "id_required", "--limit", "2"]).end();
    let lines = String::from_utf8(lines.expect_success()).expect("text");
    assert_eq!(lines, "{\"id_required\":131}\n{\"id_required\":132}\n");
    server.stop();
}

#[test]
fn the_loader_without_shuffling_gives_the_files_row_by_row() {
    let stage = Stage::start();
    let settings = LoaderSettings {
        shuffle: Shuffle::None,
        ending: Ending::Exact,
        layout: Layout::Position,
        global_batch: 97,
        ..Default::default()
    };
    let mut comparison = Comparison::new();
    for (name, uri) in fixtures::upload_good(&stage.s3) {
        let (dataset, cached) = stage.rows(&stage.cache(), &uri, None, &settings);
        // By values: bits behind the last row are whatever the message had there.
        assert!(cached == stage.rows(&stage.store(), &uri, None, &settings).1, "{name} differs directly");
        comparison.add(fixtures::folder(&name), &ipc(&dataset.projected_schema, &cached));
    }
    comparison.check(&[]);
    stage.server.stop();
}

#[test]
fn the_loader_with_shuffling_gives_every_row_once() {
    let stage = Stage::start();
    // Segments of a few row groups, so that windows mix them, and a last step that is padded.
    let settings = LoaderSettings {
        seed: 7,
        shuffle: Shuffle::Window(2),
        ending: Ending::Pad,
        global_batch: 66,
        world: 3,
        ..Default::default()
    };
    let mut comparison = Comparison::new();
    for (name, uri) in fixtures::upload_good(&stage.s3) {
        let (dataset, batches) = stage.rows(&stage.cache(), &uri, Some(30_000), &settings);
        comparison.add(fixtures::folder(&name), &ipc(&dataset.projected_schema, &batches));
    }
    comparison.check(&["--any-order"]);
    stage.server.stop();
}

#[test]
fn each_position_holds_the_sample_that_the_plan_says() {
    let stage = Stage::start();
    let uri = fixtures::upload(&stage.s3, "good/row-group-7");
    for (access, shuffle) in [
        (stage.cache(), Shuffle::Window(3)),
        (stage.cache(), Shuffle::Full),
        (stage.store(), Shuffle::Window(3)),
    ] {
        let settings = LoaderSettings {
            seed: 11,
            shuffle,
            ending: Ending::Exact,
            layout: Layout::Position,
            global_batch: 64,
            ..Default::default()
        };
        let (dataset, batches) = stage.rows(&access, &uri, Some(8_000), &settings);
        let manifest = &dataset.manifest;
        assert!(manifest.segments().len() > 5, "{} segments", manifest.segments().len());
        let row = |s: Sample| manifest.segments()[s.segment as usize].first_row + u64::from(s.row);
        let order = Order::new(manifest, 11, 0, shuffle);
        let planned: Vec<i64> =
            (0..order.len()).filter_map(|at| order.at(at)).map(|s| row(s) as i64).collect();
        let ids = batches.iter().flat_map(|batch| {
            let column = batch.column_by_name("id_required").expect("the column that numbers the rows");
            column.as_primitive::<Int64Type>().values().to_vec()
        });
        assert_eq!(ids.collect::<Vec<i64>>(), planned, "{shuffle}");
        assert!(!planned.is_sorted(), "they are shuffled");
    }
    stage.server.stop();
}

/// An object store, a cache node before it, and a runtime for loaders.
struct Stage {
    s3: S3Server,
    server: Server,
    runtime: tokio::runtime::Runtime,
}

impl Stage {
    fn start() -> Self {
        let s3 = S3Server::start();
        let server = ServerOptions::for_s3(&s3).start();
        Self { s3, server, runtime: tokio::runtime::Runtime::new().expect("start a runtime") }
    }

    fn cache(&self) -> Access {
        Access::endpoint(&self.server.endpoint).expect("an endpoint")
    }

    fn store(&self) -> Access {
        let settings = SourceSettings {
            s3_endpoint: Some(self.s3.endpoint.clone()),
            s3_region: Some(REGION.to_owned()),
            s3_access_key_id: Some(self.s3.access_key.clone()),
            s3_secret_access_key: Some(self.s3.secret_key.clone()),
            ..Default::default()
        };
        Access::direct(settings).expect("settings")
    }

    /// One epoch as every rank takes it, rank by rank, without padding.
    fn read(
        &self,
        access: &Access,
        uri: &str,
        segment_bytes: Option<u64>,
        settings: &LoaderSettings,
    ) -> Result<(Dataset, Vec<RecordBatch>)> {
        self.runtime.block_on(async {
            let spec = DatasetSpec { uri: uri.to_owned(), segment_bytes, ..Default::default() };
            let dataset = Dataset::open(access, &spec).await?;
            let mut batches = Vec::new();
            // An epoch of nothing is an error, for it would never end.
            let ranks = if dataset.manifest.rows() == 0 { 0 } else { settings.world };
            for rank in 0..ranks {
                let settings = LoaderSettings { rank, epochs: Some(1), ..settings.clone() };
                let mut loader = Loader::start(&dataset, settings)?;
                while let Some(event) = loader.next().await? {
                    if let Event::Batch(batch) = event {
                        batches.push(unpadded(&batch));
                    }
                }
            }
            Ok((dataset, batches))
        })
    }

    /// The same, which must succeed.
    fn rows(
        &self,
        access: &Access,
        uri: &str,
        segment_bytes: Option<u64>,
        settings: &LoaderSettings,
    ) -> (Dataset, Vec<RecordBatch>) {
        self.read(access, uri, segment_bytes, settings).unwrap_or_else(|e| panic!("{uri}: {e}"))
    }
}

fn unpadded(batch: &Batch) -> RecordBatch {
    let left = match &batch.mask {
        Some(mask) => filter_record_batch(&batch.columns, &BooleanArray::from(mask.clone())).expect("filter"),
        None => batch.columns.clone(),
    };
    assert_eq!(left.num_rows(), batch.real_rows);
    left
}

fn ipc(schema: &SchemaRef, batches: &[RecordBatch]) -> Vec<u8> {
    let mut writer = StreamWriter::try_new(Vec::new(), schema).expect("begin a stream");
    for batch in batches {
        writer.write(batch).expect("write a batch");
    }
    writer.into_inner().expect("end the stream")
}
