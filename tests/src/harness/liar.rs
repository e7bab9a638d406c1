//! An object store that lies: a test makes up each answer, head and body, to the byte. Speaks HTTP/1.1 with a
//! connection for each request, and checks no signature.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes of a request's head at most.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// How long a client may keep it waiting.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running object store; stops when dropped.
pub struct LyingStore {
    /// `http://127.0.0.1:PORT`
    pub endpoint: String,
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiarRequest {
    /// GET or HEAD.
    pub method: String,
    /// Path and query as sent.
    pub target: String,
    /// The range, if it names both ends.
    pub range: Option<Range<u64>>,
}

/// The answer to one, word for word.
#[derive(Debug, Clone)]
pub struct LiarReply {
    /// Such as `200 OK`.
    pub status: &'static str,
    /// Nothing is added to these but that the connection ends.
    pub headers: Vec<(&'static str, String)>,
    /// Sent whatever the headers say of it.
    pub body: Vec<u8>,
}

impl LiarReply {
    /// Sets a header, in place of one of this name.
    pub fn set(&mut self, name: &'static str, value: impl ToString) {
        self.remove(name);
        self.headers.push((name, value.to_string()));
    }

    /// Leaves a header out.
    pub fn remove(&mut self, name: &str) {
        self.headers.retain(|(other, _)| *other != name);
    }

    fn bytes(&self) -> Vec<u8> {
        let lines = self.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
        let head =
            format!("HTTP/1.1 {}\r\n{}Connection: close\r\n\r\n", self.status, lines.collect::<String>());
        [head.as_bytes(), &self.body].concat()
    }
}

impl LyingStore {
    /// Starts one on a free port.
    ///
    /// # Panics
    /// If there is none.
    pub fn start(answer: impl Fn(&LiarRequest) -> LiarReply + Send + Sync + 'static) -> Self {
        let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = socket.local_addr().expect("its address");
        let (stop, answer) = (Arc::new(AtomicBool::new(false)), Arc::new(answer));
        let is_stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            for stream in socket.incoming().flatten() {
                if is_stopped.load(Relaxed) {
                    return;
                }
                let answer = answer.clone();
                // One that goes away is the client's affair.
                std::thread::spawn(move || serve(stream, &*answer).ok());
            }
        });
        Self { endpoint: format!("http://{address}"), address, stop, thread: Some(thread) }
    }
}

impl Drop for LyingStore {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        // So that it looks.
        TcpStream::connect(self.address).ok();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

fn serve(mut stream: TcpStream, answer: &impl Fn(&LiarRequest) -> LiarReply) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && head.len() < HEAD_BYTES_MAX {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    stream.write_all(&answer(&request(&head)).bytes())?;
    stream.shutdown(Shutdown::Write)
}

fn request(head: &str) -> LiarRequest {
    let mut words = head.split_ascii_whitespace();
    let mut word = || words.next().unwrap_or_default().to_owned();
    let (method, target) = (word(), word());
    let range = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let (first, last) = value.trim().strip_prefix("bytes=")?.split_once('-')?;
        let is_range = name.eq_ignore_ascii_case("range");
        is_range.then_some(first.parse().ok()?..last.parse::<u64>().ok()? + 1)
    });
    LiarRequest { method, target, range }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_test_makes_up_is_what_comes() {
        let store = LyingStore::start(|asked| {
            assert_eq!((asked.method.as_str(), asked.target.as_str()), ("GET", "/b/k?x=1"));
            assert_eq!(asked.range, Some(5..8));
            let mut reply = LiarReply { status: "206 Partial Content", headers: vec![], body: b"abc".into() };
            reply.set("Content-Length", 1);
            reply.set("Content-Length", 99);
            reply
        });
        let mut stream = TcpStream::connect(store.address).expect("connect");
        stream.write_all(b"GET /b/k?x=1 HTTP/1.1\r\nRange: bytes=5-7\r\n\r\n").expect("ask");
        let mut said = String::new();
        stream.read_to_string(&mut said).expect("an answer");
        assert_eq!(
            said,
            "HTTP/1.1 206 Partial Content\r\nContent-Length: 99\r\nConnection: close\r\n\r\nabc"
        );
    }
}
