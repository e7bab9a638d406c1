//! The batch stream: Arrow Flight's `DoGet` straight over an HTTP/2 connection, one connection for each
//! stream.
//!
//! A stock gRPC client collects each message before it hands it on; this one yields the pieces as the frames
//! arrive ([`StreamEvent`]), so that a body is copied once, to its final place. Frames are large
//! (`FRAME_BYTES`): that is worth half the CPU time of the default. A caller that does not
//! ask for the next event holds the server back: no more than a window is ever under way. Pings go out all
//! the while, so a silent server is noticed within seconds.
//!
//! It does not retry, and does not know what a message means.

mod parse;
mod rows;
mod shared;

use crate::cause::innermost;
use crate::certificates;
use crate::credentials::Credentials;
use bytes::{BufMut, Bytes, BytesMut};
use forebay_proto::{Error, Result};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parse::Parser;
pub use parse::{Head, StreamEvent};
use prost::Message as _;
pub(crate) use rows::{SharedRows, SharedSegments};
pub(crate) use shared::{SessionRequest, SharedSession};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Code, Status};

/// Bytes that the server may send ahead of what was taken, unless the reader says otherwise: the plateau of
/// throughput, measured.
pub const WINDOW_BYTES: u32 = 8 << 20;

/// The largest HTTP/2 frame.
const FRAME_BYTES: u32 = 1 << 20;

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(5);

/// A connection without traffic is asked for a sign of life so often, which may take so long.
const PING: (Duration, Duration) = match cfg!(test) {
    false => (Duration::from_secs(1), Duration::from_secs(4)),
    true => (Duration::from_millis(200), Duration::from_millis(300)),
};

/// A running `DoGet`. Dropping it ends the call.
#[derive(Debug)]
pub struct Stream {
    address: String,
    body: Incoming,
    parser: Parser,
    input: Bytes,
    /// Where messages lie that do not come as bytes.
    session: Option<SharedSession>,
    /// What follows of such a message.
    pieces: VecDeque<StreamEvent>,
    _connection: AbortOnDropHandle<()>,
}

/// Names the session to the node.
const TOKEN_HEADER: &str = "forebay-session";

/// What the address of a Unix socket begins with.
const UNIX: &str = "unix:";

const PATH: &str = "/arrow.flight.protocol.FlightService/DoGet";

impl Stream {
    /// Connects to `http://host:port`, `https://host:port` or `unix:/path` and asks for `ticket`. `window_bytes`, rounded into 64 KiB .. 16 MiB, are
    /// what the server may send ahead of what was taken. `Retry` when the node cannot be reached.
    pub async fn open(address: &str, ticket: &[u8], window_bytes: u32) -> Result<Self> {
        Self::start(address, ticket, window_bytes, None).await
    }

    /// The same, and messages lie in the session's memory as far as the node has room for them there.
    pub(crate) async fn open_shared(
        address: &str,
        ticket: &[u8],
        window_bytes: u32,
        session: SharedSession,
    ) -> Result<Self> {
        Self::start(address, ticket, window_bytes, Some(session)).await
    }

    async fn start(
        address: &str,
        ticket: &[u8],
        window_bytes: u32,
        session: Option<SharedSession>,
    ) -> Result<Self> {
        let (mut send, connection) =
            timeout(CONNECT, connect(address, window_bytes)).await.map_err(|_| {
                let seconds = CONNECT.as_secs();
                Error::retry(format!("cannot reach the cache at {address}: no connection within {seconds} s"))
            })??;
        let host = if address.starts_with(UNIX) { "http://localhost" } else { address };
        let mut request = http::Request::post(format!("{host}{PATH}"));
        if let Some(session) = &session {
            request = request.header(TOKEN_HEADER, session.token());
        }
        if let Some(bearer) = Credentials::of_process().bearer()? {
            request = request.header("authorization", &*bearer);
        }
        let request = request
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("user-agent", concat!("forebay/", env!("CARGO_PKG_VERSION")))
            .body(Full::new(request_message(ticket)))
            .map_err(|e| Error::invalid(format!("cannot ask {address}: {e}")))?;
        let reply = send.send_request(request).await.map_err(|e| broken(address, &e))?;
        let is_grpc = |h: &http::HeaderValue| h.as_bytes().starts_with(b"application/grpc");
        if let Some(Err(e)) = outcome(reply.headers()) {
            return Err(e);
        }
        if !reply.status().is_success() || !reply.headers().get("content-type").is_some_and(is_grpc) {
            return Err(Error::invalid(format!(
                "{address} answered DoGet with HTTP status {} and no gRPC: is a forebay-server there?",
                reply.status()
            )));
        }
        let body = reply.into_body();
        let (parser, input, pieces) = Default::default();
        let address = address.to_owned();
        Ok(Self { address, body, parser, input, session, pieces, _connection: connection })
    }

    /// The next event; `None` after a whole and successful stream. `Retry` when the connection breaks, or
    /// what comes over it makes no sense.
    pub async fn next(&mut self) -> Result<Option<StreamEvent>> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Ok(Some(piece));
            }
            let parsed = self.parser.next(&mut self.input);
            if let Some(mut event) = parsed.map_err(|e| Error::retry(format!("{}: {e}", self.address)))? {
                if let StreamEvent::Head(head) = &mut event
                    && let Some(body) = head.shared.take()
                {
                    let unasked = || Error::retry(format!("{} shares memory unasked", self.address));
                    self.pieces = self.session.as_ref().ok_or_else(unasked)?.events(body)?;
                }
                return Ok(Some(event));
            }
            let frame = match self.body.frame().await {
                Some(frame) => frame.map_err(|e| broken(&self.address, &e))?,
                None => return Err(self.cut()),
            };
            match frame.into_data() {
                Ok(data) => self.input = data,
                Err(frame) => match frame.trailers_ref().and_then(outcome) {
                    Some(Ok(())) if self.parser.between_messages() => {
                        if let Some(session) = self.session.take() {
                            session.end_stream();
                        }
                        return Ok(None);
                    }
                    Some(Err(e)) => return Err(e),
                    _ => return Err(self.cut()),
                },
            }
        }
    }

    fn cut(&self) -> Error {
        Error::retry(format!("the stream from {} was cut off", self.address))
    }
}

type Sender = http2::SendRequest<Full<Bytes>>;

async fn connect(address: &str, window_bytes: u32) -> Result<(Sender, AbortOnDropHandle<()>)> {
    if let Some(path) = address.strip_prefix(UNIX) {
        let unix = UnixStream::connect(path).await.map_err(|e| unreachable(address, &e))?;
        return handshake(address, unix, window_bytes).await;
    }
    let not_one = || {
        Error::invalid(format!(
            "`{address}` is not the address of a cache: use http://host:port, https://host:port, or unix:/path"
        ))
    };
    let uri: http::Uri = address.parse().map_err(|_| not_one())?;
    let (host, port) = (uri.host().ok_or_else(not_one)?, uri.port_u16().ok_or_else(not_one)?);
    let host = certificates::bare(host);
    if certificates::is_tls(address) {
        let tls = certificates::dial(host, port).await.map_err(|e| unreachable(address, &e))?;
        return handshake(address, tls, window_bytes).await;
    }
    let tcp = TcpStream::connect((host, port)).await.map_err(|e| unreachable(address, &e))?;
    tcp.set_nodelay(true).map_err(|e| broken(address, &e))?;
    handshake(address, tcp, window_bytes).await
}

async fn handshake<T: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    address: &str,
    socket: T,
    window_bytes: u32,
) -> Result<(Sender, AbortOnDropHandle<()>)> {
    let window = window_bytes.clamp(64 << 10, 16 << 20);
    let (send, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(window)
        .initial_connection_window_size(window)
        .max_frame_size(FRAME_BYTES)
        .keep_alive_interval(PING.0)
        .keep_alive_timeout(PING.1)
        .handshake(TokioIo::new(socket))
        .await
        .map_err(|e| broken(address, &e))?;
    // How a connection fails is told by the stream on it.
    let task = tokio::spawn(async move { drop(connection.await) });
    Ok((send, AbortOnDropHandle::new(task)))
}

/// A gRPC message that holds a Flight `Ticket`.
fn request_message(ticket: &[u8]) -> Bytes {
    let ticket = arrow_flight::Ticket { ticket: Bytes::copy_from_slice(ticket) };
    let mut out = BytesMut::with_capacity(16 + ticket.ticket.len());
    out.put_u8(0);
    out.put_u32(ticket.encoded_len() as u32);
    out.put_slice(&ticket.encode_to_vec());
    out.freeze()
}

/// The outcome that headers or trailers name; `None` if they name none.
fn outcome(headers: &http::HeaderMap) -> Option<Result<()>> {
    let status = Status::from_header_map(headers)?;
    match status.code() {
        Code::Ok => Some(Ok(())),
        code if status.message().is_empty() => {
            let message = format!("the server ended the stream with {code:?} and no message");
            Some(Err(Error::from(Status::new(code, message))))
        }
        _ => Some(Err(Error::from(status))),
    }
}

fn unreachable(address: &str, e: &std::io::Error) -> Error {
    Error::retry(format!("cannot reach the cache at {address}: {e}"))
}

fn broken(address: &str, e: &(dyn std::error::Error + 'static)) -> Error {
    Error::retry(format!("the stream from {address} broke: {}", reason(address, e)))
}

/// Why a connection to a node failed, for a person.
pub(crate) fn reason(address: &str, e: &(dyn std::error::Error + 'static)) -> String {
    let reason = innermost(e).to_string();
    // What TLS says to a stranger looks like the head of a frame that is longer than any.
    match reason.contains("frame with invalid size") && address.starts_with("http://") {
        true => "no HTTP/2 is spoken there: if TLS is, use https:// rather than http://".to_owned(),
        false => reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::Kind;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// A server that says `greeting` to each connection and then nothing, but reads on.
    async fn server(greeting: &'static [u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((mut tcp, _)) = listener.accept().await {
                tokio::spawn(async move {
                    tcp.write_all(greeting).await.ok();
                    while matches!(tcp.read(&mut [0; 1024]).await, Ok(1..)) {}
                });
            }
        });
        address
    }

    #[test]
    fn kinds_and_messages_come_through() {
        let headers = |status: &str, message: &str| {
            let mut h = http::HeaderMap::new();
            h.insert("grpc-status", status.parse().unwrap());
            h.insert("grpc-message", message.parse().unwrap());
            h
        };
        assert!(outcome(&http::HeaderMap::new()).is_none());
        assert!(outcome(&headers("0", "")).unwrap().is_ok());
        let e = outcome(&headers("15", "s3://b/k: 100%25 damaged%0A%C3%BC %zz %4")).unwrap().unwrap_err();
        assert_eq!((e.kind, e.message.as_str()), (Kind::Corrupt, "s3://b/k: 100% damaged ü %zz %4"));
        assert_eq!(outcome(&headers("5", "x")).unwrap().unwrap_err().kind, Kind::NotFound);
        assert_eq!(outcome(&headers("nonsense", "")).unwrap().unwrap_err().kind, Kind::Retry);
    }

    #[tokio::test]
    async fn a_silent_server_is_noticed() {
        // Once silent from the start, once after its (empty) HTTP/2 settings.
        for greeting in [&b""[..], b"\0\0\0\x04\0\0\0\0\0"] {
            let address = server(greeting).await;
            let open = timeout(Duration::from_secs(30), Stream::open(&address, b"t", WINDOW_BYTES));
            let e = open.await.expect("it is noticed").unwrap_err();
            assert_eq!(e.kind, Kind::Retry);
            assert!(e.message.contains(&address), "{e}");
        }
    }

    #[tokio::test]
    async fn other_servers_and_none_are_clear_errors() {
        let address = server(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        let e = Stream::open(&address, b"t", WINDOW_BYTES).await.unwrap_err();
        assert!(e.kind == Kind::Retry && e.message.contains(&address), "{e}");
        // What a node with TLS says to who speaks none: an alert.
        let address = server(b"\x15\x03\x03\0\x02\x02\x46").await;
        let e = Stream::open(&address, b"t", WINDOW_BYTES).await.unwrap_err();
        assert!(e.message.contains("if TLS is, use https://"), "{e}");
        // Nobody listens there; a port that was free a moment ago may be taken.
        let address = "http://127.0.0.1:1";
        let e = Stream::open(address, b"t", WINDOW_BYTES).await.unwrap_err();
        assert!(
            e.message.starts_with(&format!("cannot reach the cache at {address}: Connection refused")),
            "{e}"
        );
        assert_eq!(Stream::open("nonsense", b"t", WINDOW_BYTES).await.unwrap_err().kind, Kind::Invalid);
    }
}
