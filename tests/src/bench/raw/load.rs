//! A client with many connections, a thread for each, that asks for the same over and over and throws away
//! what it gets. It is the same for all servers, so its cost is in all figures alike.

use crate::bench::warm::{ChildProcess, Span, run_when_told, say_ready, say_report};
use crate::harness::process::run as programs;
use crate::harness::s3_client::S3Ask;
use anyhow::Context;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

/// Bytes of a range.
pub const RANGE_BYTES: u64 = 64 << 10;

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 256 << 10;

/// A load.
#[derive(Debug, Clone, Args)]
pub struct LoadOptions {
    /// `HOST:PORT`
    address: String,
    /// Heads of requests, in JSON: a connection takes the one of its number.
    heads: String,
    connections: usize,
    seconds: f64,
    /// Ranges at random of objects of this size; 0: whole objects.
    ranges_of: u64,
}

/// What came.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Loaded {
    pub bytes: u64,
    pub requests: u64,
}

/// What a load measured.
#[derive(Debug, Clone, Copy)]
pub struct LoadFigures {
    pub gb_per_s: f64,
    pub requests_per_s: f64,
    pub gb: f64,
}

/// Puts a load on a server, from a process of its own.
pub fn measure(
    address: &str,
    asks: &[S3Ask],
    connections: usize,
    seconds: f64,
    ranges_of: u64,
) -> anyhow::Result<LoadFigures> {
    let heads: Vec<String> = asks.iter().map(|ask| head_of(address, ask)).collect();
    let mut command = Command::new(programs::find("forebay-bench-raw")?);
    programs::scrub(&mut command);
    command.args(["load", address.trim_start_matches("http://"), &serde_json::to_string(&heads)?]);
    command.args([connections.to_string(), seconds.to_string(), ranges_of.to_string()]);
    let mut child = ChildProcess::of(command, "load".into())?;
    child.ready()?;
    child.go()?;
    let (span, loaded): (Span, Loaded) = child.report()?;
    let gb = loaded.bytes as f64 / 1e9;
    anyhow::ensure!(loaded.requests > 0, "no request to {address} came to its end");
    Ok(LoadFigures {
        gb_per_s: gb / span.seconds(),
        requests_per_s: loaded.requests as f64 / span.seconds(),
        gb,
    })
}

/// A request without its last line.
pub fn head_of(address: &str, ask: &S3Ask) -> String {
    let host = address.trim_start_matches("http://");
    let headers: String = ask.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("{} {} HTTP/1.1\r\nhost: {host}\r\n{headers}", ask.method, ask.target)
}

/// Is the client.
pub fn run(options: &LoadOptions) -> anyhow::Result<()> {
    let LoadOptions { address, heads, connections, seconds, ranges_of } = options;
    let heads: Vec<String> = serde_json::from_str(heads)?;
    anyhow::ensure!(!heads.is_empty(), "there is nothing to ask for");
    say_ready("")?;
    let (span, loaded) = run_when_told(|| {
        let deadline = Instant::now() + Duration::from_secs_f64(*seconds);
        let all = std::thread::scope(|scope| {
            let one = |n: usize| {
                let head = &heads[n % heads.len()];
                scope.spawn(move || connection(address, head, *ranges_of, n as u64, deadline))
            };
            let threads: Vec<_> = (0..*connections).map(one).collect();
            let ended =
                threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a panic"))?);
            ended.collect::<anyhow::Result<Vec<Loaded>>>()
        })?;
        Ok(all.iter().fold(Loaded::default(), |sum, one| Loaded {
            bytes: sum.bytes + one.bytes,
            requests: sum.requests + one.requests,
        }))
    })?;
    say_report(&(span, loaded))
}

fn connection(
    address: &str,
    head: &str,
    ranges_of: u64,
    seed: u64,
    deadline: Instant,
) -> anyhow::Result<Loaded> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut dice = fastrand::Rng::with_seed(seed);
    let mut loaded = Loaded::default();
    let mut buffer = vec![0; BUFFER_BYTES];
    while Instant::now() < deadline {
        let range = match ranges_of {
            0 => String::new(),
            size => {
                let start = dice.u64(0..size / RANGE_BYTES) * RANGE_BYTES;
                format!("range: bytes={start}-{}\r\n", start + RANGE_BYTES - 1)
            }
        };
        stream.write_all(format!("{head}{range}\r\n").as_bytes())?;
        let bytes = &mut loaded.bytes;
        let is_whole =
            exchange(&mut stream, &mut buffer, Some(deadline), |some| *bytes += some.len() as u64)?;
        if !is_whole {
            break;
        }
        loaded.requests += 1;
    }
    // What was begun counts as far as it came; at least one request must come to its end in all.
    loaded.requests += u64::from(loaded.requests == 0 && loaded.bytes > 0);
    Ok(loaded)
}

/// Asks once, for all of it; how many bytes came.
pub fn get_once(address: &str, ask: &S3Ask) -> anyhow::Result<u64> {
    let mut stream = TcpStream::connect(address.trim_start_matches("http://"))?;
    stream.set_nodelay(true)?;
    stream.write_all(format!("{}\r\n", head_of(address, ask)).as_bytes())?;
    let mut bytes = 0;
    exchange(&mut stream, &mut vec![0; BUFFER_BYTES], None, |some| bytes += some.len() as u64)?;
    Ok(bytes)
}

/// Reads an answer, whose body is handed on as it comes; false if the time is up before it ends.
pub fn exchange(
    stream: &mut TcpStream,
    buffer: &mut [u8],
    deadline: Option<Instant>,
    mut take: impl FnMut(&[u8]),
) -> anyhow::Result<bool> {
    let (mut head, mut body) = (Vec::new(), 0);
    let length = loop {
        let read = stream.read(buffer)?;
        anyhow::ensure!(read > 0, "the server closed the connection");
        head.extend_from_slice(&buffer[..read]);
        if let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") {
            let length = length_of(std::str::from_utf8(&head[..end])?)?;
            take(&head[end + 4..]);
            body += (head.len() - end - 4) as u64;
            break length;
        }
    };
    while body < length {
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Ok(false);
        }
        let read = stream.read(buffer)?;
        anyhow::ensure!(read > 0, "an answer broke off after {body} of {length} bytes");
        body += read as u64;
        take(&buffer[..read]);
    }
    Ok(true)
}

fn length_of(head: &str) -> anyhow::Result<u64> {
    anyhow::ensure!(head.starts_with("HTTP/1.1 20"), "a request was refused: {head}");
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    let length = lines.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    Ok(length.context("an answer without a length")?.1.trim().parse()?)
}
