//! Any object, byte for byte: what a node, a cluster and the commands hand out is what the object store has.

mod faults;
mod requests;

use bytes::Bytes;
use forebay_client::objects::Objects;
use forebay_client::{Access, Result};
use forebay_proto::v1::objects_client::ObjectsClient;
use forebay_proto::{Error, v1};
use forebay_tests::harness::ports::free_addresses;
use forebay_tests::harness::process::{Run, Server, ServerOptions};
use forebay_tests::harness::s3::{REGION, S3Server};
use forebay_tests::harness::seen::SeenRequest;
use futures::{StreamExt, TryStreamExt};
use hyper::Method;
use std::time::{Duration, Instant};

use crate::commands::{cached, counter, direct, json};

const MIB: usize = 1 << 20;

/// Around a block of 4 MiB, and beyond.
const SIZES: [usize; 6] = [0, 1, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 13 * MIB + 777];

/// Blocks as small as they may be: many of them in a few megabytes.
const SMALL: (&str, &str) = ("FOREBAY_OBJECTS__BLOCK_BYTES", "65536");

/// Bytes that are others at every place and for every seed.
fn bytes_of(seed: u64, count: usize) -> Bytes {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.u8(..)).take(count).collect()
}

fn put(s3: &S3Server, key: &str, seed: u64, count: usize) -> Bytes {
    let bytes = bytes_of(seed, count);
    s3.put(key, bytes.clone());
    bytes
}

fn get(server: &Server, uri: &str, ranges: &[&str]) -> Vec<u8> {
    let ranges = ranges.iter().flat_map(|range| ["-r", range]);
    cached(server, &["get", uri]).args(ranges).end().expect_success()
}

/// Requests for objects, and the bytes of their answers' bodies.
fn asked(log: &[SeenRequest]) -> (usize, usize, u64) {
    let gets: Vec<_> = log.iter().filter(|seen| seen.is_object_get()).collect();
    let heads = log.iter().filter(|seen| seen.method == Method::HEAD).count();
    (heads, gets.len(), gets.iter().map(|seen| seen.bytes).sum())
}

fn check(what: &str, got: &[u8], wanted: &[u8]) {
    let same = got.iter().zip(wanted).take_while(|(a, b)| a == b).count();
    assert!(got == wanted, "{what}: {} bytes of {}, the first {same} are right", got.len(), wanted.len());
}

/// Nodes that know each other by a list.
fn nodes(s3: &S3Server, count: usize, set: &[(&str, &str)]) -> Vec<Server> {
    nodes_with(s3, count, |options| {
        set.iter().fold(options, |options, (name, value)| options.env(name, value))
    })
}

fn nodes_with(s3: &S3Server, count: usize, change: impl Fn(ServerOptions) -> ServerOptions) -> Vec<Server> {
    let addresses = free_addresses(count).expect("addresses");
    let list =
        addresses.iter().flat_map(|address| ["--cluster-node".to_owned(), format!("http://{address}")]);
    let list: Vec<String> = list.collect();
    let start = |address: &String| {
        change(ServerOptions::for_s3(s3).args(&list).args(["--listen", address.as_str()])).start()
    };
    addresses.iter().map(start).collect()
}

fn urls(nodes: &[Server]) -> String {
    nodes.iter().map(|node| node.endpoint.as_str()).collect::<Vec<_>>().join(",")
}

/// Waits until this number of blocks lies on disk: readers have their bytes a little earlier.
fn wait_for_blocks(server: &Server, count: u64) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let raw = &json(cached(server, &["status"]))["raw"];
        if raw["files"] == count {
            return;
        }
        assert!(Instant::now() < deadline, "{count} blocks are to be held, not {raw}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().expect("start a runtime")
}

/// Ranges of an object as one node answers them, its own blocks or others'; of all of it for none.
pub async fn read_at(node: &str, uri: &str, ranges: &[(u64, u64)]) -> Result<Vec<u8>> {
    let broken = |e: String| Error::retry(e);
    let mut client = ObjectsClient::connect(node.to_owned()).await.map_err(|e| broken(e.to_string()))?;
    let request = v1::HeadObjectRequest { uri: uri.to_owned() };
    let object = client.head(request).await?.into_inner();
    let all = [(0, object.size)];
    let ranges = if ranges.is_empty() { &all } else { ranges };
    let ranges = ranges.iter().map(|&(start, end)| v1::ByteRange { start, end }).collect();
    let request = v1::ReadObjectRequest { object: Some(object), ranges };
    let mut pieces = client.read(request).await?.into_inner();
    let mut got = Vec::new();
    while let Some(piece) = pieces.message().await? {
        got.extend_from_slice(&piece.data);
    }
    Ok(got)
}

#[test]
fn bytes_are_the_stores_cold_warm_and_after_a_restart() {
    let s3 = S3Server::start();
    let folder = tempfile::tempdir().expect("make a folder");
    let options = || ServerOptions::for_s3(&s3).folder(folder.path());
    let objects: Vec<_> = (0..)
        .zip(SIZES)
        .map(|(seed, size)| {
            (s3.uri(&format!("raw/{size}.bin")), put(&s3, &format!("raw/{size}.bin"), seed, size))
        })
        .collect();
    let total: u64 = SIZES.iter().map(|size| *size as u64).sum();
    let server = options().start();
    for (uri, wanted) in &objects {
        check(&format!("cold, {uri}"), &get(&server, uri, &[]), wanted);
    }
    let (heads, _, bytes) = asked(&s3.take_log());
    assert_eq!((heads, bytes), (SIZES.len(), total), "each byte once, and a HEAD for each read");
    for (uri, wanted) in &objects {
        check(&format!("warm, {uri}"), &get(&server, uri, &[]), wanted);
    }
    assert_eq!(asked(&s3.take_log()), (SIZES.len(), 0, 0));
    wait_for_blocks(&server, 9);
    server.stop();
    let server = options().start();
    for (uri, wanted) in &objects {
        let file = folder.path().join("got");
        let line = ["get", uri.as_str(), "-o", file.to_str().expect("a path of text")];
        cached(&server, &line).end().expect_success();
        check(&format!("after a restart, {uri}"), &std::fs::read(&file).expect("read it"), wanted);
    }
    assert_eq!(asked(&s3.take_log()), (SIZES.len(), 0, 0));
    // Without a cache the bytes are the same.
    let (uri, wanted) = &objects[5];
    check("direct", &direct(&s3, &["get", uri]).end().expect_success(), wanted);
    server.stop();
}

#[test]
fn immutable_objects_are_asked_about_once() {
    let s3 = S3Server::start();
    let wanted = put(&s3, "set/a", 1, 300_000);
    let server = ServerOptions::for_s3(&s3)
        .env(SMALL.0, SMALL.1)
        .env("FOREBAY_OBJECTS__METADATA_AGE", "immutable")
        .start();
    let uri = s3.uri("set/a");
    check("cold", &get(&server, &uri, &[]), &wanted);
    assert_eq!(asked(&s3.take_log()).0, 1);
    for _ in 0..3 {
        check("warm", &get(&server, &uri, &[]), &wanted);
    }
    assert_eq!(s3.take_log(), [], "nothing is asked of the object store");
    // Told to forget it, the node asks again.
    cached(&server, &["free", &uri]).end().expect_success();
    check("freed", &get(&server, &uri, &[]), &wanted);
    assert_eq!(asked(&s3.take_log()).0, 1);
    server.stop();
}

#[test]
fn ranges_are_those_of_the_object_and_fetch_no_more_than_their_blocks() {
    let s3 = S3Server::start();
    let wanted = put(&s3, "ranges", 2, 1_000_000);
    let server = ServerOptions::for_s3(&s3).env(SMALL.0, SMALL.1).start();
    let uri = s3.uri("ranges");
    check("one block", &get(&server, &uri, &["70000-70009"]), &wanted[70_000..70_010]);
    assert_eq!(asked(&s3.take_log()), (1, 1, 65_536));
    let got = get(&server, &uri, &["0-0", "-5", "131071-131072", "999990-", "70000-70009"]);
    let parts = [0..1, 999_995..1_000_000, 131_071..131_073, 999_990..1_000_000, 70_000..70_010];
    check("five", &got, &parts.map(|part| wanted[part].to_vec()).concat());
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let ranges: Vec<(u64, u64)> = (0..100)
        .map(|_| {
            let start = random.u64(0..1_000_000);
            (start, random.u64(start + 1..=(start + 200_000).min(1_000_000)))
        })
        .collect();
    let expected = ranges.iter().map(|(a, b)| &wanted[*a as usize..*b as usize]).collect::<Vec<_>>().concat();
    let got = runtime().block_on(read_at(&server.endpoint, &uri, &ranges)).expect("read");
    check(&format!("at random, seed {seed}"), &got, &expected);
    assert!(asked(&s3.take_log()).2 <= 1_000_000, "no byte twice");
    server.stop();
}

#[test]
fn a_cluster_reads_each_byte_once_and_a_peer_has_the_same() {
    let s3 = S3Server::start();
    let (key, size) = ("big", 9 * MIB + 5);
    let wanted = put(&s3, key, 3, size);
    let uri = s3.uri(key);
    let all = nodes(&s3, 3, &[("FOREBAY_OBJECTS__BLOCK_BYTES", "262144")]);
    let (runtime, urls) = (runtime(), urls(&all));
    let readers = (0..8).map(|_| {
        let (urls, uri) = (urls.clone(), uri.clone());
        runtime.spawn(async move {
            let objects = Objects::new(&Access::endpoint(&urls)?);
            let version = objects.version(&uri).await?;
            let pieces: Vec<Bytes> = objects.read(&version, 0..version.size)?.try_collect().await?;
            Ok::<_, Error>(pieces.concat())
        })
    });
    let readers: Vec<_> = readers.collect();
    for reader in readers {
        check("of eight at once", &runtime.block_on(reader).expect("a reader").expect("read"), &wanted);
    }
    let fetched = asked(&s3.take_log()).2;
    assert!(fetched as f64 <= 1.01 * size as f64, "{fetched} bytes for {size}");
    // Each block was asked for at the node that owns it.
    let moved: u64 = all.iter().map(|node| counter(node, "peer_fills")).sum();
    assert!(moved <= 2, "{moved} blocks came from another node");
    // Most blocks are others' at each node: they come from there.
    for node in &all {
        let got = runtime.block_on(read_at(&node.endpoint, &uri, &[])).expect("read");
        check("from peers", &got, &wanted);
    }
    for node in &all {
        assert!(counter(node, "peer_fills") > 5 && counter(node, "peer_bytes_served") > 0);
    }
    assert_eq!(asked(&s3.take_log()).2, 0);
    all.into_iter().for_each(Server::stop);
}

#[test]
fn one_node_knows_versions_for_all_where_they_may_be_old() {
    let s3 = S3Server::start();
    let old = put(&s3, "old", 1, 200_000);
    let all = nodes(&s3, 2, &[SMALL, ("FOREBAY_OBJECTS__METADATA_AGE", "3600s")]);
    let uri = s3.uri("old");
    for node in all.iter().chain(&all) {
        check("old", &get(node, &uri, &[]), &old);
    }
    assert_eq!(asked(&s3.take_log()).0, 1, "one HEAD for the whole cluster");
    put(&s3, "old", 2, 200_000);
    for node in &all {
        check("still old, at every node", &get(node, &uri, &[]), &old);
    }
    all.into_iter().for_each(Server::stop);
}
