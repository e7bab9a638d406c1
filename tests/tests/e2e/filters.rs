//! Row filters: what pyarrow.dataset leaves, by every way to read, in an order of its own that no number of
//! ranks and no restart changes.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use forebay_client::loader::{Ending, Event, Loader, LoaderSettings};
use forebay_client::{Access, Dataset, DatasetSpec};
use forebay_proto::digest::ContentDigest;
use forebay_tests::harness::process::{Run, Server, ServerOptions};
use forebay_tests::harness::s3::S3Server;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use serde::Deserialize;

use crate::commands::{cached, digest, direct, epoch, json};
use crate::fixtures::{Comparison, filters};
use crate::real::{three, upload};
use crate::refused::refused;

/// Leaves the rows of `plain/`, in all objects but one.
const FILTER: &str = "n >= 350 and b";

/// A filter, as `filters.json` has it.
#[derive(Deserialize)]
struct Case {
    r#where: String,
    columns: Vec<String>,
}

fn tables() -> S3Server {
    let s3 = S3Server::start();
    for name in ["table", "plain", "clustered"] {
        upload(&s3, &filters().join(name), name);
    }
    s3
}

/// Compares what `cat` prints of every `step`-th filter with what pyarrow leaves.
fn compare(s3: &S3Server, step: usize, run: impl Fn(&[&str]) -> Run) {
    let cases = std::fs::read(filters().join("filters.json")).expect("read the filters");
    let cases: Vec<Case> = serde_json::from_slice(&cases).expect("JSON");
    assert!(cases.len() >= 50, "the filters are not all there");
    let (mut comparison, uri) = (Comparison::new(), s3.uri("table"));
    for (number, case) in cases.iter().enumerate().step_by(step) {
        let columns = case.columns.join(",");
        let line = ["cat", &uri, "--where", &case.r#where, "--columns", &columns, "--format", "arrow"];
        let read = run(&line).end().expect_success();
        comparison.add(filters().join(format!("{number}.arrow")), &read);
    }
    comparison.check(&[]);
}

#[test]
fn filters_leave_what_pyarrow_leaves_without_a_cache() {
    let s3 = tables();
    compare(&s3, 1, |line| direct(&s3, line));
}

#[test]
fn filters_leave_what_pyarrow_leaves_through_a_cache_cold_and_warm() {
    let s3 = tables();
    let server = ServerOptions::for_s3(&s3).start();
    compare(&s3, 1, |line| cached(&server, line));
    s3.take_log();
    compare(&s3, 3, |line| cached(&server, line));
    let data = s3.take_log().iter().filter(|seen| seen.if_match.is_some()).count();
    assert_eq!(data, 0, "all of it was held, and its footers known");
    server.stop();
}

#[test]
fn filters_leave_what_pyarrow_leaves_on_three_nodes() {
    let s3 = tables();
    let nodes = three(&s3);
    compare(&s3, 4, |line| cached(&nodes[1], line));
    nodes.into_iter().for_each(Server::stop);
}

#[test]
fn one_per_cent_of_a_clustered_table_costs_few_bytes() {
    let s3 = tables();
    let server = ServerOptions::for_s3(&s3).start();
    s3.take_log();
    let uri = s3.uri("clustered");
    let line = ["epoch", &uri, "--where", "key >= 77001 and key < 79001", "--batch", "100"];
    let read = json(cached(&server, &line));
    assert_eq!(epoch(&read, 0, "samples"), 2000);
    let bytes: u64 = s3.take_log().iter().filter(|seen| seen.is_object_get()).map(|seen| seen.bytes).sum();
    let object = std::fs::metadata(filters().join("clustered/0.parquet")).expect("the table").len();
    assert!(bytes * 20 <= object, "{bytes} of {object} bytes");
    server.stop();
}

/// An object of one row group: a column in order and one of noise, in pages of 2,000 rows.
fn one_group(rows: i64, statistics: EnabledStatistics) -> Vec<u8> {
    let noise = Int64Array::from_iter_values((0..rows).map(|row| row.wrapping_mul(0x5851_f42d_4c95_7f2d)));
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    let batch = RecordBatch::try_from_iter([("key", keys), ("noise", Arc::new(noise) as _)]);
    let batch = batch.expect("a batch");
    let properties = WriterProperties::builder()
        .set_statistics_enabled(statistics)
        .set_data_page_row_count_limit(2_000)
        .set_dictionary_enabled(false);
    let mut bytes = Vec::new();
    let mut writer =
        ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties.build())).expect("a writer");
    writer.write(&batch).expect("write");
    writer.close().expect("close");
    bytes
}

#[test]
fn freezing_a_filter_within_a_large_row_group_reads_few_pages() {
    let s3 = S3Server::start();
    let mut read = Vec::new();
    for (name, statistics) in [("pages", EnabledStatistics::Page), ("chunks", EnabledStatistics::Chunk)] {
        let object = one_group(400_000, statistics);
        let size = object.len() as u64;
        s3.put(&format!("{name}/0.parquet"), object);
        let server = ServerOptions::for_s3(&s3).start();
        s3.take_log();
        let uri = s3.uri(name);
        let filter = ["--where", "key >= 77001 and key < 79001"];
        let frozen = json(cached(&server, &[&["inspect", &uri], &filter[..]].concat()));
        assert_eq!(frozen["rows"], 2000);
        let bytes: u64 =
            s3.take_log().iter().filter(|seen| seen.is_object_get()).map(|seen| seen.bytes).sum();
        read.push((bytes, size));
        let epoch_of = json(cached(&server, &[&["epoch", &uri, "--batch", "100"], &filter[..]].concat()));
        assert_eq!(epoch(&epoch_of, 0, "samples"), 2000);
        server.stop();
    }
    let [(pages, size), (whole, _)] = read[..] else { panic!("{read:?}") };
    // The footer's 64 KiB are most of it.
    assert!(
        pages * 20 <= size && whole * 3 > size,
        "{pages} with an index, {whole} without, of {size} bytes"
    );
}

#[test]
fn the_order_and_the_values_of_what_is_left_are_those_of_any_dataset() {
    let s3 = tables();
    let (alone, nodes) = (ServerOptions::for_s3(&s3).start(), three(&s3));
    let content = |answer: &serde_json::Value| epoch(answer, 0, "content_digest").to_string();
    let uri = s3.uri("table");
    let filtered = |more: &[&'static str]| {
        let line = ["epoch", &uri, "--where", FILTER, "--verify", "--segment-bytes", "20000"];
        line.iter().chain(more).map(|word| (*word).to_owned()).collect::<Vec<_>>()
    };
    let run = |server: &Server, line: &[String]| {
        json(cached(server, &line.iter().map(String::as_str).collect::<Vec<_>>()))
    };
    // In file order it is the dataset of these rows alone, of other files.
    let plain = s3.uri("plain");
    let plain = json(direct(&s3, &["epoch", &plain, "--verify", "--shuffle", "none"]));
    let rows = epoch(&plain, 0, "samples").clone();
    let left = run(&alone, &filtered(&["--shuffle", "none"]));
    assert_eq!((epoch(&left, 0, "samples"), content(&left)), (&rows, content(&plain)));
    let first = run(&alone, &filtered(&["--batch", "48"]));
    for (how, answer) in [
        ("warm", run(&alone, &filtered(&["--batch", "30", "--ending", "exact"]))),
        ("three nodes, two ranks", run(&nodes[0], &filtered(&["--batch", "48", "--world", "2"]))),
        ("three nodes, four ranks", run(&nodes[2], &filtered(&["--batch", "48", "--world", "4"]))),
        ("without a cache", {
            let line = filtered(&["--batch", "60", "--world", "3"]);
            json(direct(&s3, &line.iter().map(String::as_str).collect::<Vec<_>>()))
        }),
    ] {
        assert_eq!(content(&answer), content(&first), "{how}");
        assert_eq!(digest(&answer, 0), digest(&first, 0), "{how}");
        assert_eq!(answer["digest"], first["digest"], "{how}");
    }
    let whole = run(&alone, &["epoch".into(), uri.clone()]);
    assert_ne!(whole["digest"], first["digest"]);
    let status = cached(&alone, &["status", &uri]).end().expect_success();
    let status = String::from_utf8(status).expect("text");
    assert!(
        status.contains("/table where b = true and n >= 350 ") && status.contains("/table  "),
        "{status}"
    );
    alone.stop();
    nodes.into_iter().for_each(Server::stop);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_of_what_is_left_goes_on_with_another_number_of_ranks() {
    let s3 = tables();
    let server = ServerOptions::for_s3(&s3).start();
    let access = Access::endpoint(&server.endpoint).expect("an endpoint");
    let filter = Some(FILTER.to_owned());
    let spec = DatasetSpec { filter, segment_bytes: Some(20_000), ..DatasetSpec::new(s3.uri("table")) };
    let dataset = Dataset::open(&access, &spec).await.expect("open");
    let settings = |rank, world| LoaderSettings {
        rank,
        world,
        global_batch: 24,
        ending: Ending::Exact,
        epochs: Some(1),
        content_digest: true,
        ..Default::default()
    };
    // The rows of all ranks, and the state after `steps` of them.
    let read = async |world: u32, state: Option<Vec<u8>>, steps: usize| {
        let (mut sum, mut states) = (ContentDigest::default(), Vec::new());
        for rank in 0..world {
            let mut settings = settings(rank, world);
            if let Some(state) = &state {
                settings.load_state_dict(state).expect("its own state");
            }
            let mut loader = Loader::start(&dataset, settings).expect("start");
            let mut taken = 0;
            while taken < steps {
                match loader.next().await.expect("a batch") {
                    Some(Event::Batch(batch)) => {
                        sum.merge(batch.content.expect("it was asked for"));
                        taken += 1;
                    }
                    Some(_) => {}
                    None => break,
                }
            }
            states.push(loader.state_dict());
        }
        assert!(states.windows(2).all(|pair| pair[0] == pair[1]));
        (sum, states.pop())
    };
    let (whole, _) = read(1, None, usize::MAX).await;
    let (mut begun, state) = read(3, None, 7).await;
    let (ended, _) = read(2, state, usize::MAX).await;
    begun.merge(ended);
    assert_eq!(begun, whole);
    server.stop();
}

#[test]
fn what_was_filtered_is_told_and_kept() {
    let s3 = tables();
    let server = ServerOptions::for_s3(&s3).start();
    let uri = s3.uri("table");
    let report = cached(&server, &["inspect", &uri, "--where", FILTER, "--json"]).end().expect_success();
    let inspected: serde_json::Value = serde_json::from_slice(&report).expect("JSON");
    assert_eq!(inspected["where"], "b = true and n >= 350");
    let folder = tempfile::tempdir().expect("make a folder");
    let version = folder.path().join("version.json");
    std::fs::write(&version, &report).expect("write the version");
    s3.put("table/year=2030/x.parquet", std::fs::read(filters().join("plain/0.parquet")).expect("a table"));
    let pinned = format!("@{}", version.display());
    let then = json(cached(&server, &["inspect", &pinned]));
    assert_eq!((&then["digest"], &then["rows"]), (&inspected["digest"], &inspected["rows"]));
    refused(cached(&server, &["cat", &pinned, "--where", "n = 1"]), &[&pinned, "has a filter"]);
    let split = json(cached(&server, &["epoch", &pinned, "--split", "10:60", "--batch", "10"]));
    assert_eq!(epoch(&split, 0, "samples"), 50);
    let plan = json(cached(&server, &["plan", &pinned, "--batch", "5"]));
    assert!(plan["slots"][0]["object_row"].is_null(), "{plan}");
    server.stop();
}

#[test]
fn filters_that_make_no_sense_are_refused() {
    let s3 = tables();
    let server = ServerOptions::for_s3(&s3).start();
    let uri = s3.uri("table");
    let deep = format!("{}b{}", "(".repeat(2000), ")".repeat(2000));
    for (filter, says) in [
        ("nn > 3", &["no column 'nn'", "did you mean 'n'"][..]),
        ("n > 'x'", &["column 'n' is Int64", "the text 'x'"]),
        ("n > 3 and", &["it ends where a column is expected", "at character 10"]),
        (" ", &["the filter is empty"]),
        ("n < 0", &["`n < 0` leaves no row"]),
        ("year = 1999", &["`year = 1999` leaves no row"]),
        (&deep, &["nested too deep"]),
        (&"b or ".repeat(5000), &["use 16384 at most"]),
    ] {
        for command in ["cat", "epoch", "load", "inspect", "plan"] {
            let says = [&[uri.as_str()], says].concat();
            refused(cached(&server, &[command, &uri, "--where", filter]), &says);
        }
        refused(direct(&s3, &["cat", &uri, "--where", filter]), says);
    }
    server.stop();
}
