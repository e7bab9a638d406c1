//! Attacks by HTTP/2 itself: cases 6 to 10.

use super::arena::{Arena, LATE};
use crate::harness::check::Check;
use crate::harness::frames::{
    ENHANCE_YOUR_CALM, Frame, MAX_CONCURRENT_STREAMS, REFUSED_STREAM, RawHttp2, flag, frame, kind,
    request_block,
};
use std::time::{Duration, Instant};

/// A method whose request may come slowly.
const PATH: &str = "/arrow.flight.protocol.FlightService/DoGet";

/// How long a node may take to end a connection.
const END: Duration = Duration::from_secs(10);

/// Streams of one connection, unless settings say otherwise.
const STREAMS: u32 = 256;

/// 6: very many requests on one connection, none of which comes to its end.
pub fn many_streams(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let mut connection = arena.http2()?;
    let settings = connection.find(END, |f| f.kind == kind::SETTINGS && f.flags & flag::ACK == 0);
    let said = settings.and_then(|settings| settings.setting(MAX_CONCURRENT_STREAMS));
    let (mut refused, mut ended, mut opened) = (0u32, false, 0);
    for n in 0..arena.scale.streams {
        if connection.request(2 * n + 1, PATH).is_err() {
            break;
        }
        opened += 1;
        while let Some(answer) = connection.next(Duration::ZERO) {
            count(&answer, &mut refused, &mut ended);
        }
    }
    let end = Instant::now() + LATE;
    while refused + STREAMS < opened && !ended && Instant::now() < end {
        match connection.next(Duration::from_millis(100)) {
            Some(answer) => count(&answer, &mut refused, &mut ended),
            None => ended |= is_over(&mut connection),
        }
    }
    Ok(vec![
        Check::of("SETTINGS says 256 streams", format!("{said:?}"), said == Some(STREAMS)),
        Check::of(
            "those above are refused, or the connection ends",
            format!("{refused} of {opened} refused, ended: {ended}"),
            refused + STREAMS >= opened || ended,
        ),
    ])
}

fn count(answer: &Frame, refused: &mut u32, ended: &mut bool) {
    *refused += u32::from(answer.kind == kind::RST_STREAM && answer.code() == Some(REFUSED_STREAM));
    *ended |= answer.kind == kind::GOAWAY;
}

/// Whether the node has ended the connection.
fn is_over(connection: &mut RawHttp2) -> bool {
    crate::harness::frames::closes_within(&mut connection.stream, Duration::from_millis(1)).unwrap_or(true)
}

/// 7: requests that are cancelled as soon as they are made.
pub fn rapid_reset(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let mut connection = arena.http2()?;
    let mut bytes = Vec::new();
    for n in 0..arena.scale.resets as u32 {
        let stream = 2 * n + 1;
        bytes.extend(frame(kind::HEADERS, flag::END_HEADERS, stream, &request_block(PATH)));
        bytes.extend(frame(kind::RST_STREAM, 0, stream, &8u32.to_be_bytes()));
    }
    connection.push(&bytes, END);
    let end = connection.find(END, |f| f.kind == kind::GOAWAY);
    let calmed = end.as_ref().and_then(Frame::code);
    let mut checks = vec![Check::of(
        "the connection ends with ENHANCE_YOUR_CALM, or is gone",
        format!("{calmed:?}"),
        calmed == Some(ENHANCE_YOUR_CALM) || end.is_none() && is_over(&mut connection),
    )];
    if arena.is_quiet {
        let cpu = arena.cpu_share()?;
        checks.push(Check::of("then the node is idle", format!("{cpu:.3} of a core"), cpu < 0.1));
    }
    Ok(checks)
}

/// 8: headers without an end.
pub fn endless_headers(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let mut connection = arena.http2()?;
    let mut bytes = frame(kind::HEADERS, 0, 1, &request_block(PATH));
    // A header of its own in each frame, which the table does not keep.
    let piece: Vec<u8> = [b"\0\x01x\x7f\x81\x01".as_slice(), &[b'a'; 256]].concat();
    while bytes.len() < 8 << 20 {
        bytes.extend(frame(kind::CONTINUATION, 0, 1, &piece));
    }
    let sent = connection.push(&bytes, END);
    let over = is_over(&mut connection) || connection.find(END, |f| f.kind == kind::GOAWAY).is_some();
    Ok(vec![Check::of(
        "headers without an end end the connection",
        format!("after {} KiB", sent >> 10),
        over,
    )])
}

/// 9: a large list of headers, by many and by a table.
pub fn header_bombs(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let mut many = request_block(PATH);
    for _ in 0..4096 {
        many.extend([b"\0\x01x\x7f\x81\x01".as_slice(), &[b'a'; 256]].concat());
    }
    // One header of 3 KB is put into the table (section 6.2.1), then named by a byte again and again.
    let mut table = request_block(PATH);
    table.extend([b"\x40\x01y\x7f\xb9\x16".as_slice(), &[b'b'; 3000]].concat());
    table.extend([0xbe; 60_000]);
    let mut checks = Vec::new();
    for (name, block) in [("1 MiB of headers", many), ("a header named 60,000 times", table)] {
        let mut connection = arena.http2()?;
        let mut parts = block.chunks(16 << 10).peekable();
        let mut bytes = frame(kind::HEADERS, flag::END_STREAM, 1, parts.next().unwrap_or_default());
        while let Some(part) = parts.next() {
            let flags = if parts.peek().is_none() { flag::END_HEADERS } else { 0 };
            bytes.extend(frame(kind::CONTINUATION, flags, 1, part));
        }
        connection.push(&bytes, END);
        // A stream that is refused gets an answer of headers alone (431).
        let answer = connection.find(END, |f| {
            f.kind == kind::GOAWAY || f.stream == 1 && matches!(f.kind, kind::RST_STREAM | kind::HEADERS)
        });
        let over = answer.is_some() || is_over(&mut connection);
        let kind = answer.map(|answer| (answer.kind, answer.code()));
        checks.push(Check::of(format!("{name}: refused"), format!("{kind:?}"), over));
    }
    checks.push(arena.memory_check()?);
    Ok(checks)
}

/// 10: floods of small frames whose answers nobody reads.
pub fn small_frames(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let floods = [
        ("SETTINGS", frame(kind::SETTINGS, 0, 0, &[])),
        ("PING", frame(kind::PING, 0, 0, &[7; 8])),
        ("WINDOW_UPDATE", frame(kind::WINDOW_UPDATE, 0, 0, &1u32.to_be_bytes())),
        ("empty DATA", frame(kind::DATA, 0, 1, &[])),
    ];
    let mut checks = Vec::new();
    for (name, one) in floods {
        let mut connection = arena.http2()?;
        connection.request(1, PATH)?;
        let sent = connection.push(&one.repeat(arena.scale.frames), END) / one.len();
        let is_well = arena.answers(2);
        checks.push(Check::of(format!("{sent} frames of {name}: others are served"), "", is_well));
    }
    checks.push(arena.memory_check()?);
    if arena.is_quiet {
        let cpu = arena.cpu_share()?;
        checks.push(Check::of("then the node is idle", format!("{cpu:.3} of a core"), cpu < 0.1));
    }
    Ok(checks)
}
