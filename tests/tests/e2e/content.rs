//! The content digest of an epoch: the same through the cache, without it, by any ranks and from any nodes,
//! and the one that a script computes from the Parquet files by pyarrow alone.

use forebay_tests::harness::mnist;
use forebay_tests::harness::ports::free_addresses;
use forebay_tests::harness::process::{Server, ServerOptions};
use forebay_tests::harness::s3::S3Server;
use serde_json::Value;

use crate::commands::{cached, direct, epoch, json};
use crate::fixtures;

/// Small enough for several segments, so that windows matter.
const SEGMENT_BYTES: &str = "20000";

/// Every kind of type. Those of `good/nothing` have nothing but nulls.
const DATASETS: [&str; 9] = [
    "good/decimals",
    "good/dictionaries",
    "good/fixed-lists",
    "good/many-files",
    "good/nested",
    "good/nothing",
    "good/primitives",
    "good/strings",
    "good/temporal",
];

fn content(answer: &Value, number: usize) -> String {
    epoch(answer, number, "content_digest").as_str().expect("a digest is text").to_owned()
}

#[test]
fn every_way_to_read_an_epoch_gives_the_content_digest_that_pyarrow_gives() {
    let s3 = S3Server::start();
    let addresses = free_addresses(3).expect("free ports");
    let urls: Vec<String> = addresses.iter().map(|address| format!("http://{address}")).collect();
    let cluster = |address: &String| {
        let options = ServerOptions::for_s3(&s3).args(["--listen", address]);
        options.args(urls.iter().flat_map(|url| ["--cluster-node", url.as_str()])).start()
    };
    let nodes: Vec<_> = addresses.iter().map(cluster).collect();
    let alone = ServerOptions::for_s3(&s3).start();
    for name in DATASETS {
        let uri = fixtures::upload(&s3, name);
        for shuffle in ["none", "window(2)"] {
            let run = ["--shuffle", shuffle, "--seed", "5", "--segment-bytes", SEGMENT_BYTES];
            let expected = by_pyarrow(&alone, name, &uri, &run);
            let line =
                |more: &[&'static str]| [&["epoch", &uri, "--verify"], &run[..], more].concat().join("\n");
            let same = |answer: Value, how: &str| {
                assert_eq!(content(&answer, 0), expected, "{name}, {shuffle}, {how}");
            };
            let words = |line: &str| line.split('\n').map(str::to_owned).collect::<Vec<_>>();
            let through = |server: &Server, line: String| {
                let words = words(&line);
                json(cached(server, &words.iter().map(String::as_str).collect::<Vec<_>>()))
            };
            same(through(&alone, line(&["--batch", "48"])), "cold");
            same(through(&alone, line(&["--batch", "30", "--ending", "exact"])), "warm, other batches");
            same(through(&nodes[0], line(&["--batch", "48", "--world", "2"])), "three nodes, two ranks");
            same(through(&nodes[2], line(&["--batch", "48", "--world", "4"])), "three nodes, four ranks");
            let words = words(&line(&["--batch", "60", "--world", "3"]));
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            same(json(direct(&s3, &words)), "without a cache");
        }
    }
    alone.stop();
    nodes.into_iter().for_each(Server::stop);
}

/// The digest that the script computes, of rows that stand where `forebay plan` says.
fn by_pyarrow(server: &Server, name: &str, uri: &str, run: &[&str]) -> String {
    let plan = json(cached(server, &[&["plan", uri, "--batch", "100000"], run].concat()));
    let file = tempfile::NamedTempFile::new().expect("make a file");
    std::fs::write(file.path(), plan.to_string()).expect("write the plan");
    let script = fixtures::script("content_digest.py").arg(fixtures::folder(name)).arg(file.path());
    String::from_utf8(script.end().expect_success()).expect("text").trim().to_owned()
}

#[test]
fn other_values_at_the_same_places_give_another_content_digest() {
    let s3 = S3Server::start();
    let server = ServerOptions::for_s3(&s3).start();
    mnist::upload_folder(&s3, &mnist::folder().join("test"), "a").expect("read MNIST");
    let line = |columns| {
        let uri = s3.uri("a");
        json(cached(&server, &["epoch", &uri, "--verify", "--columns", columns]))
    };
    let (labels, both) = (line("label"), line("image,label"));
    assert_eq!(
        epoch(&labels, 0, "order_digest"),
        epoch(&both, 0, "order_digest"),
        "the order knows no values"
    );
    assert_ne!(content(&labels, 0), content(&both, 0));
    let plain = json(cached(&server, &["epoch", &s3.uri("a")]));
    assert!(plain["epochs"][0].get("content_digest").is_none(), "only where it is asked for");
    server.stop();
}
