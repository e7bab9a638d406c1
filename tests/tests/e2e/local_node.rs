//! A node of a user's own: what the commands start for `--endpoint local`, and its end when it is idle. The
//! rest of it is tested from Python (`python/tests/test_local_node.py`).

use crate::commands::{cached, digest, direct, epoch, json};
use forebay_tests::harness::mnist;
use forebay_tests::harness::process::{Run, ServerOptions};
use forebay_tests::harness::s3::{REGION, S3Server};
use std::path::Path;
use std::time::{Duration, Instant};

fn stage() -> (S3Server, String) {
    let s3 = S3Server::start();
    mnist::upload(&s3).expect("read MNIST");
    let uri = s3.uri("mnist/test/");
    (s3, uri)
}

/// `forebay ARGUMENTS` through a node that is started in `folder`, and ends soon after.
fn local(folder: &Path, arguments: &[&str]) -> Run {
    of_its_own(Run::new("forebay").args(arguments), folder)
}

/// With such a node.
fn of_its_own(run: Run, folder: &Path) -> Run {
    let folder = |name: &str| folder.join(name).display().to_string();
    run.args(["--endpoint", "local"]).envs([
        ("FOREBAY_RUNTIME_DIR", folder("run")),
        ("FOREBAY_CACHE_DIR", folder("cache")),
        ("FOREBAY_CACHE_BYTES", "500MB".into()),
        ("FOREBAY_MEMORY_BYTES", "128MiB".into()),
        ("FOREBAY_IDLE_S", "3".into()),
    ])
}

/// The sockets of running nodes.
fn sockets(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder.join("run")).expect("the folder of sockets");
    let names = entries.map(|entry| entry.expect("a file").file_name());
    names.filter(|name| name.to_string_lossy().ends_with(".sock")).count()
}

#[test]
fn commands_share_a_node_of_their_own_which_ends_when_idle() {
    let (s3, uri) = stage();
    let folder = tempfile::tempdir().expect("a folder");
    let store = ["--s3-endpoint", &s3.endpoint, "--s3-region", REGION];
    let read = || {
        let run = local(folder.path(), &["epoch", &uri, "--world", "2"]);
        json(run.args(store).envs(s3.credentials()))
    };
    let wanted = json(direct(&s3, &["epoch", &uri, "--world", "2"]));
    s3.take_log();
    let first = read();
    assert_eq!(epoch(&first, 0, "samples"), mnist::TEST_SAMPLES);
    assert_eq!(digest(&first, 0), digest(&wanted, 0));
    assert!(s3.take_log().iter().any(|seen| seen.is_object_get()));
    assert_eq!(digest(&read(), 0), digest(&wanted, 0));
    assert!(!s3.take_log().iter().any(|seen| seen.is_object_get()), "the second command finds it warm");
    assert_eq!(sockets(folder.path()), 1);
    let start = Instant::now();
    while sockets(folder.path()) > 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "the node does not end");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(digest(&read(), 0), digest(&wanted, 0));
    assert!(!s3.take_log().iter().any(|seen| seen.is_object_get()), "what it had cached is there");
}

#[test]
fn a_training_run_on_a_node_of_its_own_sees_the_rows_that_a_filter_leaves() {
    let (s3, uri) = stage();
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report.json").to_string_lossy().into_owned();
    let line = ["--train", &uri, "--where", "label < 5", "--epochs", "1", "--batch", "571", "--seed", "3"];
    let run = of_its_own(Run::new("forebay-train"), folder.path()).args(line).args(["--report", &report]);
    let store = ["--s3-endpoint", &s3.endpoint, "--s3-region", REGION];
    run.args(store).envs(s3.credentials()).envs([("OMP_NUM_THREADS", "1")]).end().expect_success();
    let report = std::fs::read(report).expect("a report");
    let report: serde_json::Value = serde_json::from_slice(&report).expect("the report is JSON");
    // 980 + 1135 + 1032 + 1010 + 982 digits below 5.
    assert_eq!((&report["train_samples"], &report["epochs"][0]["samples"]), (&5139.into(), &5139.into()));
    let line = ["epoch", &uri, "--where", "label < 5", "--batch", "571", "--seed", "3"];
    let wanted = json(direct(&s3, &line));
    assert_eq!(epoch(&wanted, 0, "samples"), 5139);
    assert_eq!(report["epochs"][0]["order_digest"], digest(&wanted, 0), "these rows, in this order");
}

#[test]
fn a_node_ends_when_no_reader_has_been_there_for_so_long() {
    let (s3, uri) = stage();
    let folder = tempfile::tempdir().expect("a folder");
    let listen = format!("unix:{}", folder.path().join("f.sock").display());
    let idle = ["--listen", &listen, "--exit-when-idle-s", "4", "--allow", "s3://", "--allow", "file:///"];
    let mut server = ServerOptions::for_s3(&s3).args(idle).start();
    let answer = json(cached(&server, &["epoch", &uri]));
    assert_eq!(epoch(&answer, 0, "samples"), mnist::TEST_SAMPLES);
    // A reader that is there for longer than that.
    let run = cached(&server, &["epoch", &uri, "--epochs", "1000000"]).start();
    std::thread::sleep(Duration::from_secs(6));
    assert!(server.ended().is_none(), "{}", server.log());
    drop(run);
    let start = Instant::now();
    let status = loop {
        if let Some(status) = server.ended() {
            break status;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "it does not end: {}", server.log());
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(status.success() && server.log().contains("no reader for so long"), "{}", server.log());
    assert!(!folder.path().join("f.sock").exists());
}

#[test]
fn all_buckets_are_not_served_to_others() {
    let s3 = S3Server::start();
    let refused = ServerOptions::for_s3(&s3).args(["--allow", "s3://"]).try_start();
    let e = format!("{:#}", refused.err().expect("a node that others can reach"));
    assert!(e.contains("all buckets only with --listen unix:"), "{e}");
}
