//! A disk that does not answer, and one that fails, under a node that runs: readers go on from
//! S3 or from other nodes, and the disk is used again when it is back.

use forebay_tests::harness::mnist;
use forebay_tests::harness::process::{Run, Server, ServerOptions};
use forebay_tests::harness::s3::S3Server;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::commands::{cached, digest, json};

/// A node whose cache directory lies on a disk that does as it is told.
struct Stage {
    s3: S3Server,
    uri: String,
    server: Server,
    control: PathBuf,
    _folder: tempfile::TempDir,
}

/// The library that stands between the node and its disk.
fn shim(folder: &Path) -> PathBuf {
    let library = folder.join("hang.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/shim/hang.c");
    let cc = Run::program("cc", "cc").args(["-shared", "-fPIC", "-O1", "-Wall", "-o"]);
    cc.arg(&library).args([source, "-ldl"]).end().expect_success();
    library
}

impl Stage {
    fn start() -> Self {
        let s3 = S3Server::start();
        mnist::upload_folder(&s3, &mnist::folder().join("test"), "mnist").expect("read MNIST");
        let folder = tempfile::tempdir().expect("make a folder");
        let (cache, control) = (folder.path().join("cache"), folder.path().join("control"));
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let server = ServerOptions::for_s3(&s3)
            .args(["--cache-dir", &text(&cache)])
            .env("LD_PRELOAD", &text(&shim(folder.path())))
            .env("HANG_DIR", &text(&cache))
            .env("HANG_CONTROL", &text(&control))
            .allow_log("is set aside")
            .allow_log("a segment file is damaged")
            .allow_log("could not be")
            .start();
        let uri = s3.uri("mnist");
        Self { s3, uri, server, control, _folder: folder }
    }

    fn epoch(&self) -> Value {
        json(cached(&self.server, &["epoch", &self.uri, "--batch", "100", "--verify"]))
    }

    /// Objects' data that was read from S3 since this was asked last.
    fn gets(&self) -> usize {
        self.s3.take_log().iter().filter(|seen| seen.if_match.is_some() && seen.bytes > 0).count()
    }

    /// Waits until the node's log says so once more than `before` times.
    fn wait_for(&self, what: &str, before: usize) {
        let began = Instant::now();
        while self.server.log().matches(what).count() <= before {
            assert!(began.elapsed() < Duration::from_secs(90), "no `{what}`: {}", self.server.log());
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn threads(&self) -> usize {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.server.pid())).expect("threads");
        tasks.count()
    }
}

fn same(a: &Value, b: &Value) {
    assert_eq!(digest(a, 0), digest(b, 0));
    assert_eq!(a["epochs"][0]["content_digest"], b["epochs"][0]["content_digest"]);
}

#[test]
fn readers_go_on_while_the_disk_hangs_and_it_is_used_again_when_it_answers() {
    let stage = Stage::start();
    let cold = stage.epoch();
    stage.gets();
    same(&cold, &stage.epoch());
    assert_eq!(stage.gets(), 0, "it is warm");
    let threads = stage.threads();
    for round in 0..2 {
        std::fs::write(&stage.control, "hang").expect("write");
        // Without a disk it is read from S3 again.
        same(&cold, &stage.epoch());
        assert!(stage.gets() > 0);
        stage.wait_for("hangs and is set aside", round);
        same(&cold, &stage.epoch());
        let lost = stage.threads().saturating_sub(threads);
        assert!(lost < 40, "{lost} threads more");
        std::fs::remove_file(&stage.control).expect("remove");
        stage.wait_for("a cache directory works again", round);
        same(&cold, &stage.epoch());
    }
    stage.gets();
    same(&cold, &stage.epoch());
    assert_eq!(stage.gets(), 0, "it is warm again");
    stage.server.stop();
}

#[test]
fn a_disk_that_fails_with_errors_under_its_readers_costs_only_what_it_holds() {
    let stage = Stage::start();
    let cold = stage.epoch();
    std::fs::write(&stage.control, "eio").expect("write");
    same(&cold, &stage.epoch());
    stage.wait_for("fails and is set aside", 0);
    std::fs::remove_file(&stage.control).expect("remove");
    stage.wait_for("a cache directory works again", 0);
    same(&cold, &stage.epoch());
    stage.server.stop();
}
