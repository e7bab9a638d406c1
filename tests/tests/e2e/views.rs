//! Splits, mixes and `forebay plan`: readers get the rows that the plan names, and views take no more from
//! S3.

use forebay_tests::harness::mnist;
use forebay_tests::harness::ports::free_addresses;
use forebay_tests::harness::process::{Server, ServerOptions};
use forebay_tests::harness::s3::S3Server;
use serde_json::Value;

use crate::commands::{cached, counter, digests, direct, epoch, json};
use crate::fixtures;
use crate::refused::refused;

fn store() -> (S3Server, String, String) {
    let s3 = S3Server::start();
    mnist::upload(&s3).expect("read MNIST");
    let (train, test) = (s3.uri("mnist/train"), s3.uri("mnist/test"));
    (s3, train, test)
}

/// The labels of a view in file order, as `cat` prints them.
fn labels(run: forebay_tests::harness::process::Run) -> Vec<i64> {
    let text = String::from_utf8(run.end().expect_success()).expect("UTF-8");
    let label =
        |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["label"].as_i64().expect("a label");
    text.lines().map(label).collect()
}

#[test]
fn a_split_is_the_datasets_own_rows_and_its_own_segments() {
    let (s3, _, test) = store();
    let server = ServerOptions::for_s3(&s3).start();
    let cat = |more: &[&str]| {
        let line = ["cat", &test, "--format", "jsonl", "--columns", "label", "--segment-bytes", "2500000"];
        labels(cached(&server, &[&line, more].concat()))
    };
    let whole = cat(&[]);
    assert_eq!(whole.len() as u64, mnist::TEST_SAMPLES);
    s3.take_log();
    assert_eq!(cat(&["--split", "0:0.9"]), whole[..9000]);
    assert_eq!(cat(&["--split", "0.9:1"]), whole[9000..]);
    assert_eq!(cat(&["--split", "1234:5678"]), whole[1234..5678]);
    let data = s3.take_log().into_iter().filter(|seen| seen.range.is_some()).count();
    assert_eq!(data, 0, "the segments of the whole dataset serve its splits");

    let read = |more: &[&str]| -> Value {
        let line = ["epoch", "--verify", &test, "--split", "0:0.9", "--batch", "48", "--seed", "5"];
        json(cached(&server, &[&line, more].concat()))
    };
    let one = read(&[]);
    assert_eq!(epoch(&one, 0, "samples"), 9000);
    assert_eq!(digests(&read(&["--world", "3"]), 0), digests(&one, 0));
    server.stop();
}

#[test]
fn a_split_without_rows_is_said_so_and_loaded_at_once() {
    let (s3, _, test) = store();
    let addresses = free_addresses(2).expect("free ports");
    let all: Vec<String> =
        addresses.iter().flat_map(|a| ["--cluster-node".to_owned(), format!("http://{a}")]).collect();
    let start = |a: &String| ServerOptions::for_s3(&s3).args(["--listen", a.as_str()]).args(&all).start();
    let servers: Vec<Server> = addresses.iter().map(start).collect();
    // Within a segment, and of a filtered dataset too.
    for filter in [&[] as &[&str], &["--where", "label >= 0"]] {
        for split in ["0:0", "8:8", "10000:10000"] {
            let line = |command| [&[command, test.as_str(), "--split", split][..], filter].concat();
            refused(cached(&servers[0], &line("epoch")), &[&test, "has no rows"]);
            let loaded = json(cached(&servers[0], &line("load")));
            assert_eq!(loaded["segments_total"], 0, "{loaded}");
            assert_eq!(loaded["failed"], serde_json::json!([]), "{loaded}");
        }
    }
    servers.into_iter().for_each(Server::stop);
}

#[test]
fn a_mix_keeps_its_order_for_any_ranks_with_and_without_a_cache() {
    let (s3, train, test) = store();
    let server = ServerOptions::for_s3(&s3).start();
    let mix = format!("{train}=0.7,{test}=0.3");
    let line =
        ["epoch", "--verify", "--mix", &mix, "--batch", "48", "--epochs", "2", "--segment-bytes", "2500000"];
    let cold = json(cached(&server, &line));
    // The test split runs out first: 10,000 of 3 in 10 samples.
    assert_eq!(epoch(&cold, 0, "samples"), 33_330);
    let warm = json(cached(&server, &[&line[..], &["--world", "4"]].concat()));
    assert_eq!(epoch(&warm, 0, "source"), "cache");
    let alone = json(direct(&s3, &[&line[..], &["--world", "2"]].concat()));
    for e in 0..2 {
        assert_eq!(digests(&warm, e), digests(&cold, e), "4 ranks, epoch {e}");
        assert_eq!(digests(&alone, e), digests(&cold, e), "directly, epoch {e}");
    }
    assert_ne!(digests(&cold, 0), digests(&cold, 1));
    let refused = cached(&server, &["epoch", "--verify", "--mix", "s3://elsewhere/x=1", "--batch", "48"])
        .end()
        .expect_failure();
    assert!(refused.contains("--allow"), "{refused}");
    server.stop();
}

/// The objects of one dataset, as two datasets whose rows follow each other as those of the mix do.
#[test]
fn three_nodes_give_a_mix_the_content_that_pyarrow_gives() {
    let (s3, folder) = (S3Server::start(), tempfile::tempdir().expect("make a folder"));
    for (part, objects) in [("a", &[0, 1, 2, 3][..]), ("b", &[4][..])] {
        let to = folder.path().join(part);
        std::fs::create_dir(&to).expect("make a folder");
        for object in objects {
            let name = format!("part-{object:05}.parquet");
            let from = fixtures::folder("good/many-files").join(&name);
            std::fs::copy(from, to.join(name)).expect("copy an object");
        }
        mnist::upload_folder(&s3, &to, part).expect("read the objects");
    }
    let addresses = free_addresses(3).expect("free ports");
    let all: Vec<String> =
        addresses.iter().flat_map(|a| ["--cluster-node".to_owned(), format!("http://{a}")]).collect();
    let start = |a: &String| ServerOptions::for_s3(&s3).args(["--listen", a.as_str()]).args(&all).start();
    let nodes: Vec<Server> = addresses.iter().map(start).collect();

    let mix = format!("{}=0.7,{}=0.3", s3.uri("a"), s3.uri("b"));
    let run = ["--mix", &mix, "--seed", "5", "--shuffle", "window(2)", "--segment-bytes", "20000"];
    let read = |node: &Server, more: &[&str]| {
        json(cached(node, &[&["epoch", "--verify", "--epochs", "2"][..], &run[..], more].concat()))
    };
    let two_ranks = read(&nodes[0], &["--batch", "48", "--world", "2"]);
    let three_ranks = read(&nodes[2], &["--batch", "30", "--world", "3"]);
    for number in 0..2 {
        // Which row stands where says the plan; the values are pyarrow's.
        let which = number.to_string();
        let plan = ["plan", "--batch", "100000", "--epoch", &which];
        let plan = json(cached(&nodes[1], &[&plan[..], &run[..]].concat()));
        let file = tempfile::NamedTempFile::new().expect("make a file");
        std::fs::write(file.path(), plan.to_string()).expect("write the plan");
        let script = fixtures::script("content_digest.py").arg(folder.path()).arg(file.path());
        let expected = String::from_utf8(script.end().expect_success()).expect("text");
        assert_eq!(digests(&two_ranks, number).1, expected.trim(), "2 ranks, epoch {which}");
        assert_eq!(digests(&three_ranks, number).1, expected.trim(), "3 ranks, epoch {which}");
    }
    // 631 rows of seven in ten samples, 369 of three.
    assert_eq!(epoch(&two_ranks, 0, "samples"), 900);
    let served: Vec<u64> = nodes.iter().map(|node| counter(node, "rows_served")).collect();
    assert!(served.iter().all(|rows| *rows > 0), "{served:?}");
    nodes.into_iter().for_each(Server::stop);
}

#[test]
fn the_plan_names_the_rows_that_a_step_holds() {
    let (s3, _, test) = store();
    let server = ServerOptions::for_s3(&s3).start();
    let plan = |more: &[&str]| -> Value {
        let line =
            ["plan", &test, "--seed", "3", "--window", "2", "--batch", "48", "--segment-bytes", "2500000"];
        json(cached(&server, &[&line, more].concat()))
    };
    let whole = plan(&["--step", "7", "--world", "4"]);
    let slots = whole["slots"].as_array().expect("slots");
    assert_eq!((slots.len(), whole["steps"].as_u64()), (48, Some(209)));
    let mut positions: Vec<u64> = slots.iter().map(|s| s["position"].as_u64().expect("a position")).collect();
    positions.sort_unstable();
    assert_eq!(positions, (336..384).collect::<Vec<_>>());
    // The row in the object is the row in the dataset less the rows of the objects before it.
    for s in slots {
        let second = s["object"].as_str().expect("an object").ends_with("part-00001.parquet");
        let row = s["object_row"].as_u64().expect("a row") + if second { 5000 } else { 0 };
        assert_eq!(s["row"].as_u64(), Some(row), "{s}");
    }
    let last = plan(&["--step", "208", "--world", "4", "--rank", "3"]);
    let padding = last["slots"].as_array().expect("slots").iter().filter(|s| s["position"].is_null()).count();
    assert_eq!(padding, 12, "10,000 samples leave 16 for the last step: rank 3 has none");
    let line = ["plan", &test, "--step", "40", "--batch", "256"];
    let refused = cached(&server, &line).end().expect_failure();
    assert!(refused.contains("no step 40") && refused.contains("40 steps"), "{refused}");
    server.stop();
}
