//! Snapshots in a bucket that keeps versions: a run goes on with exactly its data after objects were
//! overwritten or deleted.

use forebay_client::{Access, Dataset, DatasetSpec};
use forebay_tests::bench::disk::folder::segment_files;
use forebay_tests::harness::etcd::Etcd;
use forebay_tests::harness::fault::Fault;
use forebay_tests::harness::ports::free_address;
use forebay_tests::harness::process::{Run, Server, ServerOptions};
use forebay_tests::harness::s3::S3Server;
use forebay_tests::harness::seen::SeenRequest;
use serde_json::Value;

use crate::commands::{cached, digest, direct, json};
use crate::refused::refused;
use crate::snapshots::{cluster, in_folder, read, upload_ids};

/// Rows of each object.
const ROWS: i64 = 200;

/// An object with ids from `first` on.
fn object(s3: &S3Server, name: &str, first: i64) {
    upload_ids(s3, &format!("data/{name}.parquet"), first..first + ROWS);
}

/// A table of three objects.
fn table(s3: &S3Server) -> String {
    ["a", "b", "c"].iter().zip(0..).for_each(|(name, i)| object(s3, name, i * ROWS));
    s3.uri("data")
}

/// Overwrites `a`, deletes `b`, adds `d`; `c` stays.
fn change(s3: &S3Server) {
    object(s3, "a", 90_000);
    s3.objects().delete(&s3.bucket, "data/b.parquet");
    object(s3, "d", 80_000);
}

fn line(dataset: &str) -> [&str; 7] {
    ["epoch", dataset, "--batch", "48", "--segment-bytes", "800", "--verify"]
}

fn same(then: &Value, now: &Value, how: &str) {
    assert_eq!(digest(now, 0), digest(then, 0), "{how}");
    assert_eq!(now["epochs"][0]["content_digest"], then["epochs"][0]["content_digest"], "{how}");
}

fn is_by_id(seen: &SeenRequest) -> bool {
    seen.query.contains("versionId=")
}

#[test]
fn a_snapshot_is_read_after_its_objects_were_overwritten_and_deleted() {
    let (s3, etcd) = (S3Server::start(), Etcd::start(1));
    // What was there before the bucket kept versions has the version `null`.
    object(&s3, "a", 0);
    s3.keep_versions();
    let uri = table(&s3);
    let [a, b] = cluster(&s3, &etcd);
    // Both nodes know the dataset, without the ids of versions, which a snapshot asks for.
    let then = json(cached(&a, &line(&uri)));
    same(&then, &json(cached(&b, &line(&uri))), "unchanged");
    s3.take_log();
    let save = ["snapshot", "save", "july", &uri, "--segment-bytes", "800"];
    let said = cached(&a, &save).end().expect_success();
    assert!(String::from_utf8_lossy(&said).contains("keeps"), "{}", String::from_utf8_lossy(&said));
    let snapshot = ["epoch", "snapshot:july", "--batch", "48", "--verify"];
    same(&then, &json(cached(&b, &snapshot)), "nothing was changed");
    assert!(!s3.take_log().iter().any(is_by_id), "current objects need no id");
    change(&s3);
    assert_ne!(json(cached(&a, &["inspect", &uri]))["digest"], then["digest"]);
    same(&then, &json(cached(&b, &snapshot)), "warm");
    assert!(!s3.take_log().iter().any(is_by_id), "all of it was held");
    cached(&a, &["free", &uri]).end().expect_success();
    for world in ["1", "4"] {
        same(&then, &json(cached(&b, &[&snapshot[..], &["--world", world]].concat())), "cold");
    }
    let log = s3.take_log();
    let by_id = |key: &str| log.iter().filter(|seen| seen.key.ends_with(key) && is_by_id(seen)).count();
    assert!(by_id("a.parquet") > 0 && by_id("b.parquet") > 0, "{log:#?}");
    assert_eq!((by_id("c.parquet"), by_id("d.parquet")), (0, 0));
    assert!(log.iter().filter(|seen| is_by_id(seen)).all(|seen| seen.if_match.is_some()));
    // As a file, without a cache.
    let folder = tempfile::tempdir().expect("a folder");
    let text = cached(&b, &["snapshot", "show", "july", "--json"]).end().expect_success();
    std::fs::write(folder.path().join("exported.json"), text).expect("write it");
    let read = |name: &str| in_folder(direct(&s3, &["epoch", name, "--batch", "48", "--verify"]), &folder);
    same(&then, &json(read("snapshot:exported")), "direct");
    let file = format!("@{}", folder.path().join("exported.json").display());
    same(&then, &json(read(&file)), "direct, a file of a version");
    [a, b].into_iter().for_each(Server::stop);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_over_a_snapshot_goes_on_when_a_node_lost_what_it_held() {
    let s3 = S3Server::start();
    s3.keep_versions();
    let uri = table(&s3);
    let (folder, dir) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let address = free_address().expect("a free port");
    let start = || {
        let options = ServerOptions::for_s3(&s3).folder(folder.path());
        options.args(["--listen", &address]).allow_log("a segment could not be read ahead").start()
    };
    let server = start();
    let path = format!("{}/july", dir.path().display());
    // The dataset is known before it is saved.
    cached(&server, &["load", &uri, "--segment-bytes", "800"]).end().expect_success();
    let save = ["snapshot", "save", &path, &uri, "--segment-bytes", "800"];
    cached(&server, &save).end().expect_success();
    let access = Access::endpoint(&server.endpoint).expect("an endpoint");
    let spec = DatasetSpec::new(format!("snapshot:{path}"));
    let dataset = Dataset::open(&access, &spec).await.expect("open");
    let (mut ids, whole, _) = read(&dataset, 1, None, None).await;
    ids.sort_unstable();
    assert_eq!(ids, (0..3 * ROWS).collect::<Vec<_>>());
    change(&s3);
    cached(&server, &["inspect", &uri, "--segment-bytes", "800"]).end().expect_success();
    server.stop();
    // It comes back with what it knew of datasets, and without segments.
    let held = segment_files(&folder.path().join("cache"));
    assert!(!held.is_empty());
    held.iter().for_each(|file| std::fs::remove_file(file).expect("remove it"));
    let server = start();
    s3.take_log();
    let (mut again, sum, _) = read(&dataset, 3, None, None).await;
    again.sort_unstable();
    assert_eq!((again, sum), (ids, whole), "each row once, and no other");
    assert!(s3.take_log().iter().any(is_by_id), "it was cold");
    server.stop();
}

#[test]
fn versions_that_are_gone_or_not_given_out_are_named() {
    let s3 = S3Server::start();
    s3.keep_versions();
    let uri = table(&s3);
    let folder = tempfile::tempdir().expect("a folder");
    let run = |line: &[&str]| -> Run { in_folder(direct(&s3, line), &folder) };
    let saved = json(run(&["snapshot", "save", "july", &uri]));
    assert_eq!(saved["version_ids"], true);
    let cat = ["cat", "snapshot:july"];
    change(&s3);
    s3.inject(Box::new(|seen| is_by_id(seen).then_some(Fault::Deny)));
    refused(run(&cat), &["snapshot:july", "data/a.parquet", "was overwritten", "allow s3:GetObjectVersion"]);
    s3.heal();
    run(&cat).end().expect_success();
    // Versions end when a bucket's rule says so.
    s3.objects().forget_versions(&s3.bucket, "data/a.parquet");
    let says = [
        "snapshot:july",
        "data/a.parquet",
        "was overwritten",
        "no longer keeps its version",
        "save a new snapshot",
    ];
    refused(run(&cat), &says);
}

#[test]
fn a_store_without_versions_says_which_object_is_gone() {
    let s3 = S3Server::start();
    let uri = table(&s3);
    let folder = tempfile::tempdir().expect("a folder");
    let run = |line: &[&str]| -> Run { in_folder(direct(&s3, line), &folder) };
    s3.take_log();
    let saved = json(run(&["snapshot", "save", "july", &uri]));
    assert_eq!(saved["version_ids"], false);
    let heads = s3.take_log().iter().filter(|seen| seen.method == "HEAD").count();
    assert_eq!(heads, 1, "one object says that there are no versions");
    let text = std::fs::read_to_string(folder.path().join("july.json")).expect("the snapshot");
    assert!(!text.contains("version_id"), "as it was before there were any: {text}");
    change(&s3);
    let says = ["snapshot:july", "data/a.parquet", "was overwritten", "save a new snapshot"];
    let told = refused(run(&["cat", "snapshot:july"]), &says);
    assert!(!told.contains("version "), "{told}");
}
