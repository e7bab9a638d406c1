//! What a run survives without an error: a cache node that dies and comes back, a disk that is
//! damaged, a cache too small for the data, an S3 that throttles and breaks off.

use std::path::Path;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use forebay_client::rows::{RowStream, scan, take};
use forebay_client::{Access, Dataset, DatasetSpec, Kind, Result};
use forebay_tests::bench::disk::folder::files_under;
use forebay_tests::harness::fault::{self, Fault};
use forebay_tests::harness::mnist;
use forebay_tests::harness::ports::free_address;
use forebay_tests::harness::process::{Running, Server, ServerOptions};
use forebay_tests::harness::s3::S3Server;
use forebay_tests::harness::slow::{SlowProxy, Slowness};
use futures::TryStreamExt;
use serde_json::Value;

use crate::commands::{cached, counter, digests, direct, epoch, json, rows, until};
use crate::fixtures::{self, Comparison};
use crate::refused::{check, is_about_waiting};

pub fn store() -> (S3Server, String) {
    let s3 = S3Server::start();
    mnist::upload(&s3).expect("read MNIST");
    let uri = s3.uri("mnist/train/");
    (s3, uri)
}

fn parse(json: &[u8]) -> Value {
    serde_json::from_slice(json).expect("JSON")
}

/// One epoch by four ranks, in the middle of which the node is ended.
struct Interrupted {
    s3: S3Server,
    uri: String,
    slow: SlowProxy,
    folder: tempfile::TempDir,
    address: String,
}

impl Interrupted {
    /// Starts the epoch, and ends the node by `end` when more than half of the data has come.
    fn by(end: impl FnOnce(Server)) -> (Self, Running) {
        let (s3, uri) = store();
        // 10.6 MB take four seconds.
        let slow = SlowProxy::start(&s3.endpoint, Slowness { total_mb_s: 2.6, ..Slowness::none() });
        let folder = tempfile::tempdir().expect("make a folder");
        let address = free_address().expect("a free port");
        let server = node(&s3, &slow, folder.path()).args(["--listen", &address]).start();
        let mut run = cached(&server, &Self::line(&uri)).arg("--json").start();
        until("most of the data", || slow.passed().object_bytes > 6_000_000);
        assert!(run.is_running());
        end(server);
        std::thread::sleep(Duration::from_millis(700));
        assert!(run.is_running(), "it waits for the node");
        (Self { s3, uri, slow, folder, address }, run)
    }

    fn line(uri: &str) -> [&str; 7] {
        ["epoch", "--verify", uri, "--world", "4", "--segment-bytes", "2000000"]
    }

    /// Starts the node again, at the same address and with the same folder.
    fn restart(&self) -> Server {
        node(&self.s3, &self.slow, self.folder.path()).args(["--listen", &self.address]).start()
    }

    /// The epoch of what lies in the object store now, without a cache.
    fn wanted(&self) -> Value {
        json(direct(&self.s3, &Self::line(&self.uri)))
    }

    /// Waits for the epoch's end, which must be as if nothing had happened.
    fn ends_well(&self, run: Running) -> Value {
        self.ends_as(run, &self.wanted())
    }

    fn ends_as(&self, run: Running, wanted: &Value) -> Value {
        let ended = run.end();
        assert!(ended.stderr.lines().all(is_about_waiting), "{}", ended.stderr);
        let answer = parse(&ended.expect_success());
        assert_eq!(digests(&answer, 0), digests(wanted, 0), "the same samples in the same places");
        assert_eq!(epoch(&answer, 0, "samples"), mnist::TRAIN_SAMPLES);
        answer
    }
}

fn node(s3: &S3Server, slow: &SlowProxy, folder: &Path) -> ServerOptions {
    // Few requests at once: some segments are complete while others are not begun.
    ServerOptions::for_endpoint(s3, &slow.endpoint).folder(folder).env("FOREBAY_SOURCE__S3_MAX_REQUESTS", "4")
}

#[test]
fn a_node_killed_in_mid_epoch_and_restarted_costs_nothing_but_time() {
    let (interrupted, run) = Interrupted::by(|mut server| server.kill());
    let server = interrupted.restart();
    let answer = interrupted.ends_well(run);
    // A segment file is whole or absent after the kill, and a whole one is not fetched again.
    let (again, projected) = (counter(&server, "s3_bytes"), answer["projected_bytes"].as_u64());
    assert!(projected.is_some_and(|all| again < all * 9 / 10), "{again} of {projected:?} bytes came again");
    assert_eq!(counter(&server, "corrupt_segments"), 0);
    server.stop();
}

#[test]
fn what_is_cached_is_opened_without_its_footers_and_also_while_s3_is_gone() {
    let (s3, uri) = store();
    let folder = tempfile::tempdir().expect("make a folder");
    let node = || ServerOptions::for_s3(&s3).folder(folder.path()).args(["--patience-s", "1"]);
    let line = ["epoch", "--verify", &uri];
    let server = node().start();
    let wanted = json(cached(&server, &line));
    server.stop();
    let server = node().start();
    let again = json(cached(&server, &line));
    assert_eq!(
        (digests(&again, 0), &again["projected_bytes"]),
        (digests(&wanted, 0), &wanted["projected_bytes"])
    );
    assert_eq!(
        (counter(&server, "s3_footer_bytes"), counter(&server, "s3_bytes")),
        (0, 0),
        "a listing was enough"
    );
    server.stop();
    s3.inject(fault::lasting(Duration::from_secs(3600), Fault::SlowDown));
    let server = node().allow_log("the object store does not answer").start();
    let gone = json(cached(&server, &line));
    assert_eq!(
        (digests(&gone, 0), &gone["projected_bytes"]),
        (digests(&wanted, 0), &wanted["projected_bytes"])
    );
    server.stop();
}

#[test]
fn a_node_told_to_stop_in_mid_epoch_ends_soon_and_may_come_back() {
    let (interrupted, run) = Interrupted::by(|server| {
        let start = Instant::now();
        server.stop();
        assert!(start.elapsed() < Duration::from_secs(25), "streams get five seconds, then they are ended");
    });
    let server = interrupted.restart();
    interrupted.ends_well(run);
    server.stop();
}

#[test]
fn a_node_that_lost_its_disk_fills_it_again() {
    let (interrupted, run) = Interrupted::by(|mut server| server.kill());
    std::fs::remove_dir_all(interrupted.folder.path().join("cache")).expect("lose the disk");
    let server = interrupted.restart();
    interrupted.ends_well(run);
    server.stop();
}

#[test]
fn an_object_added_while_the_node_was_away_is_no_part_of_the_run() {
    let (interrupted, run) = Interrupted::by(|mut server| server.kill());
    let wanted = interrupted.wanted();
    std::fs::remove_dir_all(interrupted.folder.path().join("cache")).expect("lose the disk");
    let other = std::fs::read(mnist::folder().join("test/part-00000.parquet")).expect("read");
    interrupted.s3.put("mnist/train/part-99999.parquet", other);
    let server = interrupted.restart();
    interrupted.ends_as(run, &wanted);
    let now = json(cached(&server, &["inspect", &interrupted.uri, "--segment-bytes", "2000000"]));
    assert!(now["rows"].as_u64() > Some(mnist::TRAIN_SAMPLES), "who opens it now gets all of it: {now}");
    assert_ne!(now["digest"], wanted["digest"]);
    server.stop();
}

/// How many rows come.
async fn count(rows: Result<RowStream>) -> Result<usize> {
    let batches: Vec<RecordBatch> = rows?.try_collect().await?;
    Ok(batches.iter().map(RecordBatch::num_rows).sum())
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_come_from_a_node_that_lost_its_disk_also_when_objects_were_added() {
    let (s3, uri) = store();
    let folder = tempfile::tempdir().expect("make a folder");
    let address = free_address().expect("a free port");
    let start = || ServerOptions::for_s3(&s3).folder(folder.path()).args(["--listen", &address]).start();
    let mut server = start();
    let access = Access::endpoint(&server.endpoint).expect("an endpoint");
    let dataset = Dataset::open(&access, &DatasetSpec::new(uri)).await.expect("open");
    let other = std::fs::read(mnist::folder().join("test/part-00000.parquet")).expect("read");
    for added in [None, Some("mnist/train/part-99999.parquet")] {
        server.kill();
        std::fs::remove_dir_all(folder.path().join("cache")).expect("lose the disk");
        added.iter().for_each(|key| s3.put(key, other.clone()));
        server = start();
        assert_eq!(count(scan(&dataset, Some(3)).await).await.expect("rows"), 3, "{added:?}");
        let chosen = [mnist::TRAIN_SAMPLES - 1, 0];
        assert_eq!(count(take(&dataset, &chosen).await).await.expect("rows"), 2, "{added:?}");
    }
    server.kill();
    std::fs::remove_dir_all(folder.path().join("cache")).expect("lose the disk");
    s3.put("mnist/train/part-00000.parquet", other);
    server = start();
    let e = count(scan(&dataset, Some(3)).await).await.expect_err("it was overwritten");
    assert_eq!(e.kind, Kind::Changed, "{e}");
    assert!(e.message.contains("overwritten") && e.message.contains("open it again"), "{e}");
    server.stop();
}

#[test]
fn an_object_overwritten_while_the_node_was_away_is_changed() {
    let (interrupted, run) = Interrupted::by(|mut server| server.kill());
    std::fs::remove_dir_all(interrupted.folder.path().join("cache")).expect("lose the disk");
    let other = std::fs::read(mnist::folder().join("test/part-00000.parquet")).expect("read");
    interrupted.s3.put("mnist/train/part-00003.parquet", other);
    let server = interrupted.restart();
    check(run.end(), &["s3://forebay/mnist/train", "overwritten", "start a new run"]);
    server.stop();
}

#[test]
fn a_node_that_comes_and_goes_between_and_within_warm_epochs_is_waited_for() {
    let (s3, uri) = store();
    let folder = tempfile::tempdir().expect("make a folder");
    let address = free_address().expect("a free port");
    let options = || ServerOptions::for_s3(&s3).folder(folder.path()).args(["--listen", &address]);
    let mut server = options().start();
    let line = ["epoch", "--verify", &uri, "--world", "2", "--batch", "48", "--epochs", "80"];
    let mut run = cached(&server, &line).arg("--json").start();
    for _ in 0..3 {
        let served = counter(&server, "rows_served");
        until("rows", || counter(&server, "rows_served") > served);
        assert!(run.is_running());
        server.kill();
        std::thread::sleep(Duration::from_millis(300));
        server = options().start();
    }
    let answer = parse(&run.end().expect_success());
    let wanted = json(cached(&server, &["epoch", "--verify", &uri, "--batch", "48", "--epochs", "80"]));
    for number in 0..80 {
        assert_eq!(digests(&answer, number), digests(&wanted, number), "epoch {number}");
    }
    server.stop();
}

#[test]
fn throttling_and_broken_answers_are_ridden_out() {
    let (s3, uri) = store();
    let wanted = json(direct(&s3, &["epoch", "--verify", &uri]));
    let server = ServerOptions::for_s3(&s3).start();
    s3.inject(fault::first(4, Fault::SlowDown));
    let answer = json(cached(&server, &["epoch", "--verify", &uri]));
    assert_eq!(digests(&answer, 0), digests(&wanted, 0));
    assert!(epoch(&answer, 0, "s3_retries").as_u64() > Some(0), "{answer}");
    cached(&server, &["free", &uri]).end().expect_success();
    s3.inject(fault::share(0.3, 5, Fault::Cut));
    let answer = json(cached(&server, &["epoch", "--verify", &uri]));
    assert_eq!((digests(&answer, 0), epoch(&answer, 0, "source")), (digests(&wanted, 0), &"s3".into()));
    server.stop();
}

#[test]
fn a_cache_too_small_for_the_data_stays_within_its_limit() {
    let (s3, uri) = store();
    let wanted =
        json(direct(&s3, &["epoch", "--verify", &uri, "--epochs", "2", "--segment-bytes", "2000000"]));
    let limit = 12_000_000;
    let server = ServerOptions::for_s3(&s3).args(["--cache-bytes", &limit.to_string()]).start();
    let mut run = cached(
        &server,
        &["epoch", "--verify", &uri, "--epochs", "2", "--segment-bytes", "2000000", "--json"],
    )
    .start();
    let mut most = 0;
    while run.is_running() {
        most = most.max(bytes_under(&server.folder.join("cache")));
        std::thread::sleep(Duration::from_millis(5));
    }
    let answer = parse(&run.end().expect_success());
    // However few looks there were while it ran.
    most = most.max(bytes_under(&server.folder.join("cache")));
    for number in [0, 1] {
        assert_eq!(digests(&answer, number), digests(&wanted, number));
    }
    assert!(most <= limit + 64_000, "{most} bytes of {limit}, manifests apart");
    assert!(most > limit / 2, "it is used: {most}");
    // One job gains nothing by giving one of its segments up for another: what does not fit is not written.
    assert!(counter(&server, "evictions") + counter(&server, "bypassed") > 0);
    server.stop();

    // No segment fits: everything is served without storing it.
    let server = ServerOptions::for_s3(&s3).args(["--cache-bytes", "1MiB"]).start();
    let answer = json(cached(&server, &["epoch", "--verify", &uri, "--segment-bytes", "2000000"]));
    assert_eq!(digests(&answer, 0), digests(&wanted, 0));
    assert_eq!(counter(&server, "disk_bytes_written"), 0);
    server.stop();
}

#[test]
fn a_damaged_segment_file_is_a_miss_and_never_wrong_data() {
    let s3 = S3Server::start();
    let name = "good/row-group-huge";
    let uri = fixtures::upload(&s3, name);
    let folder = tempfile::tempdir().expect("make a folder");
    let options = || ServerOptions::for_s3(&s3).folder(folder.path());
    let server = options().start();
    rows(&server, &uri);
    server.stop();
    let files = files_under(&folder.path().join("cache/v1/segments"));
    assert_eq!(files.len(), 1, "{files:?}");
    let whole = std::fs::read(&files[0]).expect("read");
    let flip = |at: usize| {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        damaged
    };
    for (what, bytes) in [
        ("a flipped bit in its header", flip(40)),
        ("a flipped bit in its data", flip(whole.len() / 2)),
        ("half of it", whole[..whole.len() / 2].to_vec()),
        ("nothing of it", Vec::new()),
    ] {
        std::fs::write(&files[0], bytes).expect("damage the file");
        let server = options().allow_log("a segment file is damaged: removed").start();
        let mut comparison = Comparison::new();
        comparison.add(fixtures::folder(name), &rows(&server, &uri));
        comparison.check(&[]);
        assert_eq!(counter(&server, "corrupt_segments"), 1, "{what}");
        assert!(counter(&server, "s3_requests") > 0, "{what}");
        server.stop();
    }
}

fn bytes_under(folder: &Path) -> u64 {
    // Files may go between being listed and being asked.
    files_under(folder).iter().filter_map(|file| std::fs::metadata(file).ok()).map(|m| m.len()).sum()
}
