//! A disk that is full before the limit of the cache is reached, by the cache's own files or by others'.

use forebay_tests::bench::disk::folder::SmallDisk;
use forebay_tests::harness::check::must_try_all;
use forebay_tests::harness::mnist;
use forebay_tests::harness::process::{Server, ServerOptions};
use forebay_tests::harness::s3::S3Server;
use serde_json::Value;

use crate::commands::{cached, counter, digests, direct, epoch, json, until};
use crate::restart::store;

/// A disk of a few MB. None where nothing can be mounted, as in containers without privileges: then a line
/// says which promise is not tested.
fn small_disk(bytes: u64, what: &str) -> Option<SmallDisk> {
    let disk = SmallDisk::mount(bytes);
    if disk.is_none() {
        assert!(!must_try_all(), "no tmpfs can be mounted here, and CI is set: {what} is not tested");
        eprintln!("no tmpfs can be mounted here: {what} is not tested");
    }
    disk
}

#[test]
fn a_limit_above_the_whole_disk_is_told_when_the_node_starts() {
    let s3 = S3Server::start();
    let Some(disk) = small_disk(60_000_000, "the warning of a small disk") else { return };
    let folder = disk.folder().to_string_lossy().into_owned();
    let start = |limit: &str| {
        let options = ServerOptions::for_s3(&s3).args(["--cache-dir", &folder, "--cache-bytes", limit]);
        options.allow_log("more than the whole disk").start()
    };
    for (limit, bytes) in [("10GB", Some("limit_bytes=10000000000")), ("50MB", None)] {
        let server = start(limit);
        let log = server.log();
        let told: Vec<&str> = log.lines().filter(|line| line.contains(" WARN ")).collect();
        match bytes {
            Some(bytes) => {
                assert_eq!(told.len(), 1, "{log}");
                let says = ["--cache-bytes allows more than the whole disk", &folder, bytes, "disk_bytes=6"];
                assert!(says.iter().all(|text| told[0].contains(text)), "{says:?}: {log}");
            }
            None => assert!(told.is_empty(), "{log}"),
        }
        server.stop();
    }
}

#[test]
fn a_full_disk_means_reading_through() {
    let (s3, uri) = store();
    // The limit is ten times the disk.
    let Some(disk) = small_disk(9 << 20, "the full disk") else { return };
    let wanted = json(direct(&s3, &["epoch", "--verify", &uri, "--epochs", "2"]));
    let server = ServerOptions::for_s3(&s3)
        .args(["--cache-dir", &disk.folder().to_string_lossy()])
        .allow_log("could not be stored")
        .allow_log("more than the whole disk")
        .start();
    let answer = json(cached(&server, &["epoch", "--verify", &uri, "--epochs", "2"]));
    for number in [0, 1] {
        assert_eq!(digests(&answer, number), digests(&wanted, number));
        assert_eq!(epoch(&answer, number, "samples"), mnist::TRAIN_SAMPLES);
    }
    assert!(server.log().contains("No space left"), "it says so: {}", server.log());
    let leftovers = std::fs::read_dir(disk.folder().join("v1/tmp")).expect("list").count();
    assert_eq!(leftovers, 0, "nothing half-written is left");
    server.stop();
}

/// Objects of a megabyte, each one block.
fn put_raw(s3: &S3Server, set: &str, objects: u8) -> String {
    (0..objects).for_each(|n| s3.put(&format!("{set}/{n}"), vec![n; 1_000_000]));
    s3.uri(set)
}

/// A node whose limit is far above its disk.
fn on_small_disk(s3: &S3Server, disk: &SmallDisk) -> ServerOptions {
    let folder = disk.folder().to_string_lossy().into_owned();
    ServerOptions::for_s3(s3)
        .args(["--cache-dir", &folder, "--cache-bytes", "100MB"])
        .allow_log("could not be stored")
        .allow_log("more than the whole disk")
}

/// The only cache directory of a node, as `forebay status --json` has it.
fn health_of_dir(server: &Server) -> String {
    let status = json(cached(server, &["status"]));
    status["dirs"][0]["health"].as_str().expect("a word").to_owned()
}

#[test]
fn a_disk_full_of_the_caches_own_data_makes_room_for_what_is_read_next() {
    let s3 = S3Server::start();
    let Some(disk) = small_disk(12 << 20, "a disk full of the cache's own data") else { return };
    s3.put("much/0", vec![7; 20_000_000]);
    let (much, next) = (s3.uri("much"), put_raw(&s3, "next", 1));
    let server = on_small_disk(&s3, &disk).start();
    let load = |uri: &str| cached(&server, &["load", "--raw", uri]);
    let refused = load(&much).end().expect_failure();
    assert!(refused.contains("the disk of a cache directory is full: free "), "{refused}");
    assert!(!refused.contains("--cache-bytes"), "the limit is not at fault: {refused}");
    assert_eq!(health_of_dir(&server), "full");
    let loaded = json(load(&next));
    assert!(counter(&server, "evictions") > 0);
    assert_eq!((&loaded["blocks_held"], &loaded["dirs_full"]), (&1.into(), &Value::Null), "{loaded}");
    // Freed room is there for others at once.
    let freed = json(cached(&server, &["free", &much]));
    assert!(freed["segments"].as_u64() >= Some(1), "{freed}");
    let evicted = counter(&server, "evictions");
    let other = put_raw(&s3, "other", 4);
    assert_eq!(json(load(&other))["blocks_held"], 4);
    assert_eq!(counter(&server, "evictions"), evicted);
    let told = server.log().lines().filter(|line| line.contains("could not be stored")).count();
    assert_eq!(told, 1, "{}", server.log());
    // Of objects that push each other out, those count that are left at the end.
    let many = put_raw(&s3, "many", 20);
    let ended = cached(&server, &["load", "--raw", &many, "--json"]).end();
    let loaded: Value = serde_json::from_slice(&ended.stdout).expect("JSON");
    let refused = ended.expect_failure();
    assert!(refused.contains(" of 20 blocks: the disk of a cache directory is full: free "), "{refused}");
    let held = json(cached(&server, &["free", &many]));
    assert_eq!((&loaded["blocks_held"], &loaded["dirs_full"]), (&held["segments"], &1.into()), "{loaded}");
    server.stop();
}

#[test]
fn a_node_starts_on_a_disk_that_others_have_filled_and_serves_what_it_holds() {
    let s3 = S3Server::start();
    let Some(disk) = small_disk(6 << 20, "a start on a full disk") else { return };
    let (held, next) = (put_raw(&s3, "held", 3), put_raw(&s3, "next", 1));
    let mut server = on_small_disk(&s3, &disk).start();
    let load = |server: &Server, uri: &str| json(cached(server, &["load", "--raw", uri]));
    assert_eq!(load(&server, &held)["blocks_held"], 3);
    server.kill();
    let others = disk.folder().join("others");
    let filled = std::fs::write(&others, vec![1; 6 << 20]).expect_err("more than the disk has");
    assert_eq!(filled.kind(), std::io::ErrorKind::StorageFull);
    let server = on_small_disk(&s3, &disk).start();
    assert_eq!(health_of_dir(&server), "full");
    let again = load(&server, &held);
    assert_eq!((&again["blocks_held"], &again["s3_bytes"]), (&3.into(), &0.into()), "{again}");
    cached(&server, &["pin", &s3.uri("held/0")]).end().expect_success();
    assert_eq!(load(&server, &next)["blocks_held"], 1, "an older one leaves");
    assert!(server.log().contains("free room there"), "{}", server.log());
    // Room comes back, and is found: for all four blocks.
    std::fs::remove_file(&others).expect("remove");
    let is_held = |uri: &str| {
        let ended = cached(&server, &["load", "--raw", uri, "--json"]).end();
        let said = serde_json::from_slice::<Value>(&ended.stdout);
        ended.code == Some(0) && said.is_ok_and(|said| said["s3_bytes"] == 0)
    };
    until("all of it is held", || is_held(&held) && is_held(&next));
    server.stop();
}
