//! Bytes to an endpoint of S3, sensible or not, and whatever comes back.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long an answer may take.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A connection whose reads end after some time.
pub fn connect(to: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Sends bytes and returns all that comes back until the server closes or is silent for some time.
pub fn say(to: SocketAddr, bytes: &[u8]) -> std::io::Result<String> {
    let mut stream = connect(to)?;
    // The server may well refuse and close before it has read all.
    stream.write_all(bytes).ok();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).ok();
    Ok(String::from_utf8_lossy(&reply).into_owned())
}

/// A request whose connection ends after it.
pub fn get(target: &str, headers: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{headers}\r\n")
}

/// The status of an answer; 0 of none.
pub fn status(reply: &str) -> u16 {
    reply.get(9..12).and_then(|digits| digits.parse().ok()).unwrap_or(0)
}
