//! Training runs: they train, they refuse what cannot work in one line, and when a rank dies the others end and name it.

use std::path::Path;
use std::time::{Duration, Instant};

use forebay_tests::mnist;
use forebay_tests::process::{Run, Running, Server, ServerOptions};
use forebay_tests::s3::S3Server;
use serde_json::Value;

use crate::commands::{cached, digest, json};
use crate::fixtures;
use crate::refused::{misused, refused};

/// A store with MNIST's test split, half of which is quick to train on, and a cache node before it.
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

#[test]
fn two_ranks_train_on_each_sample_once() {
    let stage = Stage::start();
    let folder = tempfile::tempdir().expect("make a folder");
    let report = folder.path().join("report.json").to_string_lossy().into_owned();
    let line = ["--nproc", "2", "--epochs", "2", "--batch", "100", "--seed", "5", "--report", &report];
    stage.train(&line).args(["--test", &stage.uri]).end().expect_success();
    let report: Value =
        serde_json::from_slice(&std::fs::read(&report).expect("a report")).expect("the report is JSON");
    let hashes = report["parameter_hashes"].as_array().expect("a hash of each rank");
    assert!(hashes.len() == 2 && hashes[0] == hashes[1], "{report}");
    assert!(report["test_accuracy"].as_f64() > Some(0.5), "it learns: {report}");
    let line = ["epoch", &stage.uri, "--epochs", "2", "--batch", "100", "--seed", "5"];
    let alone = json(cached(&stage.server, &line));
    for number in [0, 1] {
        assert_eq!(report["epochs"][number]["order_digest"], digest(&alone, number));
        assert_eq!(report["epochs"][number]["samples"], 5000);
    }
    assert_eq!(report["epochs"][1]["s3_requests"], 0);
    assert_eq!(report["epochs"][1]["parquet_bytes_decoded"], 0);
    stage.server.stop();
}

#[test]
fn what_cannot_be_trained_is_refused() {
    let stage = Stage::start();
    refused(stage.train(&["--nproc", "0"]), &["world size is 0"]);
    refused(stage.train(&["--batch", "0"]), &["global batch is 0"]);
    refused(stage.train(&["--nproc", "3", "--batch", "128"]), &["--batch 128", "3 ranks"]);
    refused(stage.train(&[]).envs([("WORLD_SIZE", "0"), ("RANK", "0")]), &["WORLD_SIZE is 0"]);
    refused(stage.train(&["--label-column", "nope"]), &["nope", &stage.uri]);
    refused(stage.train(&["--image-column", "label", "--label-column", "image"]), &["label", "UInt8[784]"]);
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
fn a_loss_that_is_not_a_number_ends_the_run_and_names_the_step() {
    let stage = Stage::start();
    let line = refused(stage.train(&["--nproc", "2", "--lr", "1e30"]), &["epoch ", " step ", "the loss is"]);
    assert!(line.contains("NaN") || line.contains("infinite"), "{line}");
    stage.server.stop();
}

#[test]
fn an_object_overwritten_during_training_is_changed() {
    let stage = Stage::start();
    let other = std::fs::read(mnist::folder().join("test/part-00001.parquet")).expect("read");
    // Whole segments are read at once: one after the version and the footer were.
    let gets = [&stage.uri].len() + 2;
    stage.s3.overwrite_before_get(gets, "mnist/part-00000.parquet", other);
    refused(stage.train(&["--nproc", "2"]), &[&stage.uri, "overwritten"]);
    stage.server.stop();
}

#[test]
fn a_killed_rank_ends_the_run_and_is_named() {
    let stage = Stage::start();
    let mut run = stage.train(&["--nproc", "2", "--epochs", "1000"]).start();
    let ranks = ranks_of(&mut run, 2);
    stage.wait_for_steps();
    kill(ranks[1]);
    let killed = Instant::now();
    let ended = run.end();
    assert!(killed.elapsed() < Duration::from_secs(10), "the others ended after {:?}", killed.elapsed());
    let line = ended.expect_failure();
    assert!(line.contains("rank 1 of 2") && line.contains("signal: 9"), "{line}");
    assert!(!is_alive(ranks[0]), "rank 0 is gone too");
    stage.server.stop();
}

#[test]
fn ranks_without_a_launcher_notice_a_dead_peer_by_themselves() {
    let stage = Stage::start();
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("bind").local_addr().expect("it").port();
    let start = |rank: &str| {
        let place = [("RANK", rank), ("WORLD_SIZE", "2"), ("LOCAL_RANK", rank), ("MASTER_ADDR", "127.0.0.1")];
        let run = stage.train(&["--epochs", "1000"]).envs(place).envs([("GLOO_SOCKET_IFNAME", "lo")]);
        run.envs([("MASTER_PORT", port.to_string())]).start()
    };
    let (survivor, victim) = (start("0"), start("1"));
    stage.wait_for_steps();
    kill(victim.pid());
    let killed = Instant::now();
    let ended = survivor.end();
    assert!(killed.elapsed() < Duration::from_secs(10), "it ended after {:?}", killed.elapsed());
    let line = ended.expect_failure();
    assert!(line.starts_with("forebay-train: rank 0 of 2: "), "{line}");
    drop(victim);
    stage.server.stop();
}

impl Stage {
    /// Waits until training is under way: more than one epoch was served.
    fn wait_for_steps(&self) {
        let start = Instant::now();
        while crate::commands::counter(&self.server, "rows_served") < 6000 {
            assert!(start.elapsed() < Duration::from_secs(60), "no steps are taken");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// The process ids of a launcher's ranks, in their order, once all have started.
fn ranks_of(run: &mut Running, world: usize) -> Vec<u32> {
    let start = Instant::now();
    loop {
        assert!(run.is_running() && start.elapsed() < Duration::from_secs(30), "the ranks do not start");
        let ranks = children(run.pid());
        if ranks.len() == world {
            return ranks;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn children(parent: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("list processes");
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut ranks: Vec<(String, u32)> = pids
        .filter(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // The parent is the second field after the name, which is in parentheses.
            stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1))
                == Some(&parent.to_string())
        })
        .filter_map(|pid| Some((rank(pid)?, pid)))
        .collect();
    ranks.sort();
    ranks.into_iter().map(|(_, pid)| pid).collect()
}

/// The variable `RANK` of a process.
fn rank(pid: u32) -> Option<String> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let text = String::from_utf8_lossy(&environment).into_owned();
    text.split('\0').find_map(|pair| pair.strip_prefix("RANK=").map(str::to_owned))
}

fn kill(pid: u32) {
    let status = std::process::Command::new("sh").args(["-c", &format!("kill -9 {pid}")]).status();
    assert!(status.is_ok_and(|status| status.success()), "kill -9 {pid}");
}

fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}
