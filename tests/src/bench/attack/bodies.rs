//! Attacks by bodies that are sent, and by not reading what comes: cases 11 to 15, 33 to 35.

use super::arena::{Arena, LATE};
use super::calls::{INVALID_ARGUMENT, OK, Pieces, UNIMPLEMENTED, call, call_as, filler, piece};
use crate::harness::check::Check;
use crate::harness::frames::{RawHttp2, flag, frame, grpc, kind};
use crate::harness::question::{DENIED, UNKNOWN, flight_ticket};
use bytes::Bytes;
use forebay_proto::v1;
use futures::future::join_all;
use futures::{StreamExt, stream};
use prost::Message;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

const DO_GET: &str = "/arrow.flight.protocol.FlightService/DoGet";
const LEARN: &str = "/forebay.v1.Peer/Learn";
const OPEN: &str = "/forebay.v1.Cache/Open";
const OPEN_PARTS: &str = "/forebay.v1.Cache/OpenParts";
const READ: &str = "/forebay.v1.Objects/Read";

/// Bytes of a body that are sent before the node's word of it can be back.
const WINDOW_BYTES: u64 = 2 << 20;

/// Requests of case 34 that come at once.
const MANY_AT_ONCE: usize = 16;

fn runtime() -> anyhow::Result<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?)
}

/// Many calls at once; how many were answered as if they were good.
fn good_answers(arena: &Arena<'_>, path: &str, bodies: Vec<Pieces>) -> anyhow::Result<usize> {
    let calls = bodies.into_iter().map(|body| call(arena.grpc, path, body));
    let answers = runtime()?.block_on(join_all(calls));
    let codes = answers.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    Ok(codes.into_iter().filter(|code| *code == Some(OK)).count())
}

/// 11: large bodies that are no tickets, some from their first byte, some only at their end.
pub fn no_tickets(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let (count, bytes) = arena.scale.bodies;
    let body = |n: usize| {
        // The second kind begins as a Flight ticket does, and holds none.
        let head = match n % 2 {
            0 => grpc(0, bytes as u32, &[]),
            _ => grpc(0, bytes as u32 + 5, &[0x0a, 0x80 | 5, 0x80, 0x80, 0x10]),
        };
        filler(head, b'x', bytes)
    };
    let good = good_answers(arena, DO_GET, (0..count).map(body).collect())?;
    Ok(vec![
        Check::of(
            format!("{count} bodies of {} MiB that are no tickets are refused", bytes >> 20),
            "",
            good == 0,
        ),
        arena.memory_check()?,
    ])
}

/// 12: large manifests: of nobody and of a reader, who may tell none, and of a node that tells nonsense.
pub fn no_manifests(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let (count, bytes) = arena.scale.manifests;
    let what = format!("{count} manifests of {} MiB", bytes >> 20);
    let mut checks = Vec::new();
    for (who, name, code) in [(None, "nobody", UNKNOWN), (Some("guest"), "a reader", DENIED)] {
        let (codes, sent) = tell_nonsense(arena, who)?;
        let all_refused = codes.iter().all(|found| found.map(u32::from) == Some(code));
        checks.push(Check::of(format!("{what} of {name} are refused"), seen(&codes), all_refused));
        // What a window has room for may be under way.
        let most = count as u64 * WINDOW_BYTES;
        let measured = format!("{:.1} MiB sent", sent as f64 / (1 << 20) as f64);
        checks.push(Check::of(format!("those of {name}, before they come"), measured, sent <= most));
    }
    let (codes, _) = tell_nonsense(arena, Some("peers"))?;
    let none_good = !codes.contains(&Some(OK));
    checks.push(Check::of(
        format!("{what} of a node that are nonsense are refused"),
        seen(&codes),
        none_good,
    ));
    checks.push(arena.memory_check()?);
    Ok(checks)
}

/// Manifests that are none, all at once: the answers' codes, and the bytes that were sent.
fn tell_nonsense(arena: &Arena<'_>, who: Option<&str>) -> anyhow::Result<(Vec<Option<u16>>, u64)> {
    let (count, bytes) = arena.scale.manifests;
    let header = who.map(|who| Ok::<_, anyhow::Error>(arena.policy()?.header(who))).transpose()?;
    let sent = Arc::new(AtomicU64::new(0));
    let calls = (0..count).map(|_| {
        let sent = sent.clone();
        let body = filler(grpc(0, bytes as u32, &[]), 0xff, bytes);
        let body = body.inspect(move |piece| {
            sent.fetch_add(piece.len() as u64, Relaxed);
        });
        call_as(header.as_deref(), arena.grpc, LEARN, body.boxed())
    });
    let answers = runtime()?.block_on(join_all(calls));
    Ok((answers.into_iter().collect::<anyhow::Result<_>>()?, sent.load(Relaxed)))
}

/// How often each code came.
fn seen(codes: &[Option<u16>]) -> String {
    let mut counts = BTreeMap::new();
    codes.iter().for_each(|code| *counts.entry(code).or_insert(0) += 1);
    let count = |(code, count): (&Option<u16>, _)| match code {
        Some(code) => format!("code {code}: {count}"),
        None => format!("no answer: {count}"),
    };
    counts.into_iter().map(count).collect::<Vec<_>>().join(", ")
}

/// 13: messages whose head is wrong.
pub fn wrong_heads(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let runtime = runtime()?;
    let mut checks = Vec::new();
    for path in [DO_GET, LEARN, OPEN, READ] {
        for (what, bytes) in [
            ("4 GiB claimed, one byte sent", grpc(0, u32::MAX, b"x")),
            ("250 MiB claimed, one byte sent", grpc(0, 250 << 20, b"x")),
            ("compressed", grpc(1, 4, b"\x1f\x8b\x08\0")),
            ("an unknown flag", grpc(255, 4, b"abcd")),
            ("half a head", vec![0, 0]),
            ("nothing", vec![]),
        ] {
            let code = runtime.block_on(call(arena.grpc, path, piece(bytes)))?;
            let is_refused = matches!(code, Some(INVALID_ARGUMENT | UNIMPLEMENTED));
            checks.push(Check::of(format!("{path}: {what}"), format!("{code:?}"), is_refused));
        }
    }
    checks.push(arena.memory_check()?);
    Ok(checks)
}

/// 15: a reader that takes almost nothing.
pub fn slow_reader(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let mut connection = reading(arena, 1)?;
    let start = Instant::now();
    let mut is_open = true;
    while is_open && start.elapsed() < arena.scale.slow {
        is_open = connection.say(&frame(kind::WINDOW_UPDATE, 0, 1, &1u32.to_be_bytes())).is_ok();
        std::thread::sleep(Duration::from_millis(200));
    }
    let is_well = arena.answers(2);
    Ok(vec![
        Check::of("others are served beside a reader that takes nothing", "", is_well),
        arena.memory_check()?,
    ])
}

/// A connection with this number of batch streams, none of which may send more than 64 KiB.
pub(super) fn reading(arena: &Arena<'_>, streams: u32) -> anyhow::Result<RawHttp2> {
    let mut connection = arena.http2()?;
    let ticket = arrow_ticket(&arena.ticket);
    let message = grpc(0, ticket.len() as u32, &ticket);
    for n in 0..streams {
        connection.request(2 * n + 1, DO_GET)?;
        connection.say(&frame(kind::DATA, flag::END_STREAM, 2 * n + 1, &message))?;
    }
    Ok(connection)
}

/// The ticket as Flight wraps it: one field of bytes.
fn arrow_ticket(ticket: &[u8]) -> Vec<u8> {
    let mut flight = Vec::new();
    prost::encoding::bytes::encode(1, &ticket.to_vec(), &mut flight);
    flight
}

/// 33: requests with lists that are too long, and names that are none.
pub fn long_lists(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let open = |columns: Vec<String>| {
        let spec = v1::DatasetSpec { uri: "s3://nowhere/x".into(), ..Default::default() };
        v1::OpenRequest { dataset: Some(spec), columns, ..Default::default() }.encode_to_vec()
    };
    let requests = [
        ("1 M columns", open(vec!["c".into(); 1_000_000])),
        ("a name of 3 MiB", open(vec!["n".repeat(3 << 20)])),
        ("the same column 1,000 times", open(vec!["id".into(); 1000])),
    ];
    refused(arena, OPEN, &requests)
}

/// 34: bytes that are no protobuf, or too much of it.
pub fn no_protobuf(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let nested = |depth: usize| {
        // Field 1, a message, of which each has the next.
        (0..depth).fold(Vec::new(), |inner: Vec<u8>, _| {
            let mut outer = vec![0x0a];
            prost::encoding::encode_varint(inner.len() as u64, &mut outer);
            outer.extend(inner);
            outer
        })
    };
    let unknown =
        [vec![0xfa, 0xff, 0xff, 0xff, 0x0f], vec![0x80, 0x80, 0xc0, 0x01], vec![1; 3 << 20]].concat();
    let requests = [
        ("10,000 levels", nested(10_000)),
        ("3 MiB of an unknown field", unknown),
        ("a number without an end", vec![0x08; 1].into_iter().chain([0xff; 64]).collect()),
        ("a name that is no UTF-8", vec![0x0a, 0x04, 0x0a, 0x02, 0xff, 0xfe]),
        ("a length beyond the end", vec![0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f, b'a']),
    ];
    // Each object has two bytes on its way, and many more in memory.
    let objects = |count: usize| {
        let objects = vec![v1::Object::default(); count];
        let dataset = v1::DatasetSpec { uri: arena.store.uri("nowhere"), objects, ..Default::default() };
        v1::OpenRequest { dataset: Some(dataset), ..Default::default() }.encode_to_vec()
    };
    let list = objects(2_000_000);
    // Nor are numbers of a byte as small there.
    let rows = v1::RowsTicket { segment: vec![0; 15 << 20], row: vec![0; 15 << 20], ..Default::default() };
    let rows = v1::Ticket { kind: Some(v1::ticket::Kind::Rows(rows)), ..Default::default() };
    let mut checks = Vec::new();
    for (what, path, message) in [
        ("lists of 2 M empty objects", OPEN, list.clone()),
        ("the same in parts", OPEN_PARTS, list),
        ("tickets of 15 M rows of two bytes", DO_GET, flight_ticket(&rows)),
    ] {
        let message = Bytes::from(grpc(0, message.len() as u32, &message));
        let body = || stream::iter([message.clone()]).boxed();
        let good = good_answers(arena, path, (0..MANY_AT_ONCE).map(|_| body()).collect())?;
        let claim = format!("{MANY_AT_ONCE} {what} at once: refused");
        checks.push(Check::of(claim, good.to_string(), good == 0));
    }
    checks.extend(refused(arena, OPEN, &requests)?);
    Ok(checks)
}

fn refused(arena: &Arena<'_>, path: &str, requests: &[(&str, Vec<u8>)]) -> anyhow::Result<Vec<Check>> {
    let runtime = runtime()?;
    let mut checks = Vec::new();
    for (what, bytes) in requests {
        let message = grpc(0, bytes.len() as u32, bytes);
        let code = runtime.block_on(call(arena.grpc, path, piece(message)))?;
        let is_refused = code.is_some_and(|code| code != OK);
        checks.push(Check::of(format!("{what}: refused"), format!("{code:?}"), is_refused));
    }
    checks.push(arena.memory_check()?);
    Ok(checks)
}

/// 35: the parts of Flight that this cache does not speak, with requests that never end.
pub fn other_flight(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let runtime = runtime()?;
    let mut checks = Vec::new();
    for method in
        ["DoPut", "DoExchange", "Handshake", "DoAction", "ListActions", "ListFlights", "PollFlightInfo"]
    {
        let path = format!("/arrow.flight.protocol.FlightService/{method}");
        let endless = filler(grpc(0, 1 << 20, &[]), 7, 64 << 10).chain(stream::pending()).boxed();
        let start = Instant::now();
        let code = runtime.block_on(call(arena.grpc, &path, endless))?;
        let (is_soon, took) = (start.elapsed() < LATE, start.elapsed());
        let is_refused = code == Some(UNIMPLEMENTED);
        checks.push(Check::of(
            format!("{method}: refused at once"),
            format!("{code:?}, {took:?}"),
            is_refused && is_soon,
        ));
    }
    let describe = "/arrow.flight.protocol.FlightService/GetFlightInfo";
    let descriptor = |kind: u8, parts: usize| {
        let mut bytes = vec![0x08, kind];
        (0..parts).for_each(|_| bytes.extend([0x1a, 0x01, b'p']));
        bytes
    };
    let commands = [
        ("a command", descriptor(2, 0)),
        ("no path", descriptor(1, 0)),
        ("20,000 parts", descriptor(1, 20_000)),
    ];
    checks.extend(refused(arena, describe, &commands)?);
    Ok(checks)
}
