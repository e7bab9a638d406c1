//! A disk that does not answer, and one that fails, under a node that runs or starts: readers go on from
//! S3 or from other nodes, and the disk is used again when it is back.

use forebay_tests::bench::disk::hang::HangingDisk;
use forebay_tests::harness::differential::bytes_of;
use forebay_tests::harness::mnist;
use forebay_tests::harness::ports::free_addresses;
use forebay_tests::harness::process::{Server, ServerOptions};
use forebay_tests::harness::s3::S3Server;
use serde_json::Value;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::commands::{cached, counter, digest, json};
use crate::objects::read_at;

/// How long a read may take whose disk hangs: about two seconds, on a machine that other tests do not fill.
const SOON: Duration = Duration::from_secs(30);

/// A node whose cache directory lies on a disk that does as it is told.
struct Stage {
    s3: S3Server,
    uri: String,
    options: ServerOptions,
    server: Server,
    disk: HangingDisk,
    _folder: tempfile::TempDir,
}

/// A node whose cache directory lies in a folder, on a disk that does as it is told.
fn on_disk(options: ServerOptions, folder: &Path) -> (ServerOptions, HangingDisk) {
    HangingDisk::under(options, folder).expect("make such a disk")
}

/// From now on the disk hangs.
fn hang(disk: &HangingDisk) {
    disk.tell("hang").expect("tell the disk");
}

/// From now on it works.
fn heal(disk: &HangingDisk) {
    disk.heal().expect("heal the disk");
}

/// Waits until a node's log says so once more than `before` times.
fn wait_for(server: &Server, what: &str, before: usize) {
    let began = Instant::now();
    while server.log().matches(what).count() <= before {
        assert!(began.elapsed() < Duration::from_secs(90), "no `{what}`: {}", server.log());
        thread::sleep(Duration::from_millis(20));
    }
}

impl Stage {
    fn start() -> Self {
        let s3 = S3Server::start();
        mnist::upload_folder(&s3, &mnist::folder().join("test"), "mnist").expect("read MNIST");
        let folder = tempfile::tempdir().expect("make a folder");
        let (options, disk) = on_disk(ServerOptions::for_s3(&s3), folder.path());
        let (uri, server) = (s3.uri("mnist"), options.clone().start());
        Self { s3, uri, options, server, disk, _folder: folder }
    }

    /// The same with another process, which has mapped nothing.
    fn restart(mut self) -> Self {
        self.server.stop();
        self.server = self.options.clone().start();
        self
    }

    fn epoch(&self) -> Value {
        json(cached(&self.server, &["epoch", &self.uri, "--batch", "100", "--verify"]))
    }

    /// Objects' data that was read from S3 since this was asked last.
    fn gets(&self) -> usize {
        self.s3.take_log().iter().filter(|seen| seen.if_match.is_some() && seen.bytes > 0).count()
    }

    fn wait_for(&self, what: &str, before: usize) {
        wait_for(&self.server, what, before);
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
        hang(&stage.disk);
        // Without a disk it is read from S3 again.
        same(&cold, &stage.epoch());
        assert!(stage.gets() > 0);
        stage.wait_for("hangs and is set aside", round);
        same(&cold, &stage.epoch());
        let lost = stage.threads().saturating_sub(threads);
        assert!(lost < 40, "{lost} threads more");
        heal(&stage.disk);
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
    stage.disk.tell("eio").expect("tell the disk");
    same(&cold, &stage.epoch());
    stage.wait_for("fails and is set aside", 0);
    heal(&stage.disk);
    stage.wait_for("a cache directory works again", 0);
    same(&cold, &stage.epoch());
    stage.server.stop();
}

#[test]
fn reads_of_any_object_go_on_while_the_disk_hangs() {
    let stage = Stage::start();
    let (uri, wanted) = (stage.s3.uri("raw"), bytes_of(7, 13_000_000));
    stage.s3.put("raw", wanted.clone());
    cached(&stage.server, &["load", "--raw", &uri]).end().expect_success();
    let stage = stage.restart();
    stage.gets();
    hang(&stage.disk);
    let get = || cached(&stage.server, &["get", &uri]).limit(SOON).end().expect_success();
    assert!(get() == wanted, "other bytes while the disk hangs");
    assert!(stage.gets() > 0, "they are S3's");
    stage.wait_for("hangs and is set aside", 0);
    assert!(get() == wanted, "other bytes without a disk");
    heal(&stage.disk);
    stage.wait_for("a cache directory works again", 0);
    stage.gets();
    assert!(get() == wanted, "other bytes from the disk");
    assert_eq!(stage.gets(), 0, "all of them are there again");
    stage.server.stop();
}

#[test]
fn a_node_whose_disk_hangs_gives_other_nodes_its_blocks_all_the_same() {
    let (s3, folder) = (S3Server::start(), tempfile::tempdir().expect("make a folder"));
    let (uri, wanted) = (s3.uri("raw"), bytes_of(8, 4_000_000));
    s3.put("raw", wanted.clone());
    let addresses = free_addresses(2).expect("addresses");
    let list =
        addresses.iter().flat_map(|address| ["--cluster-node".to_owned(), format!("http://{address}")]);
    let list: Vec<String> = list.collect();
    let options = |address: &String| {
        let options = ServerOptions::for_s3(&s3).args(&list).args(["--listen", address.as_str()]);
        options.env("FOREBAY_OBJECTS__BLOCK_BYTES", "65536")
    };
    let (options_of_hung, disk) = on_disk(options(&addresses[0]), folder.path());
    let (hung, other) = (options_of_hung.clone().start(), options(&addresses[1]).start());
    cached(&other, &["load", "--raw", &uri]).end().expect_success();
    hung.stop();
    let hung = options_of_hung.start();
    hang(&disk);
    // About half of the blocks are those of the node whose disk hangs.
    let runtime = tokio::runtime::Runtime::new().expect("start a runtime");
    let read =
        runtime.block_on(async { tokio::time::timeout(SOON, read_at(&other.endpoint, &uri, &[])).await });
    assert!(read.expect("in time").expect("read") == wanted, "other bytes by way of the other node");
    assert!(counter(&other, "peer_fills") > 0, "it gives some of them");
    wait_for(&hung, "hangs and is set aside", 0);
    heal(&disk);
    wait_for(&hung, "a cache directory works again", 0);
    [hung, other].into_iter().for_each(Server::stop);
}

#[test]
fn a_node_starts_while_one_of_its_disks_hangs_and_uses_it_when_it_answers() {
    let (s3, folder) = (S3Server::start(), tempfile::tempdir().expect("make a folder"));
    mnist::upload_folder(&s3, &mnist::folder().join("test"), "mnist").expect("read MNIST");
    let (options, disk) = on_disk(ServerOptions::for_s3(&s3), folder.path());
    hang(&disk);
    let options = options.args(["--cache-dir", &folder.path().join("well").to_string_lossy()]);
    let (uri, server) = (s3.uri("mnist"), options.clone().start());
    let stage = Stage { s3, uri, options, server, disk, _folder: folder };
    assert!(stage.server.log().contains("cache: its disk does not answer"), "{}", stage.server.log());
    let cold = stage.epoch();
    stage.gets();
    same(&cold, &stage.epoch());
    assert_eq!(stage.gets(), 0, "the other disk keeps it");
    heal(&stage.disk);
    stage.wait_for("a cache directory works again", 0);
    same(&cold, &stage.epoch());
    stage.server.stop();
}

#[test]
fn a_node_whose_disks_all_hang_says_so_and_ends() {
    let (s3, folder) = (S3Server::start(), tempfile::tempdir().expect("make a folder"));
    let (options, disk) = on_disk(ServerOptions::for_s3(&s3), folder.path());
    hang(&disk);
    // What begins as the first one's path is on the same disk.
    let started =
        options.args(["--cache-dir", &folder.path().join("cache-two").to_string_lossy()]).try_start();
    let error = format!("{:#}", started.err().expect("there is nothing to keep segments in"));
    for name in ["cache", "cache-two"] {
        let dir = folder.path().join(name);
        assert!(error.contains(&format!("{}: its disk does not answer", dir.display())), "{error}");
    }
}
