//! Readers that go on when nodes and etcd fail: `make bench-cluster` in short, and the object store as the
//! last resort.

use clap::Parser;
use forebay_tests::bench::cluster;
use forebay_tests::harness::mnist;
use forebay_tests::harness::process::ServerOptions;
use forebay_tests::harness::s3::{REGION, S3Server};

use crate::commands::{cached, digests, epoch, json};

#[test]
fn whatever_fails_the_samples_are_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().to_str().expect("a path of text");
    let stages = "kills,etcd,cuts";
    // `make bench-cluster` measures how soon it all happens. But a reader that went on only when its node is
    // back, or its patience of 60 s is over, fails here: it may wait 5 s for a dead node that is away for 20
    // and while it comes back, 10 s for one that is silent for 30, 5 s for one that is cut off from etcd,
    // from clients or from other nodes for 15, and 2.5 s while etcd is away. From S3 may come what nodes did
    // not get from others in time, as they count it (docs/runbook.md), half of what such a node owned at
    // most; and all that a node owns which is cut off from etcd, once more, as nobody knows it then.
    let short = ["--kills", "2", "--down-s", "20", "--silence-s", "30", "--cut-s", "15"];
    let short = [&short[..], &["--etcd-down-s", "12", "--slack", "5"]].concat();
    let line = ["x", "--only", stages, "--folder", folder].into_iter().chain(short);
    assert!(cluster::run(&cluster::ClusterOptions::parse_from(line)).expect("the short benchmark"));
}

#[test]
fn without_any_node_rows_come_from_the_store() {
    let s3 = S3Server::start();
    mnist::upload(&s3).expect("read MNIST");
    let uri = s3.uri("mnist/test");
    let mut server = ServerOptions::for_s3(&s3).start();
    let wanted = digests(&json(cached(&server, &["epoch", "--verify", &uri])), 0);
    server.kill();
    let fallback = ["--fallback", "direct", "--s3-endpoint", &s3.endpoint, "--s3-region", REGION];
    let line = [&["epoch", "--verify", uri.as_str()][..], &fallback].concat();
    let answer = json(cached(&server, &line).envs(s3.credentials()));
    assert_eq!((digests(&answer, 0), epoch(&answer, 0, "samples")), (wanted, &mnist::TEST_SAMPLES.into()));
    let why = cached(&server, &["epoch", "--verify", &uri]).end().expect_failure();
    assert!(why.contains("cannot reach the cache"), "{why}");
}
