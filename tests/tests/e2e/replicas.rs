//! Several copies of a segment: made, used when a node dies or a zone asks, taken over by who joins, set by
//! dataset. Of raw blocks too, and further ones of hot blocks.

use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_client::Access;
use forebay_client::objects::Objects;
use forebay_tests::harness::etcd::Etcd;
use forebay_tests::harness::made::MadeObject;
use forebay_tests::harness::mnist;
use forebay_tests::harness::ports::free_address;
use forebay_tests::harness::process::{Run, Server, ServerOptions};
use forebay_tests::harness::s3::S3Server;
use forebay_tests::harness::wait::until;
use futures::TryStreamExt;
use serde_json::Value;

use crate::commands::{counter, digests, epoch, json, missed, patient};

/// Generous: the machine may be loaded, and copies that were refused are offered again after 15, 30 and 60 s.
const PATIENCE: Duration = Duration::from_secs(240);

/// Decoded bytes of a segment; in the object store it has fewer.
const SEGMENT_BYTES: u64 = 256 << 10;

/// An object store with MNIST's test split, etcd, and nodes.
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
        let options = options.allow_log("etcd does not answer");
        // Others are asked first, so that all there are know each other when the last has come.
        self.nodes.push(options.args(["--lease-ttl-s", "2"]).args(arguments).start());
        self.wait_until_agreed();
    }

    /// Waits until all nodes know those that there are, and no others.
    fn wait_until_agreed(&self) {
        until("the nodes know each other", PATIENCE, || {
            self.nodes.iter().all(|node| {
                let status = status(node);
                status["membership"]["registered"] == true
                    && status["membership"]["nodes"] == self.nodes.len()
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

    /// Reads an epoch; its digests and the bytes of columns that left S3 for it.
    fn epoch(&self, further: &[&str]) -> ((String, String), u64) {
        let uri = self.uri();
        let segment_bytes = SEGMENT_BYTES.to_string();
        let line =
            [&["epoch", "--verify", uri.as_str(), "--segment-bytes", &segment_bytes], further].concat();
        let answer = json(self.command(&line));
        (digests(&answer, 0), epoch(&answer, 0, "s3_bytes").as_u64().expect("a number of bytes"))
    }

    /// What an epoch fetched is what only nodes held that did not answer: none, unless the machine stalls.
    fn nothing_again(&self, fetched: u64) {
        let silent = missed(&self.nodes);
        assert!(fetched <= silent * SEGMENT_BYTES, "{fetched} bytes, {silent} segments of silent nodes");
    }

    /// Copies held and wanted of the dataset.
    fn copies(&self) -> (u64, u64) {
        let status = patient(|| self.command(&["status"]));
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
        let status = patient(|| self.command(&["status"]));
        status["copies"][0]["segments"].as_u64().expect("a number of segments")
    }
}

fn status(node: &Server) -> Value {
    patient(|| Run::new("forebay").args(["status", "--endpoint", &node.endpoint]))
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
    // Until then each fetch from S3 could be put down to the node that does not answer.
    cluster.wait_until_agreed();
    let (got, fetched) = cluster.epoch(&[]);
    assert_eq!(got, wanted);
    cluster.nothing_again(fetched);
}

#[test]
fn a_node_that_comes_back_empty_gets_its_copies_again() {
    let address = free_address().expect("an address");
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
    until("all copies are there again", PATIENCE, || counter(&cluster.nodes[1], "peer_fills") >= segments);
    assert_eq!(counter(&cluster.nodes[1], "s3_requests"), 0);
}

#[test]
fn who_joins_takes_from_the_others_and_not_from_the_store() {
    let mut cluster = Cluster::start(&[&[], &[]]);
    let (wanted, _) = cluster.epoch(&[]);
    let segments = cluster.segments();
    cluster.command(&["pin", &cluster.uri()]).end().expect_success();
    cluster.join(&[]);
    let (got, fetched) = cluster.epoch(&[]);
    assert_eq!(got, wanted);
    let taken = counter(&cluster.nodes[2], "peer_fills");
    // The one that joined knows of no pin, which is no error as long as another does.
    let unpin = || cluster.command(&["unpin", &cluster.uri()]).end();
    unpin().expect_success();
    assert!(unpin().expect_failure().contains("not pinned"));
    assert!((1..segments).contains(&taken), "{taken} of {segments} taken");
    cluster.nothing_again(fetched);
}

/// A node that is late is helped by the other, so not every row comes from the own zone. Without zones about
/// half would not.
#[test]
fn readers_ask_their_own_zone() {
    const EPOCHS: u64 = 6;
    let cluster = Cluster::start(&[&["--replicas", "2", "--zone", "a"], &["--replicas", "2", "--zone", "b"]]);
    let (wanted, _) = cluster.epoch(&[]);
    cluster.wait_for_copies(2, cluster.segments());
    let served = || [0, 1].map(|node: usize| counter(&cluster.nodes[node], "rows_served"));
    for (near, zone) in ["a", "b"].into_iter().enumerate() {
        let before = served();
        let (got, fetched) = cluster.epoch(&["--zone", zone, "--epochs", &EPOCHS.to_string()]);
        assert_eq!(got, wanted);
        cluster.nothing_again(fetched);
        let after = served();
        let (own, far) = (after[near] - before[near], after[1 - near] - before[1 - near]);
        let few = EPOCHS * mnist::TEST_SAMPLES / 4;
        assert!(
            far < few && own >= EPOCHS * mnist::TEST_SAMPLES - few,
            "zone {zone}: {own} rows, {far} from afar"
        );
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
    let (got, fetched) = cluster.epoch(&[]);
    assert_eq!(got, wanted);
    cluster.nothing_again(fetched);
    set("0");
    until("one is wanted again", PATIENCE, || cluster.copies().1 == segments);
    let alone = ServerOptions::for_s3(&cluster.s3).start();
    let line = ["replicas", &cluster.uri(), "2", "--endpoint", &alone.endpoint];
    let why = Run::new("forebay").args(line).end().expect_failure();
    assert!(why.contains("etcd"), "{why}");
}

/// Raw blocks of all nodes.
fn raw_blocks(cluster: &Cluster) -> u64 {
    let of = |node: &Server| status(node)["raw"]["files"].as_u64().expect("a number of blocks");
    cluster.nodes.iter().map(of).sum()
}

/// Puts an object of this many blocks of 4 MiB, and has the cluster hold it.
fn load_raw(cluster: &Cluster, blocks: u64) -> MadeObject {
    let object = MadeObject { seed: 5, size: blocks << 22 };
    cluster.s3.put_made("raw", object);
    let loaded = json(cluster.command(&["load", "--raw", &cluster.s3.uri("raw")]));
    assert_eq!(loaded["blocks_held"], blocks, "{loaded}");
    cluster.s3.take_log();
    object
}

fn raw_bytes_fetched(cluster: &Cluster) -> u64 {
    cluster
        .s3
        .take_log()
        .iter()
        .filter(|seen| seen.key == "raw" && seen.is_object_get())
        .map(|seen| seen.bytes)
        .sum()
}

#[test]
fn copies_of_raw_blocks_outlive_the_node_that_made_them() {
    let two: &[&str] = &["--replicas", "2"];
    let mut cluster = Cluster::start(&[two, two, two]);
    let object = load_raw(&cluster, 8);
    until("each block is at two nodes", PATIENCE, || raw_blocks(&cluster) == 16);
    cluster.nodes[0].kill();
    cluster.nodes.remove(0);
    let got = cluster.command(&["get", &cluster.s3.uri("raw")]).end().expect_success();
    assert!(got == object.bytes(0..object.size), "{} bytes", got.len());
    assert_eq!(raw_bytes_fetched(&cluster), 0);
}

#[test]
fn raw_blocks_that_are_hot_get_further_copies() {
    // All blocks are the first node's, which serves less than its readers want.
    let (first, other) = (["--serve-bytes-per-s", "20MB"], ["--weight", "0.000001"]);
    let cluster = Cluster::start(&[&first, &[first, other].concat(), &[first, other].concat()]);
    let object = load_raw(&cluster, 4);
    let urls: Vec<_> = cluster.nodes.iter().map(|node| node.endpoint.clone()).collect();
    let (runtime, uri) = (tokio::runtime::Runtime::new().expect("a runtime"), cluster.s3.uri("raw"));
    let wanted = object.bytes(0..object.size);
    let reader = |n: usize| {
        // Readers come by different nodes, and so do their requests where there is a choice.
        let (url, uri, wanted) = (urls[n % urls.len()].clone(), uri.clone(), wanted.clone());
        async move {
            let objects = Objects::new(&Access::endpoint(&url)?);
            let version = objects.version(&uri).await?;
            loop {
                let pieces: Vec<Bytes> = objects.read(&version, 0..version.size)?.try_collect().await?;
                assert!(pieces.concat() == wanted, "bytes of a reader");
            }
            #[expect(unreachable_code, reason = "it reads until it is aborted")]
            Ok::<(), forebay_proto::Error>(())
        }
    };
    let readers: Vec<_> = (0..9).map(|n| runtime.spawn(reader(n))).collect();
    let served = || cluster.nodes.iter().skip(1).map(|node| counter(node, "bytes_served")).min();
    until("the other nodes serve hot blocks", PATIENCE, || {
        assert!(!readers.iter().any(tokio::task::JoinHandle::is_finished), "a reader has ended");
        served() > Some(wanted.len() as u64)
    });
    assert!(status(&cluster.nodes[0])["segments_hot"].as_u64() > Some(0));
    readers.iter().for_each(tokio::task::JoinHandle::abort);
    assert_eq!(raw_bytes_fetched(&cluster), 0);
}
