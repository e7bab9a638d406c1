//! gRPC by hand: any method, any bytes, any header.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::header::HeaderMap;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long an answer may take to begin.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a stream that goes on is listened to.
const PAUSE: Duration = Duration::from_millis(700);

pub const UNKNOWN: u32 = 16;
pub const DENIED: u32 = 7;
pub const NOT_FOUND: u32 = 5;

/// A request.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    pub endpoint: &'a str,
    pub path: &'a str,
    /// Of `authorization`.
    pub header: Option<&'a str>,
    pub message: &'a [u8],
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Of gRPC; 0 also for a stream that goes on.
    pub code: u32,
    pub message: String,
    pub body: Vec<u8>,
}

impl Answer {
    /// Its first message.
    pub fn first<T: prost::Message + Default>(&self) -> T {
        let length = u32::from_be_bytes(self.body[1..5].try_into().expect("a length")) as usize;
        T::decode(&self.body[5..5 + length]).expect("a message")
    }

    /// Whether text, or bytes, are anywhere in it, but for what the question said itself.
    pub fn has(&self, text: &[u8], but: &str) -> bool {
        let message = self.message.replace(but, "");
        let body = String::from_utf8_lossy(&self.body).replace(but, "");
        let is_in = |all: &[u8]| all.windows(text.len()).any(|part| part == text);
        is_in(message.as_bytes()) || is_in(body.as_bytes()) || (but.is_empty() && is_in(&self.body))
    }
}

/// Asks over a connection of its own; the answer as it begins.
pub async fn send(question: Question<'_>) -> hyper::Response<hyper::body::Incoming> {
    let address = question.endpoint.trim_start_matches("http://");
    let stream = TcpStream::connect(address).await.expect("connect");
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.expect("speak HTTP/2");
    tokio::spawn(connection);
    let mut request = Request::post(format!("http://{address}{}", question.path))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(header) = question.header {
        request = request.header("authorization", header);
    }
    let length = (question.message.len() as u32).to_be_bytes();
    let framed = [&[0][..], &length, question.message].concat();
    let request = request.body(Full::new(Bytes::from(framed))).expect("a request");
    timeout(PATIENCE, sender.send_request(request)).await.expect("an answer in time").expect("an answer")
}

/// Asks, and listens until the answer ends, or pauses.
pub async fn ask(question: Question<'_>) -> Answer {
    ask_with(question, PAUSE).await
}

/// Asks, and listens until the answer ends.
pub async fn ask_whole(question: Question<'_>) -> Answer {
    ask_with(question, PATIENCE).await
}

async fn ask_with(question: Question<'_>, pause: Duration) -> Answer {
    let (head, mut body) = send(question).await.into_parts();
    let mut answer = Answer { code: 0, message: String::new(), body: Vec::new() };
    note(&mut answer, &head.headers);
    loop {
        let pause = if answer.body.is_empty() { PATIENCE } else { pause };
        match timeout(pause, body.frame()).await {
            Ok(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => answer.body.extend_from_slice(&data),
                Err(frame) => note(&mut answer, frame.trailers_ref().expect("trailers")),
            },
            Ok(Some(Err(e))) => panic!("{}: the answer breaks off: {e}", question.path),
            Ok(None) | Err(_) => return answer,
        }
    }
}

/// Code and message of gRPC.
fn note(answer: &mut Answer, headers: &HeaderMap) {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(code) = text("grpc-status") {
        answer.code = code.parse().expect("a code");
        answer.message = unescaped(text("grpc-message").unwrap_or_default());
    }
}

/// The code with which a stream ends; none if its connection is cut.
pub fn code_of(trailers: &HeaderMap) -> Option<u32> {
    trailers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escape = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match escape.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|_| *first == b'%') {
            Some(byte) => (bytes.push(byte), rest = &after[2..]).1,
            None => (bytes.push(*first), rest = after).1,
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
