//! A principal that takes more than it may.

use super::Guarded;
use crate::commands::{digest, json};
use forebay_proto::v1;
use forebay_tests::harness::policy::{AUDIO, VISION, Who};
use forebay_tests::harness::question::{Question, ask, flight_ticket, send};
use prost::Message as _;
use std::time::{Duration, Instant};

const OPEN: &str = "/forebay.v1.Cache/Open";
const DO_GET: &str = "/arrow.flight.protocol.FlightService/DoGet";

fn open(uri: &str) -> Vec<u8> {
    let dataset = v1::DatasetSpec { uri: uri.into(), ..Default::default() };
    v1::OpenRequest { dataset: Some(dataset), ..Default::default() }.encode_to_vec()
}

/// Case 31 and 32 as far as they are about a principal: its rates and its streams.
#[test]
fn a_principal_takes_no_more_than_it_may() {
    let limited = Who { more: "limits = { opens_per_s = 4, streams = 2, bytes_per_s = 2000000 }", ..VISION };
    let world = Guarded::start(&[limited, AUDIO], |options| options);
    let own = world.s3.uri("tenants/vision/set");
    let request = open(&own);
    assert_eq!(world.ask("vision", OPEN, &request).code, 0);
    let begin = Instant::now();
    for _ in 0..12 {
        assert_eq!(world.ask("vision", OPEN, &request).code, 0);
    }
    let per_s = 12.0 / begin.elapsed().as_secs_f64();
    assert!(per_s < 4.0 * 1.05, "{per_s} opens a second");
    let begin = Instant::now();
    let audio = open(&world.s3.uri("tenants/audio/zebra7"));
    for _ in 0..12 {
        assert_eq!(world.ask("audio", OPEN, &audio).code, 0);
    }
    assert!(begin.elapsed() < Duration::from_secs(3), "others are not held up: {:?}", begin.elapsed());
    // About 8 MB of rows: at 2 MB/s some seconds.
    let begin = Instant::now();
    let epoch = json(world.command("vision", &["epoch", &own, "--same-host", "off"]));
    let (took, bytes) = (begin.elapsed().as_secs_f64(), 10_000.0 * 785.0);
    assert!(bytes / took < 2e6 * 1.05, "{} bytes a second", bytes / took);
    assert_eq!(digest(&epoch, 0).len(), 32);
    let ticket = {
        let answer = world.ask("vision", OPEN, &request);
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
