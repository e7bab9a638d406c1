//! Those whom the policy does not know, those who may not, and the log of both.

use super::Guarded;
use crate::commands::{digest, json};
use forebay_proto::token::NewToken;
use forebay_proto::v1;
use forebay_tests::harness::policy::{ALL, AUDIO, VISION, Who};
use forebay_tests::harness::question::{
    Answer, DENIED, NOT_FOUND, Question, UNKNOWN, ask, flight_ticket, send,
};
use prost::Message as _;
use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

const OPEN: &str = "/forebay.v1.Cache/Open";
const DO_GET: &str = "/arrow.flight.protocol.FlightService/DoGet";

fn open(uris: &[&str]) -> Vec<u8> {
    let part = |uri: &&str| v1::MixPart { uri: (*uri).into(), share: 1.0, ..Default::default() };
    let dataset = match uris {
        [uri] => v1::DatasetSpec { uri: (*uri).into(), ..Default::default() },
        uris => v1::DatasetSpec { mix: uris.iter().map(part).collect(), ..Default::default() },
    };
    v1::OpenRequest { dataset: Some(dataset), ..Default::default() }.encode_to_vec()
}

/// Without what names the request: that is another each time.
fn text(answer: &Answer) -> &str {
    answer.message.split(" (request ").next().unwrap_or_default()
}

/// Cases 16 and 17: nothing, and everything that is no token of this node.
#[test]
fn strangers_are_told_the_same_whatever_they_ask_for() {
    let world = Guarded::start(&ALL, |options| options);
    let there = open(&[&world.s3.uri("tenants/vision/set")]);
    let nowhere = open(&[&world.s3.uri("tenants/nothing")]);
    let (a, b) = (world.ask(None, OPEN, &there), world.ask(None, OPEN, &nowhere));
    assert_eq!((a.code, text(&a)), (UNKNOWN, text(&b)));
    let good = world.policy.tokens["vision"].text();
    let other = NewToken::new([99; 40]);
    let long = "x".repeat(12_000);
    let id = good.split('.').nth(1).expect("an id");
    for token in [
        "",
        other.text(),
        &good[..good.len() - 1],
        &format!("{good}0"),
        &format!("fb1.{id}.{}", "0".repeat(64)),
        &long,
        "a.b.c",
    ] {
        let answer = world.ask_with(Some(&format!("Bearer {token}")), OPEN, &there);
        assert_eq!((answer.code, text(&answer)), (UNKNOWN, text(&a)), "{token:.40}");
    }
    for header in [good, &format!("Basic {good}")] {
        assert_eq!(world.ask_with(Some(header), OPEN, &there).code, UNKNOWN);
    }
    assert_eq!(world.ask(Some("vision"), OPEN, &there).code, 0);
    assert_eq!(world.ask(Some("vision"), "/forebay.v1.Cache/Nothing", &[]).code, DENIED, "not in the table");
    assert_eq!(world.ask(None, "/grpc.health.v1.Health/Check", &[]).code, 0);
    assert_eq!(world.ask(None, "/grpc.health.v1.Health/Watch", &[]).code, UNKNOWN);
    assert!(!world.server.log().contains(good) && !world.server.log().contains(&long[..100]));
    scrape(&world);
}

/// `/metrics` is for those with the role, `/health` for all.
fn scrape(world: &Guarded) {
    let metrics = world.server.metrics.as_ref().expect("metrics").trim_start_matches("http://");
    let get = |path: &str, token: Option<&str>| {
        let mut stream = std::net::TcpStream::connect(metrics).expect("connect");
        let header = token.map(|who| format!("Authorization: {}\r\n", world.policy.header(who)));
        let header = header.unwrap_or_default();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: h\r\n{header}Connection: close\r\n\r\n").expect("ask");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        text
    };
    assert!(get("/metrics", None).starts_with("HTTP/1.1 401 "));
    assert!(get("/metrics", Some("vision")).starts_with("HTTP/1.1 403 "));
    for who in ["scraper", "root"] {
        let text = get("/metrics", Some(who));
        assert!(text.starts_with("HTTP/1.1 200 ") && text.contains("forebay_calls_unknown_total"), "{text}");
    }
    assert!(get("/health", None).ends_with("\r\n\r\nok\n"));
}

/// Cases 22 and 23: a digest is no right, and every part of a mix counts.
#[test]
fn a_digest_is_no_right_and_every_part_counts() {
    let world = Guarded::start(&ALL, |options| options);
    let (own, other) = (world.s3.uri("tenants/vision/set"), world.s3.uri("tenants/audio/zebra7"));
    let opened = |who: &str, uris: &[&str]| {
        let answer = world.ask(Some(who), OPEN, &open(uris));
        assert_eq!(answer.code, 0, "{}", answer.message);
        answer.first::<v1::OpenReply>().expect("a message").manifest.expect("a manifest").digest.to_vec()
    };
    let scan = |digest: &[u8], uri: &str| {
        let scan = v1::ScanTicket { manifest: digest.to_vec().into(), limit: 3, ..Default::default() };
        let kind = Some(v1::ticket::Kind::Scan(scan));
        flight_ticket(&v1::Ticket { kind, uri: uri.into(), ..Default::default() })
    };
    let (theirs, mixed) = (opened("audio", &[&other]), opened("root", &[&own, &other]));
    let mine = opened("vision", &[&own]);
    let read = |who: &str, digest: &[u8], uri: &str| world.ask(Some(who), DO_GET, &scan(digest, uri));
    // Both tenants have the same rows, so the version is the same, and the place decides.
    assert_eq!(theirs, mine);
    assert_eq!(read("vision", &mine, &own).code, 0);
    assert_eq!(read("vision", &mine, "").code, 0, "the only one that it may read");
    let unknown = read("vision", &[9; 16], &other);
    for (digest, uri) in [(&theirs, other.as_str()), (&mixed, ""), (&mixed, own.as_str())] {
        let answer = read("vision", digest, uri);
        let hex = |digest: &[u8]| digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let same = unknown.message.replace(&hex(&[9; 16]), &hex(digest));
        assert_eq!((answer.code, answer.message.as_str()), (NOT_FOUND, same.as_str()), "{uri}");
        assert_eq!(answer.body.len(), 0);
    }
    assert_eq!(read("audio", &theirs, &other).code, 0);
    assert_eq!(read("root", &mixed, "").code, 0);
    for uris in [&[own.as_str(), &other][..], &[&other, &own], &[&other]] {
        assert_eq!(world.ask(Some("vision"), OPEN, &open(uris)).code, DENIED, "{uris:?}");
    }
    for uri in ["file:///proc/self/environ", "s3://other-bucket/x", "gs://x/y"] {
        assert_eq!(world.ask(Some("vision"), OPEN, &open(&[uri])).code, DENIED, "{uri}");
    }
    for uri in [format!("{own}/../../audio"), format!("{own}/./x"), format!("{own}//x")] {
        assert_eq!(world.ask(Some("vision"), OPEN, &open(&[&uri])).code, 3, "{uri}");
    }
    let listed = |key: &str| {
        let objects = vec![v1::Object { key: key.into(), ..Default::default() }];
        let dataset = Some(v1::DatasetSpec { uri: own.clone(), objects, ..Default::default() });
        let request = v1::OpenRequest { dataset, ..Default::default() };
        world.ask(Some("vision"), OPEN, &request.encode_to_vec()).code
    };
    assert_eq!(listed("part-00000.parquet"), 0);
    assert_eq!(listed(&format!("{other}/part-00000.parquet")), DENIED);
}

/// Who calls which method, with which message; the code of the answer, and the outcome in the log.
type AuditedCall<'a> = (Option<&'a str>, &'a str, Vec<u8>, u32, &'a str);

/// Case 25, and the audit log: each denial and each call of an operator, once.
#[test]
fn denials_and_calls_of_operators_are_written_down_once() {
    let world = Guarded::start(&ALL, |options| options);
    let uri = world.s3.uri("tenants/audio");
    let free = v1::FreeRequest { uri: uri.clone(), ..Default::default() }.encode_to_vec();
    let cases: [AuditedCall<'_>; 7] = [
        (None, "/forebay.v1.Cache/Drain", vec![], UNKNOWN, "denied"),
        (Some("vision"), "/forebay.v1.Cache/Drain", vec![], DENIED, "denied"),
        (Some("vision"), "/forebay.v1.Cache/Free", free.clone(), DENIED, "denied"),
        (Some("vision"), OPEN, open(&[&uri]), DENIED, "denied"),
        (Some("scraper"), OPEN, open(&[&uri]), DENIED, "denied"),
        (Some("root"), "/forebay.v1.Cache/Free", free, 0, "ok"),
        (Some("root"), "/forebay.v1.Cache/Drain", vec![], 3, "InvalidArgument"),
    ];
    for (who, path, message, code, _) in &cases {
        let answer = world.ask(*who, path, message);
        assert_eq!(answer.code, *code, "{path}: {}", answer.message);
        // What reads is not written down.
        assert_eq!(world.ask(Some("vision"), "/forebay.v1.Cache/Status", &[]).code, 0);
    }
    std::thread::sleep(Duration::from_millis(300));
    let lines = world.audit(cases.len());
    assert_eq!(lines.len(), cases.len(), "{lines:?}");
    for (line, (who, path, _, _, outcome)) in lines.iter().zip(&cases) {
        assert_eq!(line["principal"].as_str(), Some(who.unwrap_or_default()), "{line}");
        assert_eq!((line["call"].as_str(), line["outcome"].as_str()), (Some(*path), Some(*outcome)));
        assert!(line["address"] == "127.0.0.1" && line["request"].as_str().is_some_and(|id| id.len() == 16));
    }
    assert!(
        lines[3]["uri"].as_str() == Some(&uri)
            && lines[1]["by"].as_str().is_some_and(|by| by.starts_with("token "))
    );
    let log = std::fs::read_to_string(world.policy.path("audit")).expect("the log");
    assert!(world.policy.tokens.values().all(|token| !log.contains(token.text())));
}

/// Case 31 and 32 as far as they are about a principal: its rates and its streams.
#[test]
fn a_principal_takes_no_more_than_it_may() {
    let limited = Who { more: "limits = { opens_per_s = 4, streams = 2, bytes_per_s = 2000000 }", ..VISION };
    let world = Guarded::start(&[limited, AUDIO], |options| options);
    let own = world.s3.uri("tenants/vision/set");
    let request = open(&[&own]);
    assert_eq!(world.ask(Some("vision"), OPEN, &request).code, 0);
    let begin = Instant::now();
    for _ in 0..12 {
        assert_eq!(world.ask(Some("vision"), OPEN, &request).code, 0);
    }
    let per_s = 12.0 / begin.elapsed().as_secs_f64();
    assert!(per_s < 4.0 * 1.05, "{per_s} opens a second");
    let begin = Instant::now();
    let audio = open(&[&world.s3.uri("tenants/audio/zebra7")]);
    for _ in 0..12 {
        assert_eq!(world.ask(Some("audio"), OPEN, &audio).code, 0);
    }
    assert!(begin.elapsed() < Duration::from_secs(3), "others are not held up: {:?}", begin.elapsed());
    // About 8 MB of rows: at 2 MB/s some seconds.
    let begin = Instant::now();
    let epoch = json(world.command("vision", &["epoch", &own, "--same-host", "off"]));
    let (took, bytes) = (begin.elapsed().as_secs_f64(), 10_000.0 * 785.0);
    assert!(bytes / took < 2e6 * 1.05, "{} bytes a second", bytes / took);
    assert_eq!(digest(&epoch, 0).len(), 32);
    let ticket = {
        let answer = world.ask(Some("vision"), OPEN, &request);
        let manifest =
            answer.first::<v1::OpenReply>().expect("a message").manifest.expect("a manifest").digest;
        let kind = Some(v1::ticket::Kind::Scan(v1::ScanTicket { manifest, ..Default::default() }));
        flight_ticket(&v1::Ticket { kind, ..Default::default() })
    };
    let header = world.policy.header("vision");
    let question = || Question {
        endpoint: &world.server.endpoint,
        path: DO_GET,
        header: Some(&header),
        message: &ticket,
    };
    world.runtime.block_on(async {
        let (_one, _two) =
            (send(question()).await.expect("an answer"), send(question()).await.expect("an answer"));
        let third = ask(question()).await.expect("an answer");
        assert!(third.code == 14 && third.message.contains("2 streams"), "{} {}", third.code, third.message);
    });
}
