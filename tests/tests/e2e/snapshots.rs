//! Snapshots: a run goes on with exactly its data after objects were added.

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use forebay_client::loader::Ending;
use forebay_client::snapshot::Snapshots;
use forebay_client::{Access, Dataset, DatasetSpec, Event, Loader, LoaderSettings};
use forebay_proto::digest::ContentDigest;
use forebay_proto::manifest::Object;
use forebay_proto::{Kind, v1};
use forebay_tests::harness::etcd::Etcd;
use forebay_tests::harness::process::{Run, Server, ServerOptions};
use forebay_tests::harness::s3::S3Server;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use serde_json::Value;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::commands::{cached, digest, direct, json};
use crate::refused::refused;

/// Two nodes with an etcd.
pub fn cluster(s3: &S3Server, etcd: &Etcd) -> [Server; 2] {
    let node = |name: &str| {
        let options = ServerOptions::for_s3(s3).allow_log("etcd does not answer").args(["--node", name]);
        options.args(etcd.arguments()).start()
    };
    ["a", "b"].map(node)
}

/// An object with `groups` row groups of 50 rows.
fn upload(s3: &S3Server, name: &str, groups: i64) {
    upload_ids(s3, &format!("{name}/part-00000.parquet"), 0..groups * 50);
}

/// An object with these ids, in row groups of 50 rows.
pub fn upload_ids(s3: &S3Server, key: &str, ids: Range<i64>) {
    let ids = Int64Array::from_iter_values(ids);
    let batch = RecordBatch::try_from_iter([("id", Arc::new(ids) as ArrayRef)]).expect("a batch");
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(50)).build();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).expect("a writer");
    writer.write(&batch).expect("write");
    writer.close().expect("close");
    s3.put(key, bytes);
}

/// The table `data` with an object more, of the same columns.
fn grow(s3: &S3Server) {
    upload(s3, "more", 1);
    let bytes = s3.objects().get(&s3.bucket, "more/part-00000.parquet").expect("its bytes");
    s3.put("data/zz.parquet", bytes);
}

pub fn in_folder(run: Run, folder: &tempfile::TempDir) -> Run {
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

/// The ids that some ranks bring, with their digest and the state after them. All that is left, unless `kill`
/// is given: then that node is killed after 3 steps, and 7 are read.
pub async fn read(
    dataset: &Dataset,
    world: u32,
    state: Option<Vec<u8>>,
    mut kill: Option<&mut Server>,
) -> (Vec<i64>, ContentDigest, Vec<u8>) {
    let rank = |rank| {
        let mut settings = LoaderSettings {
            rank,
            world,
            global_batch: 24,
            ending: Ending::Exact,
            epochs: Some(1),
            content_digest: true,
            ..Default::default()
        };
        if let Some(state) = &state {
            settings.load_state_dict(state).expect("its own state");
        }
        Loader::start(dataset, settings).expect("start")
    };
    let mut ranks: Vec<Loader> = (0..world).map(rank).collect();
    let (mut ids, mut sum, last) = (Vec::new(), ContentDigest::default(), kill.is_some());
    for step in 0..if last { 7 } else { ranks[0].steps(0) } {
        if let Some(node) = kill.take_if(|_| step == 3) {
            node.kill();
        }
        for loader in &mut ranks {
            let Some(Event::Batch(batch)) = loader.next().await.expect("a batch") else { panic!("it ended") };
            let column = batch.column("id").expect("ids");
            let rows = column.as_primitive::<Int64Type>().values();
            let is_real = |row: &usize| batch.mask.as_ref().is_none_or(|mask| mask.value(*row));
            ids.extend((0..rows.len()).filter(is_real).map(|row| rows[row]));
            sum.merge(batch.content.expect("it was asked for"));
        }
    }
    (ids, sum, ranks[0].state_dict())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filtered_snapshot_is_read_whole_over_a_kill_and_by_other_ranks() {
    let (s3, etcd) = (S3Server::start(), Etcd::start(1));
    upload(&s3, "data", 40);
    let [mut a, b] = cluster(&s3, &etcd);
    let save =
        ["snapshot", "save", "july", &s3.uri("data"), "--where", "id >= 100", "--segment-bytes", "2000"];
    cached(&a, &save).end().expect_success();
    grow(&s3);
    let access = Access::endpoint(&b.endpoint).expect("an endpoint");
    let dataset = Dataset::open(&access, &DatasetSpec::new("snapshot:july")).await.expect("open");
    assert!(dataset.manifest.segments().len() > 4);
    let (mut ids, whole, _) = read(&dataset, 1, None, None).await;
    ids.sort_unstable();
    assert_eq!(ids, (100..2000).collect::<Vec<_>>());
    let (mut seen, mut begun, state) = read(&dataset, 3, None, Some(&mut a)).await;
    let (rest, ended, _) = read(&dataset, 2, Some(state), None).await;
    begun.merge(ended);
    assert_eq!(begun, whole);
    seen.extend(rest);
    seen.sort_unstable();
    assert_eq!(seen, ids, "each row exactly once");
    b.stop();
}

/// A snapshot whose objects etcd takes in parts only.
fn large(name: &str, version: u128) -> v1::Snapshot {
    let tag = |object: u128| (object + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    let object = |number: u128| Object {
        key: format!("year={}/part-{number:06}.parquet", number % 30),
        etag: format!("{:032x}", tag(number) ^ version),
        size: number as u64,
        ..Object::default()
    };
    let dataset = v1::DatasetSpec {
        uri: "s3://forebay/large".into(),
        objects: (0..100_000).map(object).collect(),
        ..Default::default()
    };
    v1::Snapshot {
        name: name.into(),
        digest: version.to_be_bytes().to_vec().into(),
        objects: 100_000,
        dataset: Some(dataset),
        ..Default::default()
    }
}

fn snapshots(node: &Server) -> Snapshots {
    match Access::endpoint(&node.endpoint).expect("an endpoint") {
        Access::Endpoint(endpoints) => Snapshots::Cache(endpoints),
        Access::Direct(_) => panic!("a node is no direct access"),
    }
}

/// The ids of parts in etcd.
fn part_ids(etcd: &Etcd, name: &str) -> Vec<String> {
    let below = format!("/forebay-snapshots/objects/{name}/");
    let keys = etcd.keys(&below);
    let mut ids: Vec<String> = keys.iter().map(|key| key[below.len()..below.len() + 16].to_owned()).collect();
    ids.dedup();
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_100_000_objects_is_kept_whole_when_others_save() {
    let (s3, etcd) = (S3Server::start(), Etcd::start(1));
    let nodes = cluster(&s3, &etcd);
    let [a, b] = [0, 1].map(|node| snapshots(&nodes[node]));
    // Two savers of one name at once: one is refused, and the one that was kept is whole.
    let (own, other) = (large("both", 1), large("both", 2));
    let (first, second) = tokio::join!(a.save(own.clone()), b.save(other.clone()));
    assert_ne!(first.is_ok(), second.is_ok(), "{first:?}, {second:?}");
    let refusal = if first.is_ok() { second } else { first.clone() }.expect_err("one is refused");
    assert!(refusal.message.contains("already: choose another name"), "{refusal}");
    let winner = if first.is_ok() { own } else { other };
    for snapshots in [&a, &b] {
        assert_eq!(snapshots.get("both").await.expect("the snapshot"), winner);
    }
    assert_eq!(part_ids(&etcd, "both").len(), 1, "the other's parts are gone");
    assert!(etcd.keys("/forebay-snapshots/saving/").is_empty());
    b.save(winner.clone()).await.expect("the same again");
    // Two savers of the same: both are right.
    let (first, second) = tokio::join!(a.save(large("same", 3)), b.save(large("same", 3)));
    assert!(first.is_ok() && second.is_ok(), "{first:?}, {second:?}");
    assert_eq!(part_ids(&etcd, "same").len(), 1);
    let names: Vec<_> = a.list().await.expect("a list").into_iter().map(|s| (s.name, s.objects)).collect();
    assert_eq!(names, [("both".to_owned(), 100_000), ("same".to_owned(), 100_000)]);
    // What a saver left behind that died long ago, and what one writes now.
    let dead = "/forebay-snapshots/objects/same/00000000000000aa/00000";
    let alive = "/forebay-snapshots/objects/new/00000000000000bb/00000";
    etcd.put(dead, "half");
    etcd.put(alive, "half");
    etcd.put("/forebay-snapshots/saving/00000000000000bb", "");
    assert_eq!(a.get("same").await.expect("the snapshot").digest, large("same", 3).digest);
    b.remove("both").await.expect("it is there");
    assert!(part_ids(&etcd, "both").is_empty(), "its parts are gone with it");
    assert_eq!(part_ids(&etcd, "same").len(), 1, "swept");
    assert_eq!(etcd.keys("/forebay-snapshots/objects/new/"), [alive]);
    assert_eq!(a.get("both").await.expect_err("it was removed").kind, Kind::NotFound);
    drop((a, b));
    nodes.into_iter().for_each(Server::stop);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_dies_while_it_saves_leaves_no_half_of_a_snapshot() {
    let (s3, etcd) = (S3Server::start(), Etcd::start(1));
    let [mut a, b] = cluster(&s3, &etcd);
    let (dying, other) = (snapshots(&a), snapshots(&b));
    let saving = tokio::spawn(async move { dying.save(large("july", 1)).await });
    let deadline = Instant::now() + Duration::from_secs(60);
    while part_ids(&etcd, "july").is_empty() {
        assert!(Instant::now() < deadline, "no part was written");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    a.kill();
    saving.abort();
    let left = part_ids(&etcd, "july");
    // All of it, or none.
    let kept = match other.get("july").await {
        Ok(snapshot) => {
            assert_eq!(snapshot, large("july", 1));
            true
        }
        Err(e) => {
            assert_eq!(e.kind, Kind::NotFound, "{e}");
            false
        }
    };
    let again = other.save(large("july", 2)).await;
    assert_eq!(again.is_err(), kept, "{again:?}");
    let version = if kept { 1 } else { 2 };
    assert_eq!(other.get("july").await.expect("the snapshot"), large("july", version));
    if !kept {
        // Its mark, which lives for minutes more, keeps them.
        assert!(part_ids(&etcd, "july").contains(&left[0]));
    }
    b.stop();
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
