//! Attacks by those who speak something else: case 21.

use super::arena::{Arena, address, metrics_of, told_more};
use super::secured::{metric, refusal, within};
use crate::harness::check::Check;
use crate::harness::frames::{PREFACE, connect, frame, kind, stranger};
use crate::harness::pki::Leaf;
use crate::harness::process::ServerOptions;
use crate::harness::tls_world::{ROOT, VISION, curl};
use anyhow::Context;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// "At once", on a machine that is busy.
const SOON: Duration = Duration::from_secs(5);

/// Kinds of TLS records (RFC 8446, section 5.1).
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;

/// The alert that says that a version is not spoken (section 6).
const PROTOCOL_VERSION: u8 = 70;

/// The exit code of curl when a handshake fails.
const NO_HANDSHAKE: i32 = 35;

/// 21: older TLS, none at all, another protocol inside; and TLS where there is none.
pub fn refused(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let tls = arena.tls()?;
    let count = || metric(tls, &arena.server, "tls_handshakes_failed_total");
    let lines = || arena.server.log().matches("a TLS handshake failed").count();
    let (failed_before, lines_before) = (count()?, lines());
    let mut checks = Vec::new();
    for (name, at) in [("gRPC", arena.grpc), ("/metrics", arena.metrics), ("S3", arena.s3)] {
        for (minor, version) in [(1, "1.0"), (2, "1.1"), (3, "1.2")] {
            checks.push(old_tls(&format!("{name}: TLS {version}"), at, minor)?);
        }
        checks.push(no_tls(&format!("{name}: HTTP/2 without TLS"), at, &http2())?);
        checks.push(no_tls(&format!("{name}: HTTP/1.1 without TLS"), at, b"GET /health HTTP/1.1\r\n\r\n")?);
    }
    checks.push(other_alpn(arena)?);
    let tried = checks.len();
    let told = within(SOON, || Ok(lines() - lines_before >= tried))?;
    let measured = format!("{} of {tried}", lines() - lines_before);
    let is_one_each = told.is_some() && lines() - lines_before == tried;
    checks.push(Check::of("one debug line for each", measured, is_one_each));
    let mut failed = 0;
    let is_counted = within(SOON, || {
        failed = count()? - failed_before;
        Ok(failed >= tried as u64)
    })?;
    checks.push(Check::of("each is counted", format!("{failed} of {tried}"), is_counted.is_some()));
    checks.extend(tls_on_plain_ports(arena)?);
    Ok(checks)
}

/// What somebody is answered who says something, when the connection ends.
fn exchange(at: SocketAddr, words: &[u8]) -> anyhow::Result<(Vec<u8>, Duration)> {
    let start = Instant::now();
    let mut stream = connect(stranger(1), at)?;
    stream.set_read_timeout(Some(4 * SOON))?;
    stream.write_all(words)?;
    let mut answer = Vec::new();
    // It may be told by an alert, or by a reset.
    stream.read_to_end(&mut answer).ok();
    Ok((answer, start.elapsed()))
}

fn old_tls(name: &str, at: SocketAddr, minor: u8) -> anyhow::Result<Check> {
    let (answer, took) = exchange(at, &hello(minor))?;
    let is_told = answer.first() == Some(&ALERT) && answer.last() == Some(&PROTOCOL_VERSION);
    let measured = format!("{answer:?} after {took:?}");
    Ok(Check::of(format!("{name} is refused at once, by an alert"), measured, is_told && took < SOON))
}

fn no_tls(name: &str, at: SocketAddr, words: &[u8]) -> anyhow::Result<Check> {
    let (answer, took) = exchange(at, words)?;
    // An alert at most.
    let is_nothing = answer.first().is_none_or(|first| *first == ALERT) && answer.len() < 100;
    let measured = format!("{answer:?} after {took:?}");
    Ok(Check::of(format!("{name} is refused at once"), measured, is_nothing && took < SOON))
}

/// HTTP/1.1 inside TLS where gRPC is.
fn other_alpn(arena: &Arena<'_>) -> anyhow::Result<Check> {
    let root = arena.tls()?.issue(Leaf::client("root", ROOT));
    let url = format!("{}/health", arena.server.endpoint);
    let start = Instant::now();
    let ended = curl(&root, &["--http1.1", &url]).try_end()?;
    let is_refused = ended.code == Some(NO_HANDSHAKE) && start.elapsed() < SOON;
    let measured = format!("{} after {:?}", ended.stderr.trim(), start.elapsed());
    Ok(Check::of("gRPC: HTTP/1.1 inside TLS is refused at once", measured, is_refused))
}

/// TLS spoken to a node that has none.
fn tls_on_plain_ports(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let files = arena.tls()?.issue(Leaf::client("mistaken", VISION));
    let options = ServerOptions::for_s3(arena.store).env("FOREBAY_LOG", &told_more(""));
    let flags = ["--s3-listen", "127.0.0.1:0", "--s3-public", &arena.store.uri("public/")];
    let node = options.args(flags).try_start()?;
    let s3 = node.s3.as_deref().context("a node with an S3 endpoint")?;
    let mut checks = Vec::new();
    for (name, url) in [("gRPC", node.endpoint.as_str()), ("/metrics", metrics_of(&node)?), ("S3", s3)] {
        let (start, why) = (Instant::now(), refusal(&files, address(url)?)?);
        let is_refused = why.contains("no TLS is spoken there") && start.elapsed() < SOON;
        let measured = format!("{why} after {:?}", start.elapsed());
        checks.push(Check::of(
            format!("{name}: TLS to a plain port is refused at once"),
            measured,
            is_refused,
        ));
    }
    for text in ["a gRPC connection ends", "a connection to /metrics ends"] {
        let said = || node.log().matches(text).count();
        let is_told = within(SOON, || Ok(said() > 0))?.is_some() && said() == 1;
        checks.push(Check::of(format!("a plain node says once: {text}"), said().to_string(), is_told));
    }
    node.try_stop()?;
    Ok(checks)
}

/// What a client says first that speaks HTTP/2 without TLS.
fn http2() -> Vec<u8> {
    [PREFACE, &frame(kind::SETTINGS, 0, 0, &[])].concat()
}

/// The hello of a client that speaks `TLS 1.(minor - 1)` at most (RFC 5246, section 7.4.1.2).
fn hello(minor: u8) -> Vec<u8> {
    let two = |bytes: Vec<u8>| [&(bytes.len() as u16).to_be_bytes()[..], &bytes].concat();
    let suites = vec![0xc0, 0x2f, 0xc0, 0x2b, 0xc0, 0x13, 0, 0x2f];
    // Groups, signatures, forms of points: what servers of those times want to know.
    let extensions = vec![
        0, 10, 0, 4, 0, 2, 0, 23, // secp256r1
        0, 13, 0, 6, 0, 4, 4, 1, 4, 3, // RSA and ECDSA with SHA-256
        0, 11, 0, 2, 1, 0, // uncompressed
    ];
    let body = [vec![3, minor], vec![7; 32], vec![0], two(suites), vec![1, 0], two(extensions)].concat();
    let message = [vec![1, 0], two(body)].concat();
    [vec![HANDSHAKE, 3, 1], two(message)].concat()
}
