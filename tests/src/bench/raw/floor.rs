//! Floors: servers that send a mapped file and do nothing else. One of threads and writes, one of hyper as it
//! comes.

use crate::bench::warm::say_ready;
use crate::harness::process::{run as programs, tie};
use anyhow::Context;
use bytes::Bytes;
use clap::{Args, ValueEnum};
use http_body_util::Full;
use hyper::header::{CONTENT_RANGE, RANGE};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use memmap2::{Mmap, MmapOptions};
use std::convert::Infallible;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// Bytes of a write.
const PIECE: usize = 1 << 20;

/// A floor's server.
#[derive(Debug, Clone, Args)]
pub struct FloorOptions {
    kind: FloorServer,
    file: PathBuf,
}

/// How it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FloorServer {
    /// A thread for each connection, which writes the mapping.
    Tcp,
    /// hyper, with slices of the mapping as bodies.
    Hyper,
}

/// A floor's server in a process of its own; killed when dropped.
pub struct FloorProcess {
    child: Child,
    pub address: String,
}

impl FloorProcess {
    pub fn start(kind: FloorServer, file: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(programs::find("forebay-bench-raw")?);
        programs::scrub(&mut command);
        tie::tie(&mut command);
        let name = kind.to_possible_value().context("every floor has a name")?;
        command.args(["floor", name.get_name()]).arg(file).stdout(Stdio::piped()).stdin(Stdio::null());
        let mut child = command.spawn().context("start a floor")?;
        let mut address = String::new();
        BufReader::new(child.stdout.take().context("a child has stdout")?).read_line(&mut address)?;
        Ok(Self { child, address: address.trim().to_owned() })
    }
}

impl Drop for FloorProcess {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Is the server.
pub fn run(options: &FloorOptions) -> anyhow::Result<()> {
    let file = Bytes::from_owner(mapped(&options.file)?);
    match options.kind {
        FloorServer::Tcp => threads(&file),
        FloorServer::Hyper => hyper_server(file),
    }
}

fn threads(file: &Bytes) -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    say_ready(&listener.local_addr()?.to_string())?;
    for stream in listener.incoming() {
        let (stream, file) = (stream?, file.clone());
        // A client that goes away ends its thread.
        std::thread::spawn(move || send(stream, &file).ok());
    }
    Ok(())
}

fn send(mut stream: TcpStream, file: &[u8]) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut asked, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        asked.clear();
        while !asked.ends_with(b"\r\n\r\n") {
            let read = stream.read(&mut buffer)?;
            if read == 0 {
                return Ok(());
            }
            asked.extend_from_slice(&buffer[..read]);
        }
        stream.write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", file.len()).as_bytes())?;
        file.chunks(PIECE).try_for_each(|piece| stream.write_all(piece))?;
    }
}

fn hyper_server(file: Bytes) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        say_ready(&listener.local_addr()?.to_string())?;
        let file = Arc::new(file);
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let file = file.clone();
            let service = service_fn(move |request| {
                let answer = answer(&request, &file);
                async move { Ok::<_, Infallible>(answer) }
            });
            let connection =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            tokio::spawn(connection);
        }
    })
}

fn answer<B>(request: &Request<B>, file: &Bytes) -> Response<Full<Bytes>> {
    let range = request.headers().get(RANGE).and_then(|range| {
        let (first, last) = range.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
        Some(first.parse::<usize>().ok()?..last.parse::<usize>().ok()? + 1)
    });
    let range = range.filter(|range| range.end <= file.len()).unwrap_or(0..file.len());
    let mut response = Response::new(Full::new(file.slice(range.clone())));
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    if let Ok(value) = format!("bytes {}-{}/{}", range.start, range.end - 1, file.len()).parse() {
        response.headers_mut().insert(CONTENT_RANGE, value);
    }
    response
}

#[expect(unsafe_code, reason = "the floor of mapped segment files is a mapping")]
fn mapped(file: &Path) -> anyhow::Result<Mmap> {
    let file = File::open(file)?;
    // SAFETY: the benchmark wrote the file, and nobody changes it after that.
    Ok(unsafe { MmapOptions::new().populate().map(&file) }?)
}
