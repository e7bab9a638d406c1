//! Attacks by saying nothing, or little: cases 1 to 5.

use super::arena::{Arena, LATE, address, asks_well, closed_within, cpu_share, files};
use crate::harness::check::Check;
use crate::harness::frames::{PREFACE, RawHttp2, closes_within, connect, frame, kind, stranger};
use crate::harness::process::Server;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long an attack is looked at.
const LOOK: Duration = Duration::from_secs(3);

/// 1: connections that say nothing.
pub fn nothing_said(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    half_said(arena, b"")
}

/// 2: half of a preface; and a whole one without a request.
pub fn half_a_preface(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let mut checks = half_said(arena, &PREFACE[..12])?;
    let begun = [PREFACE, &frame(kind::SETTINGS, 0, 0, &[])].concat();
    checks.extend(half_said(arena, &begun)?);
    Ok(checks)
}

fn half_said(arena: &Arena<'_>, words: &[u8]) -> anyhow::Result<Vec<Check>> {
    let mut connections = Vec::new();
    for _ in 0..arena.scale.connections {
        let mut connection = connect(stranger(1), arena.grpc)?;
        // Silent ones give way to others, so it may be closed already.
        connection.write_all(words).ok();
        connections.push(connection);
    }
    let gets_in = arena.answers(1);
    let closed = closed_within(&mut connections, arena.handshake() + LATE + Duration::from_secs(5))?;
    let all = connections.len();
    Ok(vec![
        Check::of(
            format!("a reader gets in beside {all} connections that said {} bytes", words.len()),
            "",
            gets_in,
        ),
        Check::of(format!("all {all} are closed in time"), format!("{closed}"), closed == all),
    ])
}

/// 3: the head of an HTTP request, byte by byte.
pub fn slow_head(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    [("/metrics", arena.metrics), ("S3", arena.s3)]
        .map(|(name, at)| slow_head_at(arena, name, at))
        .into_iter()
        .collect()
}

fn slow_head_at(arena: &Arena<'_>, name: &str, at: SocketAddr) -> anyhow::Result<Check> {
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "a".repeat(60));
    let mut connection = connect(stranger(1), at)?;
    let (start, limit) = (Instant::now(), arena.handshake() + LATE);
    let mut is_closed = false;
    for byte in head.bytes() {
        let is_gone = connection.write_all(&[byte]).is_err();
        is_closed = is_gone || closes_within(&mut connection, arena.handshake() / 10)?;
        if is_closed || start.elapsed() > limit {
            break;
        }
    }
    let took = format!("{:.1} s", start.elapsed().as_secs_f64());
    Ok(Check::of(format!("{name}: a head that comes byte by byte is not waited for"), took, is_closed))
}

/// 4: connections that are kept open after an answer.
pub fn idle_http(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let mut checks = Vec::new();
    for (name, at) in [("/metrics", arena.metrics), ("S3", arena.s3)] {
        let mut connection = connect(stranger(1), at)?;
        connection.write_all(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")?;
        let mut answer = [0; 9];
        connection.read_exact(&mut answer)?;
        let limit = Duration::from_secs(60).min(arena.handshake() + LATE);
        let (start, is_closed) = (Instant::now(), closes_within(&mut connection, limit)?);
        let took = format!("{:.1} s", start.elapsed().as_secs_f64());
        checks.push(Check::of(format!("{name} answers"), "", answer == *b"HTTP/1.1 "));
        checks.push(Check::of(format!("{name}: an idle connection is closed"), took, is_closed));
    }
    Ok(checks)
}

/// 5: one address takes all connections; and a node that has no file descriptor left.
pub fn all_descriptors(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let mut checks = Vec::new();
    for limit in [128, 4096] {
        let limits = ["prlimit".to_owned(), format!("--nofile={limit}:{limit}")];
        let server = arena.options.clone().within(limits).try_start()?;
        checks.extend(one_address(&server, limit, arena.scale.cpu_share)?);
        server.try_stop()?;
    }
    let server = arena.options.clone().try_start()?;
    checks.extend(none_left(&server, arena.scale.cpu_share)?);
    server.try_stop()?;
    Ok(checks)
}

/// Connections from one address that all have a request.
fn one_address(server: &Server, limit: usize, cpu_share_max: f64) -> anyhow::Result<Vec<Check>> {
    let node = address(&server.endpoint)?;
    let mut held = Vec::new();
    for _ in 0..(limit / 4 + 50) {
        held.extend(hold(node, 1));
    }
    let open = files(server.pid())?;
    let gets_in = asks_well(node, 2).is_ok();
    let cpu = cpu_share(server, LOOK)?;
    drop(held);
    let released = Instant::now();
    while asks_well(node, 1).is_err() && released.elapsed() < LATE {}
    let again = released.elapsed();
    Ok(vec![
        Check::of(format!("{limit} files: others get in"), "", gets_in),
        Check::of(format!("{limit} files: descriptors are left"), format!("{open}"), open < limit),
        Check::of(format!("{limit} files: it waits"), format!("{cpu:.3} of a core"), cpu < cpu_share_max),
        Check::of(format!("{limit} files: the address gets in again"), format!("{again:?}"), again < LATE),
    ])
}

/// A connection with a request that is not answered soon.
pub(super) fn hold(node: SocketAddr, from: u8) -> Option<RawHttp2> {
    let mut connection = RawHttp2::open(stranger(from), node).ok()?;
    connection.request(1, "/forebay.v1.Cache/WatchTopology").ok()?;
    Some(connection)
}

/// The node may open no file more, and connections come.
fn none_left(server: &Server, cpu_share_max: f64) -> anyhow::Result<Vec<Check>> {
    let node = address(&server.endpoint)?;
    anyhow::ensure!(asks_well(node, 1).is_ok(), "the node answers");
    let pid = i32::try_from(server.pid()).ok().and_then(Pid::from_raw);
    let open = files(server.pid())? as u64;
    // A node raises its limit as far as this process could.
    let maximum = getrlimit(Resource::Nofile).maximum;
    let before = prlimit(pid, Resource::Nofile, Rlimit { current: Some(open), maximum })?;
    let waiting: Vec<_> = (0..20).filter_map(|_| connect(stranger(1), node).ok()).collect();
    let cpu = cpu_share(server, LOOK)?;
    prlimit(pid, Resource::Nofile, before)?;
    let released = Instant::now();
    let is_well = asks_well(node, 2).is_ok();
    let again = released.elapsed();
    let warned = server.log().matches("connections cannot be taken").count();
    drop(waiting);
    Ok(vec![
        Check::of(
            "no descriptor left: it waits rather than spins",
            format!("{cpu:.3} of a core"),
            cpu < cpu_share_max,
        ),
        Check::of("no descriptor left: it says so once", format!("{warned} lines"), warned == 1),
        Check::of(
            "descriptors are there again: it takes connections",
            format!("{again:?}"),
            is_well && again < LATE,
        ),
    ])
}
