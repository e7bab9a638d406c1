//! Several copies of a segment: made, used when a node dies or a zone asks, taken over by who joins, set by dataset.

use std::time::{Duration, Instant};

use forebay_tests::etcd::Etcd;
use forebay_tests::mnist;
use forebay_tests::process::{Run, Server, ServerOptions, free_addresses};
use forebay_tests::s3::S3Server;
use serde_json::Value;

use crate::commands::{counter, digest, epoch, json};

/// Generous: the machine may be loaded.
const PATIENCE: Duration = Duration::from_secs(60);

/// A store with MNIST's test split, etcd, and nodes.
struct Cluster {
    s3: S3Server,
    etcd: Etcd,
    nodes: Vec<Server>,
}

impl Cluster {
    fn start(nodes: &[&[&str]]) -> Self {
        let s3 = S3Server::start();
        mnist::upload(&s3).expect("read MNIST");
        let mut cluster = Self { s3, etcd: Etcd::start(1), nodes: Vec::new() };
        nodes.iter().for_each(|arguments| cluster.join(arguments));
        cluster
    }

    /// Starts one more and waits until all know it.
    fn join(&mut self, arguments: &[&str]) {
        let name = format!("node-{}", self.nodes.len());
        let options = ServerOptions::for_s3(&self.s3).args(self.etcd.arguments()).args(["--node", &name]);
        // Others are asked first, so that all there are know each other when the last has come.
        self.nodes.push(options.args(["--lease-ttl-s", "2"]).args(arguments).start());
        let count = self.nodes.len();
        wait_until("the nodes know each other", || {
            self.nodes.iter().all(|node| {
                let status = status(node);
                status["membership"]["registered"] == true && status["membership"]["nodes"] == count
            })
        });
    }

    fn uri(&self) -> String {
        self.s3.uri("mnist/test")
    }

    /// A command that may ask any of the nodes.
    fn command(&self, arguments: &[&str]) -> Run {
        let urls: Vec<_> = self.nodes.iter().map(|node| node.endpoint.clone()).collect();
        Run::new("forebay").args(arguments).args(["--endpoint", &urls.join(",")])
    }

    /// Reads an epoch; its digest, and the bytes of columns that left the store for it.
    fn epoch(&self, further: &[&str]) -> (String, u64) {
        let uri = self.uri();
        let line = [&["epoch", uri.as_str(), "--segment-bytes", "256KiB"], further].concat();
        let answer = json(self.command(&line));
        (digest(&answer, 0), epoch(&answer, 0, "s3_bytes").as_u64().expect("a number of bytes"))
    }

    /// Copies held and wanted of the dataset.
    fn copies(&self) -> (u64, u64) {
        let status = json(self.command(&["status"]));
        let copies = &status["copies"][0];
        let number = |field: &str| copies[field].as_u64().unwrap_or_else(|| panic!("no {field} in {status}"));
        (number("copies_held"), number("copies_wanted"))
    }

    fn wait_for_copies(&self, of_each: u64, segments: u64) {
        let mut last = (0, 0);
        let wanted = of_each * segments;
        let began = Instant::now();
        while last.1 != wanted || last.0 < wanted {
            assert!(began.elapsed() < PATIENCE, "copies held and wanted: {last:?}, to be {wanted}");
            std::thread::sleep(Duration::from_millis(50));
            last = self.copies();
        }
    }

    fn segments(&self) -> u64 {
        let status = json(self.command(&["status"]));
        status["copies"][0]["segments"].as_u64().expect("a number of segments")
    }
}

fn status(node: &Server) -> Value {
    json(Run::new("forebay").args(["status", "--endpoint", &node.endpoint]))
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what} in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn copies_outlive_the_node_that_made_them() {
    let two: &[&str] = &["--replicas", "2"];
    let mut cluster = Cluster::start(&[two, two, two]);
    let (wanted, cold) = cluster.epoch(&[]);
    let segments = cluster.segments();
    assert!(segments > 5 && cold > 0, "{segments} segments, {cold} bytes");
    cluster.wait_for_copies(2, segments);
    cluster.nodes[0].kill();
    cluster.nodes.remove(0);
    assert_eq!(cluster.epoch(&[]), (wanted, 0), "the others have all of it");
}

#[test]
fn a_node_that_comes_back_empty_gets_its_copies_again() {
    let address = free_addresses(1).expect("an address").remove(0);
    let second: &[&str] = &["--replicas", "2", "--listen", &address];
    let mut cluster = Cluster::start(&[&["--replicas", "2"], second]);
    cluster.epoch(&[]);
    let segments = cluster.segments();
    cluster.wait_for_copies(2, segments);
    // At once, under its name and address: to etcd it was never away. Its folder is a new one.
    cluster.nodes[1].kill();
    cluster.nodes.remove(1);
    cluster.join(second);
    // Nobody has opened the dataset there: copies need no manifest.
    wait_until("all copies are there again", || counter(&cluster.nodes[1], "peer_fills") >= segments);
    assert_eq!(counter(&cluster.nodes[1], "s3_requests"), 0);
}

#[test]
fn who_joins_takes_from_the_others_and_not_from_the_store() {
    let mut cluster = Cluster::start(&[&[], &[]]);
    let (wanted, _) = cluster.epoch(&[]);
    let segments = cluster.segments();
    cluster.join(&[]);
    assert_eq!(cluster.epoch(&[]), (wanted, 0));
    let taken = counter(&cluster.nodes[2], "peer_fills");
    assert!((1..segments).contains(&taken), "{taken} of {segments}");
    assert_eq!(counter(&cluster.nodes[2], "s3_requests"), 0);
}

#[test]
fn readers_ask_their_own_zone() {
    let cluster = Cluster::start(&[&["--replicas", "2", "--zone", "a"], &["--replicas", "2", "--zone", "b"]]);
    let (wanted, _) = cluster.epoch(&[]);
    cluster.wait_for_copies(2, cluster.segments());
    let served = || [0, 1].map(|node: usize| counter(&cluster.nodes[node], "rows_served"));
    for (near, zone) in ["a", "b"].into_iter().enumerate() {
        let before = served();
        assert_eq!(cluster.epoch(&["--zone", zone]), (wanted.clone(), 0));
        let after = served();
        assert!(after[near] - before[near] >= mnist::TEST_SAMPLES, "zone {zone}");
        assert_eq!(after[1 - near], before[1 - near], "zone {zone}");
    }
}

#[test]
fn replicas_are_set_by_dataset() {
    let cluster = Cluster::start(&[&[], &[]]);
    let (wanted, _) = cluster.epoch(&[]);
    let segments = cluster.segments();
    cluster.wait_for_copies(1, segments);
    let set = |count: &str| json(cluster.command(&["replicas", &cluster.uri(), count]));
    assert_eq!(set("2")["replicas"], 2);
    cluster.wait_for_copies(2, segments);
    assert_eq!(cluster.epoch(&[]), (wanted, 0));
    set("0");
    wait_until("one is wanted again", || cluster.copies().1 == segments);
    let alone = ServerOptions::for_s3(&cluster.s3).start();
    let line = ["replicas", &cluster.uri(), "2", "--endpoint", &alone.endpoint];
    let why = Run::new("forebay").args(line).end().expect_failure();
    assert!(why.contains("etcd"), "{why}");
}
