//! The order of samples depends on the plan alone; an epoch takes its bytes from S3 once, and then nothing.

use std::collections::HashMap;
use std::ops::Range;

use forebay_client::loader::{Event, Loader, LoaderSettings};
use forebay_client::{Access, Dataset, DatasetSpec};
use forebay_proto::digest::{ContentDigest, OrderDigest};
use forebay_tests::harness::mnist;
use forebay_tests::harness::ports::free_addresses;
use forebay_tests::harness::process::{Running, Server, ServerOptions};
use forebay_tests::harness::s3::S3Server;
use forebay_tests::harness::seen::SeenRequest;
use forebay_tests::harness::slow::{SlowProxy, Slowness};
use serde_json::Value;

use crate::commands::{cached, counter, digests, direct, epoch, json, missed, until};

/// Divisible by every number of ranks below.
const BATCH: &str = "48";

/// Segments of two row groups of MNIST: five in the test split, so that windows matter.
const SEGMENT_BYTES: &str = "2500000";

fn upload(split: &str) -> (S3Server, String) {
    let s3 = S3Server::start();
    let prefix = format!("mnist/{split}");
    mnist::upload_folder(&s3, &mnist::folder().join(split), &prefix).expect("read MNIST");
    let uri = s3.uri(&prefix);
    (s3, uri)
}

#[test]
fn the_order_depends_on_neither_the_ranks_nor_the_cache() {
    let (s3, uri) = upload("test");
    let server = ServerOptions::for_s3(&s3).start();
    let line = |more: &[&str]| {
        let line =
            ["epoch", "--verify", &uri, "--batch", BATCH, "--segment-bytes", SEGMENT_BYTES, "--window", "2"];
        [&line, more].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let through = |more: &[&str]| -> Value {
        json(cached(&server, &line(more).iter().map(String::as_str).collect::<Vec<_>>()))
    };
    let directly = |more: &[&str]| -> Value {
        json(direct(&s3, &line(more).iter().map(String::as_str).collect::<Vec<_>>()))
    };

    let cold = through(&["--epochs", "2", "--seed", "3"]);
    assert_eq!(epoch(&cold, 0, "source"), "s3");
    assert_eq!(epoch(&cold, 0, "samples"), mnist::TEST_SAMPLES);
    let wanted = [digests(&cold, 0), digests(&cold, 1)];
    assert_ne!(wanted[0], wanted[1], "epochs differ");
    for world in ["1", "2", "3", "4", "6", "8", "16"] {
        let warm = through(&["--epochs", "2", "--seed", "3", "--world", world]);
        assert_eq!(epoch(&warm, 0, "source"), "cache");
        assert_eq!([digests(&warm, 0), digests(&warm, 1)], wanted, "{world} ranks");
    }
    for world in ["1", "4"] {
        let answer = directly(&["--seed", "3", "--world", world]);
        assert_eq!(digests(&answer, 0), wanted[0], "{world} ranks without a cache");
    }
    // The digest covers samples and positions: neither other batches nor another ending of whole batches
    // change it.
    assert_eq!(digests(&through(&["--seed", "3", "--ending", "exact"]), 0), wanted[0]);
    assert_ne!(digests(&through(&["--seed", "4"]), 0), wanted[0], "seeds differ");
    let file_order =
        json(cached(&server, &["epoch", "--verify", &uri, "--shuffle", "none", "--batch", BATCH]));
    let other_cut =
        json(cached(&server, &["epoch", "--verify", &uri, "--shuffle", "none", "--batch", "250"]));
    assert_eq!(digests(&file_order, 0), digests(&other_cut, 0), "file order knows no batches");
    server.stop();
}

#[test]
fn three_nodes_share_a_dataset_and_keep_its_order() {
    let (s3, uri) = upload("train");
    let alone = ServerOptions::for_s3(&s3).start();
    let common = ["epoch", "--verify", &uri, "--batch", BATCH, "--segment-bytes", SEGMENT_BYTES];
    let line = [&common[..], &["--world", "2", "--epochs", "2"]].concat();
    let one = json(cached(&alone, &line));
    alone.stop();
    let addresses = free_addresses(3).expect("free ports");
    let urls: Vec<String> = addresses.iter().map(|address| format!("http://{address}")).collect();
    let start = |address: &String| {
        let options = ServerOptions::for_s3(&s3).args(["--listen", address]);
        options.args(urls.iter().flat_map(|url| ["--cluster-node", url.as_str()])).start()
    };
    let nodes: Vec<_> = addresses.iter().map(start).collect();
    s3.take_log();
    let three = json(cached(&nodes[0], &line));
    for e in 0..2 {
        assert_eq!(digests(&three, e), digests(&one, e), "epoch {e}");
    }
    let (cold, projected) = (s3.take_log(), three["projected_bytes"].as_u64().expect("a number"));
    let shares: Vec<u64> = nodes.iter().map(|n| counter(n, "s3_bytes")).collect();
    // From another node's point of view, by other ranks: the same.
    let again = json(cached(&nodes[2], &[&common[..], &["--world", "3"]].concat()));
    assert_eq!(digests(&again, 0), digests(&one, 0));
    let warm = data_requests(&s3, &s3.take_log());
    let passed_over = missed(&nodes);
    nodes.into_iter().for_each(Server::stop);
    assert!(shares.iter().all(|&s| s > 0), "each node has its share: {shares:?}");
    if passed_over == 0 {
        fetched_once(&s3, &cold, projected).expect("each byte once");
        assert_eq!(shares.iter().sum::<u64>(), projected, "{shares:?}");
        assert!(warm.is_empty(), "fetched again: {warm:?}");
    }
    let ranges = data_requests(&s3, &cold).into_values().chain(warm.into_values()).flatten();
    let fetched: u64 = ranges.map(|range| range.end - range.start).sum();
    let most = projected * 51 / 50 + passed_over * SEGMENT_BYTES.parse::<u64>().expect("a number");
    assert!(fetched <= most, "{fetched} bytes of {projected}, {passed_over} segments of silent nodes");
}

#[test]
fn four_ranks_at_once_cost_the_store_each_byte_once() {
    let (s3, uri) = upload("train");
    let server = ServerOptions::for_s3(&s3).start();
    let ranks: Vec<_> = (0..4)
        .map(|rank| {
            let line = ["epoch", "--verify", &uri, "--json", "--batch", BATCH, "--world", "4"];
            cached(&server, &line).args(["--rank", &rank.to_string()]).start()
        })
        .collect();
    let answers: Vec<Value> = ranks
        .into_iter()
        .map(|rank| serde_json::from_slice(&rank.end().expect_success()).expect("JSON"))
        .collect();
    let cold = s3.take_log();
    let projected = answers[0]["projected_bytes"].as_u64().expect("a number");
    fetched_once(&s3, &cold, projected).expect("each byte once");

    let samples: u64 = answers.iter().filter_map(|a| epoch(a, 0, "samples").as_u64()).sum();
    assert_eq!(samples, mnist::TRAIN_SAMPLES);
    let (mut order, mut content) = (OrderDigest::default(), ContentDigest::default());
    for own in answers.iter().map(|answer| digests(answer, 0)) {
        order.merge(own.0.parse().expect("hex"));
        content.merge(own.1.parse().expect("hex"));
    }
    let one = json(cached(&server, &["epoch", "--verify", &uri, "--batch", BATCH]));
    assert_eq!(
        (order.to_string(), content.to_string()),
        digests(&one, 0),
        "four processes see what one sees"
    );
    assert_eq!(epoch(&one, 0, "s3_requests"), 0);
    assert_eq!(counter(&server, "s3_bytes"), projected, "the node counts the same");
    assert!(data_requests(&s3, &s3.take_log()).is_empty(), "a second run reads no column data");
    server.stop();
}

#[test]
fn fewer_columns_cost_fewer_bytes() {
    let (s3, uri) = upload("test");
    let server = ServerOptions::for_s3(&s3).start();
    let labels = json(cached(&server, &["epoch", "--verify", &uri, "--columns", "label"]));
    let few = labels["projected_bytes"].as_u64().expect("a number");
    fetched_once(&s3, &s3.take_log(), few).expect("the labels");
    let all = json(cached(&server, &["epoch", "--verify", &uri]));
    let many = all["projected_bytes"].as_u64().expect("a number");
    assert!(few * 10 < many, "{few} of {many} bytes");
    // The labels are there already: only the images are fetched, in ranges that span the few bytes of labels
    // between.
    fetched_once(&s3, &s3.take_log(), many - few).expect("the images");
    server.stop();
}

#[test]
fn a_warm_epoch_asks_the_store_for_nothing_at_all() {
    let (s3, uri) = upload("test");
    let server = ServerOptions::for_s3(&s3).start();
    let access = Access::endpoint(&server.endpoint).expect("an endpoint");
    let runtime = tokio::runtime::Runtime::new().expect("start a runtime");
    runtime.block_on(async {
        let spec = DatasetSpec { uri: uri.clone(), ..Default::default() };
        let dataset = Dataset::open(&access, &spec).await.expect("open");
        let settings = LoaderSettings { epochs: Some(3), global_batch: 500, ..Default::default() };
        let mut loader = Loader::start(&dataset, settings).expect("start");
        let mut ends = 0;
        while let Some(event) = loader.next().await.expect("next") {
            if let Event::EpochEnd(summary) = event {
                assert_eq!(summary.samples, mnist::TEST_SAMPLES);
                let log = s3.take_log();
                assert_eq!(log.is_empty(), ends > 0, "epoch {ends}: {log:?}");
                ends += 1;
            }
        }
        assert_eq!(ends, 3);
    });
    server.stop();
}

/// Column data was fetched in ranges that do not overlap and come to `projected` bytes, within 2 %.
fn fetched_once(s3: &S3Server, log: &[SeenRequest], projected: u64) -> Result<(), String> {
    let requests = data_requests(s3, log);
    let mut fetched = 0;
    for (key, mut ranges) in requests {
        ranges.sort_by_key(|range| range.start);
        for pair in ranges.windows(2) {
            if pair[0].end > pair[1].start {
                return Err(format!("{key}: {:?} and {:?} overlap", pair[0], pair[1]));
            }
        }
        fetched += ranges.iter().map(|range| range.end - range.start).sum::<u64>();
    }
    let share = fetched as f64 / projected as f64;
    match (0.98..=1.02).contains(&share) {
        true => Ok(()),
        false => Err(format!("{fetched} bytes for {projected} projected ones: {share}")),
    }
}

/// The ranges of column data in a log, by key. Footers are at the end of an object, where no column data is.
fn data_requests(s3: &S3Server, log: &[SeenRequest]) -> HashMap<String, Vec<Range<u64>>> {
    let mut ranges: HashMap<String, Vec<Range<u64>>> = HashMap::new();
    for seen in log.iter().filter(|seen| seen.is_object_get()) {
        let size = s3.objects().get(&s3.bucket, &seen.key).expect("the object").len() as u64;
        let Some(range) = seen.range_bytes() else { continue };
        assert_eq!(seen.status, 206, "{seen:?}");
        assert!(seen.if_match.is_some(), "a version is named: {seen:?}");
        if range.end < size {
            ranges.entry(seen.key.clone()).or_default().push(range);
        }
    }
    ranges
}

#[test]
fn loads_and_jobs_beside_each_other_count_each_what_it_fetched() {
    let (s3, train) = upload("train");
    mnist::upload_folder(&s3, &mnist::folder().join("test"), "mnist/test").expect("read MNIST");
    let test = s3.uri("mnist/test");
    // The 10.6 MB take more than 5 s, in which the others read.
    let slow = SlowProxy::start(&s3.endpoint, Slowness { total_mb_s: 2.0, ..Slowness::none() });
    let server = ServerOptions::for_endpoint(&s3, &slow.endpoint).start();
    let load = |uri: &str| cached(&server, &["load", uri, "--segment-bytes", SEGMENT_BYTES]).arg("--json");

    let job = cached(&server, &["epoch", &train, "--segment-bytes", SEGMENT_BYTES, "--batch", BATCH]);
    let mut job = job.arg("--json").start();
    until("the job reads", || counter(&server, "s3_bytes") > 0);
    let both = [load(&test).start(), load(&test).start()];
    let loaded = both.map(|run| answer(run)["s3_bytes"].as_u64().expect("a number of bytes"));
    assert!(job.is_running(), "the job reads all the time");
    let read = answer(job)["projected_bytes"].as_u64();
    let of_test = json(direct(&s3, &["epoch", &test, "--batch", BATCH]))["projected_bytes"].as_u64();
    assert_eq!(
        Some(loaded.iter().sum()),
        of_test,
        "a segment counts for the load that fetched it: {loaded:?}"
    );
    assert_eq!(read.zip(of_test).map(|(a, b)| a + b), Some(counter(&server, "s3_bytes")));
    assert_eq!(json(cached(&server, &["load", &train, "--segment-bytes", SEGMENT_BYTES]))["s3_bytes"], 0);
    server.stop();
}

/// What a command has answered in JSON, once it ends.
fn answer(run: Running) -> Value {
    serde_json::from_slice(&run.end().expect_success()).expect("JSON")
}
