//! Training runs on a cache: they train, they refuse what cannot work in one line, they outlive the cache
//! node, and a rank whose peer dies ends. (What needs no cache is tested in `trainer/tests`.)

use std::time::{Duration, Instant};

use forebay_tests::harness::mnist;
use forebay_tests::harness::ports::{free_address, free_addresses};
use forebay_tests::harness::process::{Run, Server, ServerOptions};
use forebay_tests::harness::s3::S3Server;
use forebay_tests::harness::slow::{SlowProxy, Slowness};
use forebay_tests::harness::wait::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::commands::{cached, counter, digests, json};
use crate::fixtures;
use crate::refused::{misused, refused};

/// An object store with MNIST's test split, half of which is quick to train on, and a cache node before it.
struct Stage {
    s3: S3Server,
    server: Server,
    uri: String,
}

impl Stage {
    fn start() -> Self {
        let s3 = S3Server::start();
        mnist::upload_folder(&s3, &mnist::folder().join("test"), "mnist").expect("read MNIST");
        let server = ServerOptions::for_s3(&s3).start();
        let uri = s3.uri("mnist/part-00000.parquet");
        Self { s3, server, uri }
    }

    fn train(&self, line: &[&str]) -> Run {
        self.train_on(&self.uri, line)
    }

    fn train_on(&self, uri: &str, line: &[&str]) -> Run {
        train(&["--endpoint", &self.server.endpoint, "--train", uri]).args(line)
    }
}

fn train(line: &[&str]) -> Run {
    // Two ranks on two cores: more threads only get in each other's way.
    Run::new("forebay-train").args(line).envs([("OMP_NUM_THREADS", "1")])
}

/// The order digest and the content digest of an epoch in a report.
fn seen(epoch: &Value) -> (String, String) {
    let digest = |name: &str| epoch[name].as_str().unwrap_or_else(|| panic!("no {name}: {epoch}")).to_owned();
    (digest("order_digest"), digest("content_digest"))
}

#[test]
fn two_ranks_train_on_each_sample_once() {
    let stage = Stage::start();
    let folder = tempfile::tempdir().expect("make a folder");
    let report = folder.path().join("report.json").to_string_lossy().into_owned();
    let line =
        ["--nproc", "2", "--epochs", "2", "--batch", "100", "--seed", "5", "--verify", "--report", &report];
    stage.train(&line).args(["--test", &stage.uri]).end().expect_success();
    let report: Value =
        serde_json::from_slice(&std::fs::read(&report).expect("a report")).expect("the report is JSON");
    let hashes = report["parameter_hashes"].as_array().expect("a hash of each rank");
    assert!(hashes.len() == 2 && hashes[0] == hashes[1], "{report}");
    assert!(report["test_accuracy"].as_f64() > Some(0.5), "it learns: {report}");
    let line = ["epoch", &stage.uri, "--epochs", "2", "--batch", "100", "--seed", "5", "--verify"];
    let alone = json(cached(&stage.server, &line));
    for number in [0, 1] {
        assert_eq!(seen(&report["epochs"][number]), digests(&alone, number));
        assert_eq!(report["epochs"][number]["samples"], 5000);
    }
    assert_eq!(report["epochs"][1]["s3_requests"], 0);
    assert_eq!(report["epochs"][1]["parquet_bytes_decoded"], 0);
    stage.server.stop();
}

#[test]
fn what_cannot_be_trained_is_refused() {
    let stage = Stage::start();
    refused(stage.train(&["--label-column", "nope"]), &["nope", &stage.uri]);
    refused(stage.train(&["--direct"]), &["contradict"]);
    let other = fixtures::upload(&stage.s3, "good/one-row");
    refused(stage.train_on(&other, &["--nproc", "2"]), &[&other, "image"]);
    refused(stage.train_on("s3://forebay/none", &["--nproc", "2"]), &["s3://forebay/none", "no Parquet"]);
    refused(stage.train_on("s3://other/data", &[]), &["s3://other/data", "--allow"]);
    refused(train(&["--endpoint", "http://127.0.0.1:1", "--train", "s3://b/k"]), &["http://127.0.0.1:1"]);
    refused(train(&["--train", "s3://b/k"]), &["--endpoint", "FOREBAY_ENDPOINT"]);
    misused(stage.train(&["--epoch", "3"]), &["--epoch"]);
    stage.server.stop();
}

#[test]
fn an_object_overwritten_during_training_is_changed() {
    let stage = Stage::start();
    let other = std::fs::read(mnist::folder().join("test/part-00001.parquet")).expect("read");
    // Of the one object, version and footer are read first, then column data.
    stage.s3.overwrite_before_get(3, "mnist/part-00000.parquet", other);
    refused(stage.train(&["--nproc", "2"]), &[&stage.uri, "overwritten"]);
    stage.server.stop();
}

#[test]
fn a_cache_node_that_dies_and_comes_back_costs_nothing_but_time() {
    let mut stage = Stage::start();
    let folder = tempfile::tempdir().expect("make a folder");
    let report = folder.path().join("report.json").to_string_lossy().into_owned();
    let cache = folder.path().join("cache").to_string_lossy().into_owned();
    // The 865 kB of the one segment take three seconds.
    let slow = SlowProxy::start(&stage.s3.endpoint, Slowness { total_mb_s: 0.3, ..Slowness::none() });
    let start = |listen: &str| {
        let options = ServerOptions::for_endpoint(&stage.s3, &slow.endpoint);
        options.args(["--cache-dir", &cache, "--listen", listen]).start()
    };
    let address = free_address().expect("a free port");
    stage.server = start(&address);
    let line =
        ["--nproc", "2", "--epochs", "3", "--batch", "20", "--seed", "5", "--verify", "--report", &report];
    let run = stage.train(&line).start();
    let began = Instant::now();
    while slow.passed().object_bytes < 300_000 {
        assert!(began.elapsed() < Duration::from_secs(60), "no rows are asked for");
        std::thread::sleep(Duration::from_millis(20));
    }
    stage.server.kill();
    std::thread::sleep(Duration::from_millis(500));
    stage.server = start(&address);
    run.end().expect_success();
    let report: Value =
        serde_json::from_slice(&std::fs::read(&report).expect("a report")).expect("the report is JSON");
    let line = ["epoch", &stage.uri, "--epochs", "3", "--batch", "20", "--seed", "5", "--verify"];
    let alone = json(cached(&stage.server, &line));
    for number in [0, 1, 2] {
        assert_eq!(seen(&report["epochs"][number]), digests(&alone, number), "epoch {number}");
    }
    stage.server.stop();
}

#[test]
fn the_one_node_that_a_run_was_given_may_die_for_good() {
    let s3 = S3Server::start();
    mnist::upload_folder(&s3, &mnist::folder().join("test"), "mnist").expect("read MNIST");
    let uri = s3.uri("mnist/part-00000.parquet");
    let addresses = free_addresses(2).expect("free ports");
    let start = |address: &String| {
        let all = addresses.iter().flat_map(|a| ["--cluster-node".to_owned(), format!("http://{a}")]);
        // That the other one is gone is worth a warning.
        ServerOptions::for_s3(&s3).args(["--listen", address]).args(all).allow_log("").start()
    };
    let (mut named, other) = (start(&addresses[0]), start(&addresses[1]));
    let folder = tempfile::tempdir().expect("make a folder");
    let report = folder.path().join("report.json").to_string_lossy().into_owned();
    let line = ["--endpoint", &named.endpoint, "--train", &uri, "--test", &uri, "--nproc", "2"];
    let line =
        [&line[..], &["--epochs", "3", "--batch", "20", "--seed", "5", "--verify", "--report", &report]]
            .concat();
    let run = train(&line).start();
    let began = Instant::now();
    while counter(&named, "rows_served") + counter(&other, "rows_served") == 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "no rows are asked for");
        std::thread::sleep(Duration::from_millis(20));
    }
    named.kill();
    // Neither the counters that are read at the end of an epoch nor the evaluation needs that node.
    run.end().expect_success();
    let report: Value =
        serde_json::from_slice(&std::fs::read(&report).expect("a report")).expect("the report is JSON");
    let alone =
        json(cached(&other, &["epoch", &uri, "--epochs", "3", "--batch", "20", "--seed", "5", "--verify"]));
    for number in [0, 1, 2] {
        assert_eq!(seen(&report["epochs"][number]), digests(&alone, number), "epoch {number}");
    }
    assert!(report["test_accuracy"].as_f64() > Some(0.5), "{report}");
    other.stop();
}

#[test]
fn ranks_without_a_launcher_notice_a_dead_peer_by_themselves() {
    let stage = Stage::start();
    let port = free_address().expect("a free port").replace("127.0.0.1:", "");
    let start = |rank: &str| {
        let place = [("RANK", rank), ("WORLD_SIZE", "2"), ("LOCAL_RANK", rank), ("MASTER_ADDR", "127.0.0.1")];
        let run = stage
            .train(&["--epochs", "1000"])
            .envs(place)
            .envs([("GLOO_SOCKET_IFNAME", "lo"), ("TORCH_CPP_LOG_LEVEL", "FATAL")]);
        run.envs([("MASTER_PORT", &port)]).start()
    };
    let (survivor, victim) = (start("0"), start("1"));
    stage.wait_for_rows();
    kill(victim.pid());
    let killed = Instant::now();
    let ended = survivor.end();
    // Some seconds: `make bench-train` measures how many.
    assert!(killed.elapsed() < Duration::from_secs(60), "it ended after {:?}", killed.elapsed());
    let line = ended.expect_failure();
    assert!(line.starts_with("forebay-train: rank 0 of 2: "), "{line}");
    assert!(line.contains("rank 1"), "it names the lost rank: {line}");
    drop(victim);
    stage.server.stop();
}

#[test]
fn killed_and_resumed_by_other_ranks_a_run_sees_what_an_undisturbed_one_sees() {
    let stage = Stage::start();
    let folder = tempfile::tempdir().expect("make a folder");
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let (checkpoints, report) = (path("checkpoints"), path("report.json"));
    let run = |ranks: &str| {
        let line = [
            "--nproc", ranks, "--epochs", "2", "--batch", "60", "--seed", "5", "--verify", "--report",
            &report,
        ];
        stage.train(&line).args(["--checkpoint-dir", &checkpoints, "--checkpoint-every", "6"])
    };
    for (ranks, step) in [("2", 30), ("1", 88)] {
        let mut running = run(ranks).start();
        let began = Instant::now();
        while newest(&checkpoints) < step {
            assert!(running.is_running() && began.elapsed() < Duration::from_secs(100), "no step {step}");
            std::thread::sleep(Duration::from_millis(5));
        }
        // Dropped, the launcher is killed, and its ranks go with it.
        drop(running);
    }
    let said = run("3").end().expect_success();
    let said = String::from_utf8_lossy(&said);
    let report: Value =
        serde_json::from_slice(&std::fs::read(&report).expect("a report")).expect("the report is JSON");
    let line = ["epoch", &stage.uri, "--epochs", "2", "--batch", "60", "--seed", "5", "--verify"];
    let alone = json(cached(&stage.server, &line));
    assert_eq!(seen(&report["earlier_epochs"][0]), digests(&alone, 0));
    let last = &report["epochs"][0];
    assert_eq!((seen(last), &last["samples"]), (digests(&alone, 1), &Value::from(5000)));
    let before = last["samples_before_resume"].as_u64().expect("a number");
    assert!(before > 0 && before < 5000 && said.contains(&format!("resumed at sample {before}")), "{said}");
    assert_eq!(report["steps"], 2 * 84);
    stage.server.stop();
}

#[test]
fn the_command_in_the_message_shows_the_samples_of_the_broken_step() {
    let stage = Stage::start();
    let message = stage.train(&["--lr", "1e30", "--nproc", "2", "--seed", "3"]).end().expect_failure();
    let rows = message.split("its samples are the rows ").nth(1).expect("rows").split(" and ").next();
    let command = message.split('`').nth(1).expect("a command").replace('\'', "");
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    let shown = json(Run::new("forebay").args(words));
    let shown: Vec<_> =
        shown["slots"].as_array().expect("slots").iter().map(|slot| slot["row"].to_string()).collect();
    assert_eq!(shown.len(), 64, "{command}");
    assert!(shown.join(", ").starts_with(rows.expect("rows")), "{message}\n{shown:?}");
    stage.server.stop();
}

/// The newest checkpoint's step.
fn newest(folder: &str) -> u64 {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let step = |name: String| name.strip_prefix("step-")?.parse().ok();
    names.filter_map(|entry| step(entry.file_name().into_string().ok()?)).max().unwrap_or(0)
}

impl Stage {
    /// Waits until training is under way.
    fn wait_for_rows(&self) {
        let are_asked_for = || counter(&self.server, "rows_served") > 0;
        until("rows are asked for", Duration::from_secs(60), are_asked_for);
        // Ranks that have got rows have met each other; a moment later they are taking steps.
        std::thread::sleep(Duration::from_millis(500));
    }
}

fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process");
    kill_process(pid, Signal::KILL).expect("kill -9");
}
