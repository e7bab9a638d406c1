//! HTTP/2 and TCP, spoken by hand: a client that says just what it is told to, however wrong it is.

use anyhow::Context;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use tokio::net::TcpSocket;

/// What an HTTP/2 client says first.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Kinds of frames (RFC 9113, section 6).
pub mod kind {
    /// Bytes of a body.
    pub const DATA: u8 = 0;
    /// A head, or trailers.
    pub const HEADERS: u8 = 1;
    /// The end of a stream.
    pub const RST_STREAM: u8 = 3;
    /// What one side wants.
    pub const SETTINGS: u8 = 4;
    /// To be answered.
    pub const PING: u8 = 6;
    /// The end of a connection.
    pub const GOAWAY: u8 = 7;
    /// More may be sent.
    pub const WINDOW_UPDATE: u8 = 8;
    /// More of a head.
    pub const CONTINUATION: u8 = 9;
}

/// Flags of frames.
pub mod flag {
    /// Nothing follows.
    pub const END_STREAM: u8 = 1;
    /// An answer.
    pub const ACK: u8 = 1;
    /// The head is whole.
    pub const END_HEADERS: u8 = 4;
}

/// The error code of a stream that was not looked at (section 7).
pub const REFUSED_STREAM: u32 = 7;

/// The error code of a connection on which there was too much.
pub const ENHANCE_YOUR_CALM: u32 = 11;

/// The setting that says how many streams a connection may have.
pub const MAX_CONCURRENT_STREAMS: u16 = 3;

/// A frame as it came.
#[derive(Debug, Clone)]
pub struct Frame {
    /// See [`kind`].
    pub kind: u8,
    /// See [`flag`].
    pub flags: u8,
    /// 0: the connection.
    pub stream: u32,
    /// Its bytes.
    pub payload: Vec<u8>,
}

impl Frame {
    /// The error code of a GOAWAY or RST_STREAM.
    pub fn code(&self) -> Option<u32> {
        let at = match self.kind {
            kind::GOAWAY => 4,
            kind::RST_STREAM => 0,
            _ => return None,
        };
        Some(u32::from_be_bytes(self.payload.get(at..at + 4)?.try_into().ok()?))
    }

    /// A value of a SETTINGS frame.
    pub fn setting(&self, id: u16) -> Option<u32> {
        let mut all = self.payload.chunks_exact(6);
        let found = all.find(|s| self.kind == kind::SETTINGS && s[..2] == id.to_be_bytes())?;
        Some(u32::from_be_bytes(found[2..].try_into().ok()?))
    }
}

/// A frame as it is sent.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The header block of a gRPC request, without Huffman coding and without a table (RFC 7541, section 6.2.2).
pub fn request_block(path: &str) -> Vec<u8> {
    let literal = |name: &[u8], value: &[u8]| [name, &[value.len() as u8], value].concat();
    [
        // POST, http.
        vec![0x83, 0x86],
        literal(&[0x04], path.as_bytes()),
        literal(&[0x01], b"node"),
        literal(&[0x0f, 0x10], b"application/grpc"),
        literal(b"\0\x02te", b"trailers"),
    ]
    .concat()
}

/// A gRPC message: a flag, its length as it is claimed, its bytes.
pub fn grpc(flag: u8, length: u32, bytes: &[u8]) -> Vec<u8> {
    [&[flag][..], &length.to_be_bytes(), bytes].concat()
}

/// Addresses of this host from which strangers come: not the one of good readers.
pub fn stranger(n: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 9, n).into()
}

/// A connection from an address of this host.
pub fn connect(from: IpAddr, to: SocketAddr) -> anyhow::Result<TcpStream> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stream = runtime.block_on(async {
        let socket = TcpSocket::new_v4()?;
        socket.bind((from, 0).into())?;
        tokio::time::timeout(Duration::from_secs(10), socket.connect(to)).await?
    });
    let stream = stream.with_context(|| format!("connect to {to}"))?.into_std()?;
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Whether the other side has closed the connection, or does so within a time. What it says before is read.
pub fn closes_within(stream: &mut TcpStream, time: Duration) -> anyhow::Result<bool> {
    let (end, mut bytes) = (Instant::now() + time, [0; 4096]);
    loop {
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut bytes) {
            Ok(0) => return Ok(true),
            Ok(_) => {}
            Err(e) if is_late(&e) => return Ok(false),
            Err(_) => return Ok(true),
        }
        if Instant::now() >= end {
            return Ok(false);
        }
    }
}

fn is_late(e: &std::io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// A connection on which HTTP/2 has begun.
pub struct RawHttp2 {
    /// Below it.
    pub stream: TcpStream,
    came: Vec<u8>,
}

impl RawHttp2 {
    /// Connects and says the preface and no settings.
    pub fn open(from: IpAddr, to: SocketAddr) -> anyhow::Result<Self> {
        let mut this = Self { stream: connect(from, to)?, came: Vec::new() };
        this.say(&[PREFACE, &frame(kind::SETTINGS, 0, 0, &[])].concat())?;
        Ok(this)
    }

    /// Sends bytes; an error where the other side has hung up, or takes nothing for 10 s.
    pub fn say(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.set_write_timeout(Some(Duration::from_secs(10)))?;
        self.stream.write_all(bytes)
    }

    /// Sends bytes as long as the other side takes them within a time; how many it took.
    pub fn push(&mut self, bytes: &[u8], time: Duration) -> usize {
        let (end, mut sent) = (Instant::now() + time, 0);
        while sent < bytes.len() && Instant::now() < end {
            self.stream.set_write_timeout(Some(Duration::from_millis(200))).ok();
            match self.stream.write(&bytes[sent..]) {
                Ok(n) => sent += n,
                Err(e) if is_late(&e) => {}
                Err(_) => break,
            }
        }
        sent
    }

    /// Begins a request whose body stays open.
    pub fn request(&mut self, stream: u32, path: &str) -> std::io::Result<()> {
        self.say(&frame(kind::HEADERS, flag::END_HEADERS, stream, &request_block(path)))
    }

    /// The next frame; `None` when none comes in time, or no more come.
    pub fn next(&mut self, time: Duration) -> Option<Frame> {
        let end = Instant::now() + time;
        loop {
            if let Some(frame) = self.parsed() {
                return Some(frame);
            }
            let left = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
            self.stream.set_read_timeout(Some(left)).ok()?;
            let mut bytes = [0; 16 << 10];
            match self.stream.read(&mut bytes) {
                Ok(0) | Err(_) => return None,
                Ok(n) => self.came.extend_from_slice(&bytes[..n]),
            }
        }
    }

    /// The first frame that is wanted, of those that come within a time.
    pub fn find(&mut self, time: Duration, is_wanted: impl Fn(&Frame) -> bool) -> Option<Frame> {
        let end = Instant::now() + time;
        loop {
            let next = self.next(end.saturating_duration_since(Instant::now()))?;
            if is_wanted(&next) {
                return Some(next);
            }
        }
    }

    fn parsed(&mut self) -> Option<Frame> {
        let head: [u8; 9] = self.came.get(..9)?.try_into().ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let payload = self.came.get(9..9 + length)?.to_vec();
        self.came.drain(..9 + length);
        let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
        Some(Frame { kind: head[3], flags: head[4], stream, payload })
    }
}
