//! Who waits for data is told for what: the object store, a node that is gone, a cache that is too small.

use forebay_tests::harness::fault::Fault;
use forebay_tests::harness::mnist;
use forebay_tests::harness::process::{Ended, Run, Server, ServerOptions};
use forebay_tests::harness::s3::S3Server;
use forebay_tests::harness::slow::{SlowProxy, Slowness};
use std::thread;
use std::time::{Duration, Instant};

use crate::commands::{cached, direct};

/// What an object store that says nothing is called.
const SILENT: &str = "the object store has given";

fn store() -> (S3Server, String) {
    let s3 = S3Server::start();
    mnist::upload_folder(&s3, &mnist::folder().join("test"), "mnist").expect("read MNIST");
    let uri = s3.uri("mnist");
    (s3, uri)
}

/// Column data comes this much late, once for each object and reader.
fn late(s3: &S3Server, by: Duration) {
    s3.inject(Box::new(move |seen| {
        let is_data = seen.is_object_get() && seen.range_bytes().is_some_and(|range| range.start < 64);
        is_data.then_some(Fault::Delay(by))
    }));
}

fn told(ended: &Ended, says: &[&str]) -> bool {
    ended.stderr.lines().any(|line| says.iter().all(|text| line.contains(text)))
}

fn trainer(server: &Server, uri: &str, line: &[&str]) -> Run {
    let run = Run::new("forebay-train").args(["--endpoint", &server.endpoint, "--train", uri]);
    run.args(["--data-only", "--batch", "500"]).args(line).envs([("OMP_NUM_THREADS", "1")])
}

#[test]
fn a_store_that_says_nothing_is_named_by_all_who_wait_for_it() {
    let (s3, uri) = store();
    let servers = [(); 3].map(|()| ServerOptions::for_s3(&s3).start());
    late(&s3, Duration::from_secs(9));
    let runs: [(&str, Run); 4] = [
        ("epoch", cached(&servers[0], &["epoch", &uri])),
        ("load", cached(&servers[1], &["load", &uri])),
        ("train", trainer(&servers[2], &uri, &["--epochs", "1"])),
        ("direct", direct(&s3, &["epoch", &uri])),
    ];
    thread::scope(|scope| {
        let running = runs.map(|(name, run)| (name, scope.spawn(move || run.end())));
        for (name, run) in running {
            let ended = run.join().expect("a run");
            assert_eq!(ended.code, Some(0), "{name}: {}", ended.stderr);
            let whom = if name == "direct" { SILENT } else { "the object store has given node" };
            assert!(told(&ended, &["no data for 5 s", whom]), "{name}: {}", ended.stderr);
        }
    });
    servers.into_iter().for_each(Server::stop);
}

#[test]
fn a_long_epoch_says_how_far_it_is() {
    let (s3, uri) = store();
    // The 1.7 MB take more than 10 s, after which it is said for the first time.
    let slow = SlowProxy::start(&s3.endpoint, Slowness { total_mb_s: 0.12, ..Slowness::none() });
    let server = ServerOptions::for_endpoint(&s3, &slow.endpoint).start();
    let line = ["epoch", &uri, "--segment-bytes", "500000", "--batch", "100", "--shuffle", "none"];
    let ended = cached(&server, &line).end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let done = |line: &str| {
        let (done, all) = line.strip_prefix("forebay: epoch 0: ")?.split_once(" of ")?;
        assert_eq!(all, "10,000 samples");
        done.replace(',', "").parse::<u64>().ok()
    };
    let told: Vec<u64> = ended.stderr.lines().filter_map(done).collect();
    assert!(told.is_sorted() && told.first().is_some_and(|first| *first < 10_000), "{}", ended.stderr);
    // An epoch that is soon over says nothing.
    let ended = cached(&server, &line).end();
    assert_eq!(ended.stderr.lines().filter_map(done).count(), 0, "{}", ended.stderr);
    server.stop();
}

#[test]
fn a_node_that_stands_still_is_named() {
    let (s3, uri) = store();
    let server = ServerOptions::for_s3(&s3).start();
    late(&s3, Duration::from_secs(3));
    s3.take_log();
    let run = cached(&server, &["epoch", &uri]).start();
    let began = Instant::now();
    // It is open, and its data is asked for.
    while !s3.log().iter().any(|seen| seen.is_object_get()) {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing is read");
        thread::sleep(Duration::from_millis(20));
    }
    thread::sleep(Duration::from_secs(1));
    server.pause();
    thread::sleep(Duration::from_secs(12));
    server.resume();
    let ended = run.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(told(&ended, &["no data for", "no node of the cache answers"]), "{}", ended.stderr);
    server.stop();
}

#[test]
fn a_cache_too_small_for_its_job_is_told_once_with_the_size_that_would_do() {
    let (s3, uri) = store();
    let too_small = |ended: &Ended| {
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let says = ["the cache is too small for this job", "S3 again", "in all: give them", "--cache-bytes"];
        let is_told = |line: &&str| says.iter().all(|text| line.contains(text));
        ended.stderr.lines().filter(is_told).count()
    };
    for cache_bytes in ["6MB", "1GB"] {
        // Memory does not stand in for the disk.
        let room = ["--cache-bytes", cache_bytes, "--memory-bytes", "64MB"];
        let server = ServerOptions::for_s3(&s3).args(room).allow_log("neither the cache nor memory").start();
        let expected = usize::from(cache_bytes == "6MB");
        let line = ["epoch", &uri, "--epochs", "3", "--shuffle", "none"];
        let ended = cached(&server, &line).end();
        assert_eq!(too_small(&ended), expected, "{cache_bytes}: {}", ended.stderr);
        let line = ["--epochs", "4", "--shuffle", "none"];
        let ended = trainer(&server, &uri, &line).end();
        assert_eq!(too_small(&ended), expected, "{cache_bytes}: {}", ended.stderr);
        server.stop();
    }
}
