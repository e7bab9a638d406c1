//! Attacks on the HTTP of /metrics: cases 36 and 37.

use super::arena::Arena;
use crate::harness::check::Check;
use crate::harness::frames::{PREFACE, closes_within, connect, stranger};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Scrapes a second of one who does not stop.
const SCRAPES: usize = 1000;

/// 36: scrapes without a pause.
pub fn scrapes(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let mut connection = connect(stranger(1), arena.metrics)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    let made = |text: &str| text.matches("# HELP").count();
    let (before, start) = (arena.server.cpu_s()?, Instant::now());
    let mut whole = 0;
    for _ in 0..SCRAPES {
        connection.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")?;
        whole += usize::from(made(&answer(&mut connection)?) > 10);
    }
    let each_ms = (arena.server.cpu_s()? - before) / SCRAPES as f64 * 1000.0;
    let took = start.elapsed();
    let mut checks =
        vec![Check::of(format!("{SCRAPES} scrapes in {took:?}"), format!("{whole}"), whole == SCRAPES)];
    if arena.is_quiet {
        checks.push(Check::of("a scrape is cheap", format!("{each_ms:.2} ms"), each_ms < 5.0));
    }
    Ok(checks)
}

/// An answer with a length.
fn answer(connection: &mut std::net::TcpStream) -> anyhow::Result<String> {
    let (mut text, mut bytes) = (Vec::new(), [0; 16 << 10]);
    loop {
        let n = connection.read(&mut bytes)?;
        anyhow::ensure!(n > 0, "closed after {}", String::from_utf8_lossy(&text));
        text.extend_from_slice(&bytes[..n]);
        let said = String::from_utf8_lossy(&text).into_owned();
        let Some((head, body)) = said.split_once("\r\n\r\n") else { continue };
        let length = head
            .lines()
            .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
        if length.is_none_or(|length: usize| body.len() >= length) {
            return Ok(said);
        }
    }
}

/// 37: requests that make no sense.
pub fn nonsense(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let long = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(1 << 20));
    let headers = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(200));
    let requests: [(&str, &[u8], &[&str]); 10] = [
        ("POST", b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", &["405"]),
        ("a path with ..", b"GET /../../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n", &["404", "400"]),
        ("an unknown path", b"GET /debug HTTP/1.1\r\nHost: a\r\n\r\n", &["404"]),
        ("a path of 1 MiB", long.as_bytes(), &["414", "431"]),
        ("200 headers", headers.as_bytes(), &["431"]),
        (
            "two lengths",
            b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            &["400"],
        ),
        ("a body", b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", &["400"]),
        ("no HTTP", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03 hello", &["400", ""]),
        ("HTTP/2", PREFACE, &["400", ""]),
        ("a Host of somebody else", b"GET /health HTTP/1.1\r\nHost: evil.example:1\r\n\r\n", &["200"]),
    ];
    let mut checks = Vec::new();
    for (what, bytes, wanted) in requests {
        let mut connection = connect(stranger(1), arena.metrics)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        // It may hang up before all is sent.
        connection.write_all(bytes).ok();
        let mut first = [0; 12];
        let n = connection.read(&mut first).unwrap_or(0);
        let status = String::from_utf8_lossy(&first[..n]).split(' ').nth(1).unwrap_or_default().to_owned();
        checks.push(Check::of(what, format!("{status:?}"), wanted.contains(&status.as_str())));
    }
    let mut split = connect(stranger(1), arena.metrics)?;
    split.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 40\r\n\r\nGET /health HTTP/1.1\r\nHost: a\r\n\r\n")?;
    let is_closed = closes_within(&mut split, Duration::from_secs(3))?;
    checks.push(Check::of("a request within a body is none", "", is_closed));
    Ok(checks)
}
