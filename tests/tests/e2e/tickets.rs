//! Tickets from somebody who does not speak the protocol, or speaks it to do harm: refused, and the node
//! stays well.

use std::time::{Duration, Instant};

use forebay_client::stream::{Stream, WINDOW_BYTES};
use forebay_client::{Access, Dataset, DatasetSpec};
use forebay_proto::plan::{PlanKey, Shuffle};
use forebay_proto::{Error, v1};
use forebay_tests::harness::process::ServerOptions;
use forebay_tests::harness::s3::S3Server;
use prost::Message;

use crate::commands::rows;
use crate::fixtures;

/// The answer to a ticket: how many events came, or the error.
async fn ask(address: &str, ticket: &[u8]) -> Result<usize, Error> {
    let reading = async {
        let mut stream = Stream::open(address, ticket, WINDOW_BYTES).await?;
        let mut events = 0;
        while stream.next().await?.is_some() {
            events += 1;
        }
        Ok(events)
    };
    tokio::time::timeout(Duration::from_secs(60), reading).await.expect("an answer in time")
}

fn encoded(kind: v1::ticket::Kind) -> Vec<u8> {
    v1::Ticket { kind: Some(kind), ..Default::default() }.encode_to_vec()
}

/// Changes one thing about a ticket that is good.
type Change = fn(&mut v1::PlanTicket);

const NONSENSE: [(Change, &str); 13] = [
    (|t| t.world = 0, "world size 0"),
    (|t| t.global_batch = 0, "global batch 0"),
    (|t| t.global_batch = 101, "101"),
    (|t| t.global_batch = u64::MAX - 1, "2^31"),
    (|t| t.global_batch = 2_000_000_000, "use a smaller one"),
    (|t| t.rank = 2, "rank 2 of 2"),
    (|t| t.rank = u32::MAX, "ranks count from 0"),
    (|t| t.first_position = u64::MAX, "cannot start at sample"),
    (|t| t.ending = 77, "unknown ending"),
    (|t| t.layout = -1, "unknown layout"),
    (|t| t.plan = None, "16 bytes"),
    (|t| t.columns = vec!["colour".into()], "'colour'"),
    (|t| t.plan.as_mut().expect("a plan").version = 99, "version 99"),
];

#[test]
fn tickets_that_make_no_sense_are_refused() {
    let s3 = S3Server::start();
    let uri = fixtures::upload(&s3, "good/many-files");
    let server = ServerOptions::for_s3(&s3).start();
    let before = rows(&server, &uri);
    let runtime = tokio::runtime::Runtime::new().expect("start a runtime");
    let address = server.endpoint.as_str();
    let answer = |ticket: &[u8]| runtime.block_on(ask(address, ticket));

    let access = Access::endpoint(address).expect("an endpoint");
    let spec = DatasetSpec { uri: uri.clone(), ..Default::default() };
    let dataset = runtime.block_on(Dataset::open(&access, &spec)).expect("open");
    let manifest = dataset.manifest.digest();
    let key = PlanKey { manifest, seed: 0, epoch: 0, shuffle: Shuffle::Window(2) };
    let good = v1::PlanTicket {
        plan: Some(key.into()),
        global_batch: 100,
        world: 2,
        ending: v1::plan_ticket::Ending::Exact.into(),
        ..Default::default()
    };
    let good_bytes = encoded(v1::ticket::Kind::Plan(good.clone()));
    assert!(answer(&good_bytes).expect("a good ticket") > 0);

    for (change, says) in NONSENSE {
        let mut ticket = good.clone();
        change(&mut ticket);
        let e = answer(&encoded(v1::ticket::Kind::Plan(ticket))).expect_err(says);
        assert!(e.message.contains(says) && !e.message.contains('\n'), "it should say `{says}`: {e}");
    }
    let mut stranger = good.clone();
    stranger.plan.as_mut().expect("a plan").manifest = vec![7; 16].into();
    let e = answer(&encoded(v1::ticket::Kind::Plan(stranger))).expect_err("an unknown dataset");
    assert!(e.message.contains("is not known to this node"), "{e}");

    let picks = |segment: Vec<u32>, row: Vec<u64>| {
        let manifest = manifest.to_bytes().to_vec().into();
        encoded(v1::ticket::Kind::Rows(v1::RowsTicket { manifest, segment, row, ..Default::default() }))
    };
    assert!(answer(&picks(vec![0, 1], vec![5, 0])).is_ok());
    for (segment, row) in
        [(vec![0], vec![]), (vec![u32::MAX], vec![0]), (vec![0], vec![u64::MAX]), (vec![0], vec![130])]
    {
        answer(&picks(segment.clone(), row.clone())).expect_err(&format!("{segment:?} {row:?}"));
    }
    answer(&[]).expect_err("an empty ticket");
    answer(&vec![b'x'; 40 << 20]).expect_err("40 MiB of nothing");

    // Whatever single byte is wrong, there is an answer: rows or an error, but never silence.
    let start = Instant::now();
    for at in 0..good_bytes.len() {
        let mut damaged = good_bytes.clone();
        damaged[at] = damaged[at].wrapping_add(1 + (at as u8).wrapping_mul(37));
        let _ = answer(&damaged);
        let _ = answer(&good_bytes[..at]);
    }
    assert!(start.elapsed() < Duration::from_secs(300), "{:?}", start.elapsed());

    assert!(rows(&server, &uri) == before, "the node serves as before");
    server.stop();
}

#[test]
fn somebody_who_speaks_no_http_is_ignored() {
    use std::io::Write;
    let s3 = S3Server::start();
    let uri = fixtures::upload(&s3, "good/one-row");
    let server = ServerOptions::for_s3(&s3).start();
    let address = server.endpoint.trim_start_matches("http://").to_owned();
    let mut connections = Vec::new();
    for noise in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0", &[0xff; 5000], b""]
    {
        let mut stream = std::net::TcpStream::connect(&address).expect("connect");
        // It may hang up on us while we talk.
        let _ = stream.write_all(noise);
        connections.push(stream);
    }
    rows(&server, &uri);
    drop(connections);
    server.stop();
}
