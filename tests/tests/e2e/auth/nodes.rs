//! Nodes of a cluster with a policy know each other by a token; and readers on a node's own host by theirs.

use super::Guarded;
use crate::commands::json;
use crate::refused::server_refused;
use forebay_proto::v1;
use forebay_tests::harness::mnist;
use forebay_tests::harness::policy::ALL;
use forebay_tests::harness::policy::Policy;
use forebay_tests::harness::ports::free_address;
use forebay_tests::harness::process::{Run, Server, ServerOptions};
use forebay_tests::harness::question::{Question, ask_whole, flight_ticket};
use forebay_tests::harness::s3::S3Server;
use prost::Message as _;
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

/// What the log says of a node that others cannot know, and of one that they do not.
const NO_TOKEN: &str = "no --peer-token-file";
const REFUSED: &str = "another node refuses this one's calls";

fn cluster(s3: &S3Server, policy: &Policy, more: &[&str]) -> Vec<Server> {
    let addresses = [0, 1].map(|_| free_address().expect("a port"));
    let node = |address: &String| {
        let mut options = ServerOptions::for_s3(s3).args(policy.arguments()).args(["--listen", address]);
        for (n, address) in addresses.iter().enumerate() {
            options = options.args(["--cluster-node", &format!("node-{n}=http://{address}")]);
        }
        let options = options.allow_log(NO_TOKEN).allow_log(REFUSED);
        options.args(more).start()
    };
    addresses.iter().map(|address| node(&address.to_string())).collect()
}

fn ask(server: &Server, policy: &Policy, who: &str, arguments: &[&str]) -> Value {
    let token = policy.token_file(who);
    let run = Run::new("forebay").args(arguments).args(["--endpoint", &server.endpoint]);
    json(run.arg("--token-file").arg(token))
}

#[test]
fn nodes_know_each_other_by_their_token() {
    let s3 = S3Server::start();
    mnist::upload_folder(&s3, &mnist::folder().join("test"), "tenants/vision/set").expect("read MNIST");
    let uri = s3.uri("tenants/vision/set");
    let policy = Policy::new(&s3, &ALL);
    let token = policy.token_file("peers").display().to_string();
    let runtime = tokio::runtime::Runtime::new().expect("start a runtime");
    // A principal's token that is not a node's.
    let other = policy.token_file("vision").display().to_string();
    for (more, fills, told) in [
        (&["--peer-token-file", token.as_str()][..], true, &[][..]),
        (&[], false, &[NO_TOKEN, REFUSED, "does not know you"]),
        (&["--peer-token-file", other.as_str()], false, &[REFUSED, "it needs the role peer"]),
    ] {
        let nodes = cluster(&s3, &policy, more);
        ask(&nodes[0], &policy, "vision", &["load", &uri, "--segment-bytes", "262144"]);
        // Read from one node alone, which owns only some of it.
        let header = policy.header("vision");
        let read = |path: &str, message: &[u8]| {
            let question = Question { endpoint: &nodes[1].endpoint, path, header: Some(&header), message };
            let answer = runtime.block_on(ask_whole(question)).expect("an answer");
            assert_eq!(answer.code, 0, "{}", answer.message);
            answer
        };
        let dataset = v1::DatasetSpec { uri: uri.clone(), segment_bytes: 262_144, ..Default::default() };
        let open = v1::OpenRequest { dataset: Some(dataset), ..Default::default() };
        let opened: v1::OpenReply =
            read("/forebay.v1.Cache/Open", &open.encode_to_vec()).first().expect("a message");
        let manifest = opened.manifest.expect("a manifest").digest;
        let kind = Some(v1::ticket::Kind::Scan(v1::ScanTicket { manifest, ..Default::default() }));
        let ticket = flight_ticket(&v1::Ticket { kind, ..Default::default() });
        let rows = read("/arrow.flight.protocol.FlightService/DoGet", &ticket);
        assert!(rows.body.len() > 7_000_000, "{} bytes", rows.body.len());
        let status = ask(&nodes[1], &policy, "root", &["status"]);
        let fetched = status["counters"]["peer_fills"].as_u64().expect("a counter");
        assert_eq!(
            fetched > 0,
            fills,
            "{fetched} segments came from the other node, with {more:?}: {status}"
        );
        let log = nodes[1].log();
        for text in [NO_TOKEN, REFUSED].iter().chain(told) {
            assert_eq!(log.contains(text), told.contains(text), "`{text}`, with {more:?}: {log}");
        }
    }
}

#[test]
fn a_peer_token_that_cannot_be_read_is_told_at_the_start() {
    let s3 = S3Server::start();
    let policy = Policy::new(&s3, &ALL);
    let options = ServerOptions::for_s3(&s3).args(policy.arguments());
    server_refused(options.args(["--peer-token-file", "/nope/token"]), &["--peer-token-file", "/nope/token"]);
}

#[test]
fn memory_is_shared_with_those_who_have_a_ticket() {
    let world = Guarded::start(&ALL, |options| options);
    let uri = world.s3.uri("tenants/vision/set");
    json(world.command("vision", &["epoch", &uri]));
    let status = json(world.command("root", &["status"]));
    assert!(status["counters"]["shared_bytes"].as_u64().expect("a counter") > 1_000_000, "{status}");
    // Without a ticket, or with one that is made up, the connection ends.
    let socket = world.server.folder.join("cache/forebay.sock");
    for ticket in [[0_u8; 16], [7; 16]] {
        let mut stream = UnixStream::connect(&socket).expect("connect");
        stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).expect("a timeout");
        let hello =
            [&[0xf7, b'F', b'B', b'S', b'H', b'M', 0, 2][..], &(1_u64 << 20).to_le_bytes(), &ticket].concat();
        stream.write_all(&hello).expect("say hello");
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        assert!(read.is_err() || answer.is_empty(), "no region: {answer:?}");
    }
}

#[test]
fn what_an_epoch_cost_is_for_those_who_see_figures() {
    let world = Guarded::start(&ALL, |options| options);
    let uri = world.s3.uri("tenants/vision/set");
    let epoch = json(world.command("vision", &["epoch", &uri]));
    let untold = &epoch["epochs"][0];
    assert!(untold["samples"].as_u64() > Some(0) && untold["source"] == "cache", "{untold}");
    assert!(
        untold.get("s3_bytes").is_none() && untold.get("misses").is_none(),
        "they are not told: {untold}"
    );
    let epoch = json(world.command("root", &["epoch", &uri]));
    let told = &epoch["epochs"][0];
    assert_eq!((told["s3_bytes"].as_u64(), told["misses"].as_u64()), (Some(0), Some(0)), "{told}");
}
