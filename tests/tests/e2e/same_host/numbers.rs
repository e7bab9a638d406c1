//! Tables of numbers, all of whose columns are packed: of these the node says only in which files rows lie,
//! and the reader finds them by the plan.

use super::{change_files_under_readers, read, start};
use crate::commands::{metric, until};
use arrow::array::{ArrayRef, Float32Array, Int64Array, RecordBatch};
use forebay_client::loader::{Ending, LoaderSettings, Shuffle};
use forebay_tests::harness::process::ServerOptions;
use forebay_tests::harness::s3::S3Server;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use std::sync::Arc;

const OBJECTS: i64 = 4;

/// Rows of an object, and of each of its row groups.
const ROWS: i64 = 48_000;
const GROUP_ROWS: usize = 8_000;

/// Bytes of a segment: those of a row group.
const SEGMENT_BYTES: u64 = 200_000;

/// Numbers that tell their rows, some of them null.
fn numbers(first: i64) -> RecordBatch {
    let ids = || first..first + ROWS;
    let values =
        |of: i64| Float32Array::from_iter(ids().map(move |id| (id % 11 != of).then_some((id * of) as f32)));
    let mut columns: Vec<(String, ArrayRef)> =
        vec![("id".into(), Arc::new(Int64Array::from_iter_values(ids())))];
    columns.extend((1..6).map(|of| (format!("x{of}"), Arc::new(values(of)) as ArrayRef)));
    RecordBatch::try_from_iter(columns).expect("a batch")
}

/// The table in an object store, and its URI.
fn upload() -> (S3Server, String) {
    let s3 = S3Server::start();
    for object in 0..OBJECTS {
        let batch = numbers(object * ROWS);
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(GROUP_ROWS)).build();
        let mut writer =
            ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).expect("a writer");
        writer.write(&batch).expect("write");
        s3.put(&format!("numbers/{object}.parquet"), writer.into_inner().expect("an object"));
    }
    let uri = s3.uri("numbers/");
    (s3, uri)
}

#[test]
fn rows_that_are_found_by_the_plan_are_those_that_tcp_brings() {
    let (s3, uri) = upload();
    let server = start(ServerOptions::for_s3(&s3));
    let planned = || metric(&server, "planned_bytes_total");
    let rows = metric(&server, "rows_served_total");
    let mut read_rows = 0;
    for (shuffle, world) in [(Shuffle::None, 1), (Shuffle::Window(4), 2), (Shuffle::Full, 3)] {
        let settings = LoaderSettings {
            seed: 5,
            shuffle,
            world,
            // The last step has padding.
            ending: Ending::Pad,
            global_batch: 2_100,
            // Room for a few steps: most are waited for.
            prefetch_bytes: 1 << 20,
            ..Default::default()
        };
        let bytes = LoaderSettings { same_host: false, ..settings.clone() };
        let by_tcp = read(&server.endpoint, &uri, SEGMENT_BYTES, &bytes);
        read_rows += by_tcp.iter().map(|batch| batch.num_rows() as u64).sum::<u64>();
        // Segments that are not written yet lie in memory alone.
        until("rows in files", || {
            let before = planned();
            let shared = read(&server.endpoint, &uri, SEGMENT_BYTES, &settings);
            read_rows += shared.iter().map(|batch| batch.num_rows() as u64).sum::<u64>();
            assert!(by_tcp == shared, "{shuffle} differs");
            let most = (OBJECTS * ROWS) as u64 * 28;
            planned() - before > most / 10 * 9
        });
    }
    until("the end of all readers", || metric(&server, "memory_shared_bytes") == 0);
    assert_eq!(metric(&server, "rows_served_total") - rows, read_rows, "rows are counted");
    server.stop();
}

#[test]
fn files_of_numbers_that_are_changed_under_their_readers_are_found_out() {
    let (s3, uri) = upload();
    change_files_under_readers(&s3, &uri, "planned_bytes_total");
}
