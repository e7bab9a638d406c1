//! `make attack`, at small sizes and without a reader beside it: what becomes of the attacks, and of the
//! node.

use forebay_tests::bench::attack::{Arena, AttackCase, CASES, SHORT, alone};
use forebay_tests::harness::check::Check;
use forebay_tests::harness::frames::{RawHttp2, closes_within, flag, frame, grpc, kind, stranger};
use forebay_tests::harness::process::{Server, ServerOptions};
use forebay_tests::harness::s3::S3Server;
use std::time::Duration;

/// The attacks of some numbers.
fn survived(numbers: std::ops::Range<u32>) {
    let s3 = S3Server::start();
    let table = Arena::upload(&s3, 4, 1024).expect("make a table");
    let cases: Vec<&AttackCase> = CASES.iter().filter(|case| numbers.contains(&case.number)).collect();
    assert!(!cases.is_empty());
    let mut broken = Vec::new();
    for cases in cases.chunk_by(|a, b| a.guard == b.guard) {
        let arena = Arena::start(&s3, &table, SHORT, cases[0].guard).expect("start a node");
        for case in cases {
            let checks = alone(case, &arena).unwrap_or_else(|e| panic!("case {}: {e:#}", case.number));
            let failed = checks.iter().filter(|check| check.is_broken());
            broken.extend(failed.map(|check: &Check| format!("case {}: {check}", case.number)));
        }
        arena.server.stop();
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn silence_is_survived() {
    survived(1..6);
}

#[test]
fn frames_are_survived() {
    survived(6..11);
}

#[test]
fn bodies_are_survived() {
    survived(11..16);
}

#[test]
fn amplification_is_survived() {
    survived(31..32);
}

#[test]
fn certificates_are_survived() {
    survived(19..22);
}

#[test]
fn strangers_are_survived() {
    survived(16..19);
}

#[test]
fn tenants_are_survived() {
    survived(22..27);
}

#[test]
fn nonsense_is_survived() {
    survived(33..38);
}

#[test]
fn rogue_members_are_survived() {
    survived(44..45);
}

#[test]
fn rotations_are_survived() {
    survived(45..46);
}

#[test]
fn secrets_are_survived() {
    survived(43..44);
}

#[test]
fn places_are_survived() {
    survived(27..29);
}

#[test]
fn opens_are_survived() {
    survived(32..33);
}

#[test]
fn s3_is_survived() {
    survived(38..41);
}

#[test]
fn floods_of_s3_are_survived() {
    survived(41..43);
}

#[test]
fn the_end_is_not_delayed() {
    survived(46..47);
}

#[test]
fn the_page_has_every_attack() {
    let page = include_str!("../../../docs/security.md");
    let attacks = page.split("## Attacks").nth(1).expect("a chapter of attacks");
    let rows = attacks.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next()?.parse().ok());
    let numbers: Vec<u32> = CASES.iter().map(|case| case.number).collect();
    assert_eq!(rows.collect::<Vec<u32>>(), numbers);
}

/// How long something may take that is to be soon.
const SOON: Duration = Duration::from_secs(20);

fn node(limits: &[(&str, &str)]) -> Server {
    let options = ServerOptions::bare().args(["--allow", "file:///nowhere/"]);
    limits
        .iter()
        .fold(options, |options, (name, value)| options.env(&format!("FOREBAY_LIMITS__{name}"), value))
        .start()
}

fn http2(server: &Server) -> RawHttp2 {
    let at = server.endpoint.trim_start_matches("http://").parse().expect("an address");
    RawHttp2::open(stranger(1), at).expect("connect")
}

/// Asks for the node's health on a stream.
fn ask(connection: &mut RawHttp2, stream: u32) -> bool {
    connection.request(stream, "/grpc.health.v1.Health/Check").expect("ask");
    connection.say(&frame(kind::DATA, flag::END_STREAM, stream, &grpc(0, 0, b""))).expect("ask");
    connection.find(SOON, |f| f.kind == kind::DATA && f.stream == stream).is_some()
}

#[test]
fn a_connection_without_a_request_ends_and_one_that_waits_for_news_does_not() {
    let server = node(&[("HANDSHAKE_S", "0.5"), ("IDLE_S", "1")]);
    let mut watching = http2(&server);
    watching.request(1, "/forebay.v1.Cache/WatchTopology").expect("ask");
    watching.say(&frame(kind::DATA, flag::END_STREAM, 1, &grpc(0, 0, b""))).expect("ask");
    assert!(watching.find(SOON, |f| f.kind == kind::DATA).is_some(), "the topology of now");
    let mut idle = http2(&server);
    assert!(ask(&mut idle, 1));
    assert!(idle.find(SOON, |f| f.kind == kind::GOAWAY).is_some(), "it is told to end");
    assert!(closes_within(&mut idle.stream, SOON).expect("read"));
    assert!(ask(&mut watching, 3), "it has a request, and is there still");
    assert!(refused(&server, "idle") == 1 && refused(&server, "silent") == 0);
    server.stop();
}

#[test]
fn an_address_has_so_many_connections_and_a_silent_one_gives_way() {
    let server = node(&[("CONNECTIONS", "8"), ("CONNECTIONS_PER_ADDRESS", "2")]);
    let (mut one, mut silent) = (http2(&server), http2(&server));
    assert!(ask(&mut one, 1));
    let mut three = http2(&server);
    assert!(ask(&mut three, 1), "in place of the silent one");
    assert!(closes_within(&mut silent.stream, SOON).expect("read"));
    let mut four = http2(&server);
    assert!(closes_within(&mut four.stream, SOON).expect("read"), "two have asked for something");
    assert!(ask(&mut one, 3) && ask(&mut three, 3));
    assert_eq!((refused(&server, "silent"), refused(&server, "address")), (1, 1));
    drop(one);
    let at = server.endpoint.trim_start_matches("http://").parse().expect("an address");
    let mut other = RawHttp2::open(stranger(2), at).expect("connect");
    assert!(ask(&mut other, 1), "another address has places of its own");
    server.stop();
}

#[test]
fn what_is_turned_away_is_counted() {
    let server = node(&[("HANDSHAKE_S", "0.5")]);
    let mut connection = http2(&server);
    for (stream, path) in [
        (1, "/forebay.v1.Peer/Learn"),
        (3, "/arrow.flight.protocol.FlightService/DoGet"),
        (5, "/grpc.health.v1.Health/Check"),
    ] {
        connection.request(stream, path).expect("ask");
        // The rest never comes, and is not waited for.
        connection.say(&frame(kind::DATA, 0, stream, &grpc(0, u32::MAX, b"x"))).expect("ask");
        assert!(connection.find(SOON, |f| f.kind == kind::HEADERS && f.stream == stream).is_some(), "{path}");
    }
    assert_eq!(refused(&server, "request"), 3);
    let mut silent = http2(&server);
    assert!(closes_within(&mut silent.stream, SOON).expect("read"));
    assert_eq!(refused(&server, "silent"), 1);
    server.stop();
}

#[test]
fn the_text_of_metrics_is_used_again() {
    let server = node(&[("METRICS_AGE_S", "1000")]);
    let before = metrics(&server);
    assert!(before.contains("forebay_connections{listener=\"grpc\"} 0"), "{before}");
    assert!(ask(&mut http2(&server), 1));
    assert_eq!(metrics(&server), before);
    server.stop();
}

fn metrics(server: &Server) -> String {
    crate::node::get(server.metrics.as_deref().expect("an address of metrics"), "/metrics")
}

/// How often the node turned somebody away for a reason.
fn refused(server: &Server, why: &str) -> u64 {
    let text = metrics(server);
    let start = format!("forebay_refused_total{{why=\"{why}\"}} ");
    let count = text.lines().find_map(|line| line.strip_prefix(&start));
    count.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{why}: {text}"))
}
