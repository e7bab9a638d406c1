//! Snapshots: a run goes on with exactly its data after objects were added.

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use forebay_tests::harness::etcd::Etcd;
use forebay_tests::harness::process::{Run, Server, ServerOptions};
use forebay_tests::harness::s3::S3Server;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use serde_json::Value;
use std::sync::Arc;
use std::thread;

use crate::commands::{cached, digest, direct, json};
use crate::refused::refused;

/// Two nodes with an etcd.
fn cluster(s3: &S3Server, etcd: &Etcd) -> [Server; 2] {
    let node = |name: &str| {
        let options = ServerOptions::for_s3(s3).allow_log("etcd does not answer").args(["--node", name]);
        options.args(etcd.arguments()).start()
    };
    ["a", "b"].map(node)
}

/// An object with `groups` row groups of 50 rows.
fn upload(s3: &S3Server, name: &str, groups: i64) {
    let ids = Int64Array::from_iter_values(0..groups * 50);
    let batch = RecordBatch::try_from_iter([("id", Arc::new(ids) as ArrayRef)]).expect("a batch");
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(50)).build();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).expect("a writer");
    writer.write(&batch).expect("write");
    writer.close().expect("close");
    s3.put(&format!("{name}/part-00000.parquet"), bytes);
}

/// The table `data` with an object more, of the same columns.
fn grow(s3: &S3Server) {
    upload(s3, "more", 1);
    let bytes = s3.objects().get(&s3.bucket, "more/part-00000.parquet").expect("its bytes");
    s3.put("data/zz.parquet", bytes);
}

fn in_folder(run: Run, folder: &tempfile::TempDir) -> Run {
    run.envs([("FOREBAY_SNAPSHOT_DIR", folder.path())])
}

#[test]
fn a_snapshot_in_etcd_is_read_by_any_node_after_objects_were_added() {
    let (s3, etcd) = (S3Server::start(), Etcd::start(1));
    upload(&s3, "data", 6);
    let [a, b] = cluster(&s3, &etcd);
    let uri = s3.uri("data");
    let version = json(cached(&a, &["inspect", &uri]));
    let epoch = json(cached(&a, &["epoch", &uri, "--batch", "32", "--verify"]));
    cached(&a, &["snapshot", "save", "july", &uri]).end().expect_success();
    grow(&s3);
    assert_ne!(json(cached(&a, &["inspect", &uri]))["digest"], version["digest"]);
    for (how, run) in [
        ("the other node", cached(&b, &["inspect", "snapshot:july"])),
        ("the node that saved it", cached(&a, &["inspect", "snapshot:july"])),
    ] {
        assert_eq!(json(run)["digest"], version["digest"], "{how}");
    }
    let then = json(cached(&b, &["epoch", "snapshot:july", "--batch", "32", "--verify", "--world", "4"]));
    assert_eq!(digest(&then, 0), digest(&epoch, 0));
    assert_eq!(then["epochs"][0]["content_digest"], epoch["epochs"][0]["content_digest"]);
    cached(&b, &["load", "snapshot:july"]).end().expect_success();
    let listed = json(cached(&b, &["snapshot", "list"]));
    assert_eq!(listed["snapshots"][0]["digest"], version["digest"]);
    // As a file it is read without a cache.
    let folder = tempfile::tempdir().expect("a folder");
    let text = cached(&b, &["snapshot", "show", "july", "--json"]).end().expect_success();
    std::fs::write(folder.path().join("exported.json"), text).expect("write it");
    let there = json(in_folder(direct(&s3, &["inspect", "snapshot:exported"]), &folder));
    assert_eq!(there["digest"], version["digest"]);
    refused(cached(&a, &["snapshot", "save", "july", &uri]), &["`july`", "already", "choose another name"]);
    cached(&a, &["snapshot", "remove", "july"]).end().expect_success();
    refused(cached(&b, &["cat", "snapshot:july"]), &["no snapshot `july`", "snapshot list"]);
    [a, b].into_iter().for_each(Server::stop);
}

#[test]
fn of_two_savers_at_once_one_is_refused() {
    let (s3, etcd) = (S3Server::start(), Etcd::start(1));
    for name in ["x", "y"] {
        upload(&s3, name, 2);
    }
    let nodes = cluster(&s3, &etcd);
    let saved: Vec<_> = thread::scope(|scope| {
        let save = |node, name| {
            let uri = s3.uri(name);
            scope.spawn(move || cached(node, &["snapshot", "save", "same", &uri]).end().code)
        };
        let savers = [save(&nodes[0], "x"), save(&nodes[1], "y")];
        savers.map(|saver| saver.join().expect("a saver")).to_vec()
    });
    let mut codes = saved.clone();
    codes.sort_unstable();
    assert_eq!(codes, [Some(0), Some(1)]);
    let winner = if saved[0] == Some(0) { "x" } else { "y" };
    let kept: Value = json(cached(&nodes[1], &["snapshot", "show", "same"]));
    assert_eq!(kept["uri"], s3.uri(winner));
    nodes.into_iter().for_each(Server::stop);
}

#[test]
fn without_etcd_a_snapshot_goes_to_a_file() {
    let s3 = S3Server::start();
    upload(&s3, "data", 2);
    let server = ServerOptions::for_s3(&s3).start();
    let uri = s3.uri("data");
    refused(cached(&server, &["snapshot", "save", "july", &uri]), &["no etcd", "--dir"]);
    refused(cached(&server, &["cat", "snapshot:july"]), &["no etcd", "--dir"]);
    let folder = tempfile::tempdir().expect("a folder");
    let run = |line: &[&str]| in_folder(cached(&server, line), &folder);
    let version = json(run(&["snapshot", "save", "july", &uri]));
    grow(&s3);
    assert_eq!(json(run(&["inspect", "snapshot:july"]))["digest"], version["digest"]);
    let gone = "data/part-00000.parquet";
    s3.objects().delete(&s3.bucket, gone);
    run(&["free", &uri]).end().expect_success();
    refused(run(&["cat", "snapshot:july"]), &[gone, "was deleted", "save a new snapshot"]);
    server.stop();
}

#[test]
fn old_versions_are_freed_and_what_others_need_stays() {
    let s3 = S3Server::start();
    upload(&s3, "data", 4);
    let server = ServerOptions::for_s3(&s3).start();
    let (uri, folder) = (s3.uri("data"), tempfile::tempdir().expect("a folder"));
    let run = |line: &[&str]| in_folder(cached(&server, line), &folder);
    let old = json(run(&["snapshot", "save", "july", &uri]))["digest"].clone();
    run(&["load", &uri]).end().expect_success();
    grow(&s3);
    // The version that is now, and a filter of each.
    run(&["load", &uri]).end().expect_success();
    for dataset in [&uri, "snapshot:july"] {
        run(&["load", dataset, "--where", "id >= 100"]).end().expect_success();
    }
    let ages = || {
        let status = json(run(&["status", &uri]));
        let datasets = status["datasets"].as_array().expect("datasets").clone();
        let age = |d: &Value| (d["superseded"].as_bool().unwrap(), d["segments_held"].as_u64().unwrap());
        datasets.iter().map(|d| (d["digest"].clone(), age(d))).collect::<Vec<_>>()
    };
    let before = ages();
    assert_eq!(before.len(), 4);
    assert_eq!(before.iter().filter(|(_, (is_old, _))| *is_old).count(), 2, "{before:?}");
    assert!(before.iter().any(|(digest, (is_old, _))| *digest == old && *is_old), "{before:?}");
    let freed = json(run(&["free", &uri, "--superseded"]));
    let after = ages();
    assert_eq!(after, before.into_iter().filter(|(_, (is_old, _))| !is_old).collect::<Vec<_>>());
    assert_eq!(freed["segments"], 0, "the newer versions have all of them: {freed}");
    let [first, other] = &after[..] else { panic!("{after:?}") };
    let freed = json(run(&["free", &uri, "--digest", first.0.as_str().expect("text")]));
    assert_eq!(freed["segments"].as_u64(), Some(first.1.1), "{freed}");
    assert_eq!(ages(), std::slice::from_ref(other));
    let digest = "0".repeat(32);
    assert_eq!(json(run(&["free", &uri, "--digest", &digest]))["segments"], 0);
    server.stop();
}
