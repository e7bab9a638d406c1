//! gRPC by hand: any method, any bytes, any header.

use anyhow::Context;
use bytes::Bytes;
use forebay_proto::v1;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::header::HeaderMap;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long an answer may take to begin.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a stream that goes on is listened to.
const PAUSE: Duration = Duration::from_millis(700);

/// UNAUTHENTICATED of gRPC.
pub const UNKNOWN: u32 = 16;

/// PERMISSION_DENIED.
pub const DENIED: u32 = 7;

/// NOT_FOUND.
pub const NOT_FOUND: u32 = 5;

/// A request.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    /// `http://HOST:PORT`
    pub endpoint: &'a str,
    /// `/SERVICE/METHOD`
    pub path: &'a str,
    /// Of `authorization`.
    pub header: Option<&'a str>,
    /// The request, encoded.
    pub message: &'a [u8],
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Of gRPC; 0 also for a stream that goes on.
    pub code: u32,
    /// The error's text.
    pub message: String,
    /// All that came, with the heads of messages.
    pub body: Vec<u8>,
}

impl Answer {
    /// Its first message.
    pub fn first<T: prost::Message + Default>(&self) -> anyhow::Result<T> {
        let (head, rest) = self.body.split_first_chunk::<5>().context("a message")?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        Ok(T::decode(rest.get(..length).context("a whole message")?)?)
    }

    /// Whether text, or bytes, are anywhere in it, but for what the question said itself.
    pub fn has(&self, text: &[u8], but: &str) -> bool {
        let message = self.message.replace(but, "");
        let body = String::from_utf8_lossy(&self.body).replace(but, "");
        let is_in = |all: &[u8]| all.windows(text.len()).any(|part| part == text);
        is_in(message.as_bytes()) || is_in(body.as_bytes()) || (but.is_empty() && is_in(&self.body))
    }
}

/// A ticket as Flight wraps it.
pub fn flight_ticket(ticket: &v1::Ticket) -> Vec<u8> {
    #[derive(Clone, PartialEq, prost::Message)]
    struct FlightTicket {
        #[prost(bytes, tag = "1")]
        ticket: Vec<u8>,
    }
    FlightTicket { ticket: ticket.encode_to_vec() }.encode_to_vec()
}

/// A connection that speaks HTTP/2.
pub type Sender = hyper::client::conn::http2::SendRequest<Full<Bytes>>;

/// Speaks HTTP/2 over a connection.
pub async fn http2(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> anyhow::Result<Sender> {
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (sender, connection) = handshake.await.context("speak HTTP/2")?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Asks over a connection; the answer as it begins.
pub async fn post(
    sender: &mut Sender,
    question: Question<'_>,
) -> anyhow::Result<hyper::Response<hyper::body::Incoming>> {
    let mut request = Request::post(format!("http://{}{}", host(question), question.path))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(header) = question.header {
        request = request.header("authorization", header);
    }
    let length = (question.message.len() as u32).to_be_bytes();
    let framed = [&[0][..], &length, question.message].concat();
    let request = request.body(Full::new(Bytes::from(framed)))?;
    let answer = timeout(PATIENCE, sender.send_request(request)).await.context("an answer in time")?;
    answer.with_context(|| format!("{}: no answer", question.path))
}

/// Asks over a connection of its own; the answer as it begins.
pub async fn send(question: Question<'_>) -> anyhow::Result<hyper::Response<hyper::body::Incoming>> {
    let stream = TcpStream::connect(host(question)).await.context("connect")?;
    stream.set_nodelay(true)?;
    post(&mut http2(stream).await?, question).await
}

fn host(question: Question<'_>) -> &str {
    question.endpoint.rsplit("//").next().unwrap_or_default()
}

/// Asks, and listens until the answer ends, or pauses.
pub async fn ask(question: Question<'_>) -> anyhow::Result<Answer> {
    hear(send(question).await?, PAUSE).await
}

/// The same over a connection that is there.
pub async fn ask_over(sender: &mut Sender, question: Question<'_>) -> anyhow::Result<Answer> {
    hear(post(sender, question).await?, PAUSE).await
}

/// Asks, and listens until the answer ends.
pub async fn ask_whole(question: Question<'_>) -> anyhow::Result<Answer> {
    hear(send(question).await?, PATIENCE).await
}

async fn hear(answer: hyper::Response<hyper::body::Incoming>, pause: Duration) -> anyhow::Result<Answer> {
    let (head, mut body) = answer.into_parts();
    let mut answer = Answer { code: 0, message: String::new(), body: Vec::new() };
    note(&mut answer, &head.headers)?;
    loop {
        let pause = if answer.body.is_empty() { PATIENCE } else { pause };
        match timeout(pause, body.frame()).await {
            Ok(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => answer.body.extend_from_slice(&data),
                Err(frame) => note(&mut answer, frame.trailers_ref().context("trailers")?)?,
            },
            Ok(Some(Err(e))) => anyhow::bail!("the answer breaks off: {e}"),
            Ok(None) | Err(_) => return Ok(answer),
        }
    }
}

/// Code and message of gRPC.
fn note(answer: &mut Answer, headers: &HeaderMap) -> anyhow::Result<()> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(code) = text("grpc-status") {
        answer.code = code.parse().context("a code")?;
        answer.message = unescaped(text("grpc-message").unwrap_or_default());
    }
    Ok(())
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
