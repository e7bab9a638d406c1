//! Policies that change while streams run: those that lose their right end, the others notice nothing.

use super::Guarded;
use crate::refused::server_refused;
use forebay_proto::v1;
use forebay_tests::harness::policy::{AUDIO, ROOT, VISION, Who, write_private};
use forebay_tests::harness::process::ServerOptions;
use forebay_tests::harness::question::{Question, UNKNOWN, code_of, flight_ticket, send};
use http_body_util::BodyExt as _;
use prost::Message as _;
use std::time::{Duration, Instant};

/// Streams of each of two principals.
const STREAMS: usize = 32;

/// How long a revoked stream may go on.
const SOON: Duration = Duration::from_secs(10);

const DO_GET: &str = "/arrow.flight.protocol.FlightService/DoGet";

fn ticket(world: &Guarded, who: &str, key: &str) -> Vec<u8> {
    let dataset = Some(v1::DatasetSpec { uri: world.s3.uri(key), ..Default::default() });
    let request = v1::OpenRequest { dataset, ..Default::default() }.encode_to_vec();
    let answer = world.ask(who, "/forebay.v1.Cache/Open", &request);
    assert_eq!(answer.code, 0, "{}", answer.message);
    let manifest = answer.first::<v1::OpenReply>().expect("a message").manifest.expect("a manifest");
    let scan = v1::ScanTicket { manifest: manifest.digest, ..Default::default() };
    let kind = Some(v1::ticket::Kind::Scan(scan));
    flight_ticket(&v1::Ticket { kind, uri: manifest.uri, ..Default::default() })
}

/// Reads a stream a little at a time; bytes and code, and when it ended.
async fn read_slowly(question: Question<'_>, pause: Duration) -> (usize, Option<u32>, Instant) {
    let mut body = send(question).await.expect("an answer").into_body();
    let (mut bytes, mut code) = (0, None);
    while let Some(frame) = body.frame().await {
        match frame.map(|frame| frame.into_data()) {
            Ok(Ok(data)) => bytes += data.len(),
            Ok(Err(frame)) => code = frame.trailers_ref().and_then(code_of),
            Err(_) => break,
        }
        tokio::time::sleep(pause).await;
    }
    (bytes, code, Instant::now())
}

#[test]
fn streams_of_who_is_revoked_end_and_the_others_go_on() {
    let slow = |who: Who| Who { more: "limits = { bytes_per_s = '20MB' }", ..who };
    let all = [slow(VISION), slow(AUDIO), ROOT];
    let world = Guarded::start(&all, |options| options.allow_log("policy of before stays in force"));
    let (vision, audio) =
        (ticket(&world, "vision", "tenants/vision/set"), ticket(&world, "audio", "tenants/audio/zebra7"));
    let endpoint = world.server.endpoint.as_str();
    let (own, other) = (world.policy.header("vision"), world.policy.header("audio"));
    world.runtime.block_on(async {
        let pause = Duration::from_millis(1);
        let stays = Question { endpoint, path: DO_GET, header: Some(&own), message: &vision };
        let goes = Question { header: Some(&other), message: &audio, ..stays };
        let staying = futures::future::join_all((0..STREAMS).map(|_| read_slowly(stays, pause)));
        let going = futures::future::join_all((0..STREAMS).map(|_| read_slowly(goes, pause)));
        // One that reads nothing at all.
        let stalled = async {
            let mut body = send(goes).await.expect("an answer").into_body();
            tokio::time::sleep(Duration::from_secs(13)).await;
            while let Some(Ok(frame)) = body.frame().await {
                if frame.is_trailers() {
                    return code_of(frame.trailers_ref().expect("trailers")) == Some(UNKNOWN);
                }
            }
            // It ended without an end.
            true
        };
        let change = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            // A policy that is wrong changes nothing.
            write_private(&world.policy.path("policy"), "[[principal]]\nname = 1\n");
            tokio::time::sleep(Duration::from_secs(3)).await;
            world.policy.set(&[slow(VISION), ROOT]);
            Instant::now()
        };
        let (staying, going, is_cut, changed) = futures::join!(staying, going, stalled, change);
        for (bytes, code, ended) in going {
            assert_eq!(code, Some(UNKNOWN), "{bytes} bytes came");
            assert!(ended > changed && ended - changed < SOON, "{:?}", ended - changed);
        }
        let whole = staying.iter().map(|(bytes, ..)| *bytes).max().expect("streams");
        for (bytes, code, _) in staying {
            assert_eq!((code, bytes), (Some(0), whole), "it loses nothing");
        }
        assert!(whole > 7_000_000, "{whole}");
        assert!(is_cut, "who reads nothing is cut");
    });
    let refused = world.ask("audio", "/forebay.v1.Cache/Status", &[]);
    assert_eq!(refused.code, UNKNOWN);
    assert!(world.server.log().contains("another policy is in force"));
}

#[test]
fn a_policy_that_is_cut_to_nothing_locks_nobody_out() {
    let world =
        Guarded::start(&[VISION, ROOT], |options| options.allow_log("policy of before stays in force"));
    let path = world.policy.path("policy");
    let status = |who: &str| world.ask(who, "/forebay.v1.Cache/Status", &[]).code;
    let wait_until = |what: &str, done: &dyn Fn() -> bool| {
        let begin = Instant::now();
        while !done() {
            assert!(begin.elapsed() < SOON, "{what} in {SOON:?}: {}", world.server.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    // As a shell does that is about to write it, and stops.
    write_private(&path, "");
    wait_until("it is refused", &|| world.server.log().contains("it has no principal"));
    assert_eq!((status("vision"), status("root")), (0, 0), "the one of before is in force");
    server_refused(ServerOptions::for_s3(&world.s3).args(world.policy.arguments()), &["it has no principal"]);
    world.policy.set(&[ROOT]);
    wait_until("the next one takes force", &|| status("vision") == UNKNOWN);
    assert_eq!(status("root"), 0);
}
