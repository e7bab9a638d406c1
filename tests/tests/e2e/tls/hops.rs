//! A cluster with mTLS on all hops, and a wire tapped on each of them.

use super::{KNOWN, alone, train, upload};
use crate::commands::{digests, direct, json, patient};
use forebay_client::TlsFiles;
use forebay_tests::harness::etcd::Etcd;
use forebay_tests::harness::pki::Leaf;
use forebay_tests::harness::ports::free_address;
use forebay_tests::harness::process::Server;
use forebay_tests::harness::s3::S3Server;
use forebay_tests::harness::tap::{Tap, TlsFront};
use forebay_tests::harness::tls_world::{ROOT, TlsWorld, VISION, curl, forebay};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long nodes may take to find each other, and to copy what they hold.
const PATIENCE: Duration = Duration::from_secs(90);

const RUN: [&str; 4] = ["--segment-bytes", "65536", "--seed", "3"];

fn tap(url: &str) -> Tap {
    let to: SocketAddr = url.rsplit("//").next().expect("an address").parse().expect("an address");
    Tap::start(to).expect("a wire")
}

#[test]
fn nothing_can_be_overheard_on_any_hop() {
    let world = TlsWorld::new("hidden/");
    let s3 = S3Server::start();
    let uri = upload(&s3);
    // The object store speaks TLS; behind it, in the clear, all must be found that must not be found
    // elsewhere.
    let clear = tap(&s3.endpoint);
    let store = TlsFront::start(world.issue(Leaf::node("store")), clear.address).expect("an object store");
    let to_store = Tap::start(store.address).expect("a wire");
    let etcd = Etcd::start_tls(&world.issue(Leaf::node("etcd"))).expect("etcd");
    let to_etcd = tap(&etcd.endpoints()[0]);
    let start = |name: &str| {
        let files = world.issue(Leaf::node(name));
        let address = free_address().expect("a port");
        let to_node = tap(&address);
        let node = world.node_of(&s3, &format!("https://{}", to_store.address), &files);
        let node = node.args(etcd_flags(&files, to_etcd.address)).arg("--s3-ca");
        let node = node.arg(files.ca.as_ref().expect("an authority").display().to_string());
        let node = node.args(["--listen", &address, "--advertise", &format!("https://{}", to_node.address)]);
        let node = node.args(["--node", name, "--replicas", "2"]).allow_log("etcd does not answer");
        (node.start(), to_node)
    };
    let nodes = ["a", "b", "c"].map(start);
    let at = format!("https://{}", nodes[0].1.address);
    let (vision, root) =
        (world.issue(Leaf::client("vision", VISION)), world.issue(Leaf::client("root", ROOT)));
    wait("three nodes", || {
        patient(|| forebay(&root, &at, &["status"]))["nodes"].as_array().map_or(0, Vec::len) == 3
    });
    json(forebay(&vision, &at, &[&["load", &uri], &RUN[..2]].concat()));
    let line = [&["epoch", &uri, "--verify"], &RUN[..]].concat();
    let answer = json(forebay(&vision, &at, &line));
    assert_eq!(digests(&answer, 0), digests(&json(direct(&s3, &line)), 0));
    let trained = train(&vision, &at, &uri, &["--epochs", "2", "--data-only"]).epochs();
    assert_eq!(trained, alone(&s3, &uri, 2));
    // Each node has copies of what others own.
    wait("copies", || nodes.iter().all(|(node, _)| peer_bytes(node, &root) > 10_000));
    let nodes_taps = ["node a", "node b", "node c"].into_iter().zip(nodes.iter().map(|(_, tap)| tap));
    for (wire, taps) in [("store", &to_store), ("etcd", &to_etcd)].into_iter().chain(nodes_taps) {
        assert!(taps.bytes() > 2_000, "{wire}: {} bytes", taps.bytes());
        for text in [KNOWN, "hidden/", "s3://"] {
            assert!(!taps.has(text.as_bytes()), "{wire}: {text} travels in the clear");
        }
    }
    assert!(clear.has(KNOWN.as_bytes()) && clear.has(b"hidden/"), "the search would find it");
    let why = forebay(&vision, &at, &["cat", &s3.uri("other/")]).end().expect_failure();
    assert!(why.contains("vision may not read it"), "{why}");
    nodes.into_iter().for_each(|(node, _)| node.stop());
}

fn etcd_flags(files: &TlsFiles, at: SocketAddr) -> Vec<String> {
    let path = |path: &Option<std::path::PathBuf>| path.as_ref().expect("a file").display().to_string();
    let [ca, cert, key] = [&files.ca, &files.cert, &files.key].map(path);
    let flags = ["--etcd".into(), format!("https://{at}"), "--etcd-ca".into(), ca];
    flags.into_iter().chain(["--etcd-cert".into(), cert, "--etcd-key".into(), key]).collect()
}

fn peer_bytes(node: &Server, root: &TlsFiles) -> u64 {
    // The node's own address: its counters, not the cluster's.
    let metrics = node.metrics.as_ref().expect("metrics");
    let text = curl(root, &[&format!("{metrics}/metrics")]).end().expect_success();
    let text = String::from_utf8(text).expect("text");
    let line = text.lines().find_map(|line| line.strip_prefix("forebay_peer_bytes_total "));
    line.expect("a figure").parse().expect("a number")
}

fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "{what} after {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}
