//! gRPC calls whose bodies are whatever they are, over one connection each.

use crate::harness::frames::stranger;
use anyhow::Context;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use http_body_util::{BodyExt, StreamBody};
use hyper::Request;
use hyper::body::Frame;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpSocket;

/// Codes of gRPC: OK, INVALID_ARGUMENT, UNIMPLEMENTED.
pub const OK: u16 = 0;
pub const INVALID_ARGUMENT: u16 = 3;
pub const UNIMPLEMENTED: u16 = 12;

/// How long an answer may take: longer than a node waits for a request, and for memory for it.
const PATIENCE: Duration = Duration::from_secs(180);

/// Pieces of a body.
pub type Pieces = BoxStream<'static, Bytes>;

/// Bytes of one value, in pieces.
pub fn filler(head: Vec<u8>, byte: u8, bytes: usize) -> Pieces {
    let piece = Bytes::from(vec![byte; 256 << 10]);
    let count = bytes.div_ceil(piece.len());
    let rest = stream::iter((0..count).map(move |n| piece.slice(..piece.len().min(bytes - n * piece.len()))));
    stream::iter([Bytes::from(head)]).chain(rest).boxed()
}

/// One piece.
pub fn piece(bytes: Vec<u8>) -> Pieces {
    stream::iter([Bytes::from(bytes)]).boxed()
}

/// Calls a method from a stranger's address. The code of the answer; `None` where there is none, for the
/// stream or the connection ended.
pub async fn call(node: SocketAddr, path: &str, body: Pieces) -> anyhow::Result<Option<u16>> {
    call_as(None, node, path, body).await
}

/// The same, with any `authorization`.
pub async fn call_as(
    header: Option<&str>,
    node: SocketAddr,
    path: &str,
    body: Pieces,
) -> anyhow::Result<Option<u16>> {
    let answer = exchange(header, node, path, body);
    tokio::time::timeout(PATIENCE, answer).await.context("an answer in time")?
}

async fn exchange(
    header: Option<&str>,
    node: SocketAddr,
    path: &str,
    body: Pieces,
) -> anyhow::Result<Option<u16>> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((stranger(1), 0).into())?;
    let stream = socket.connect(node).await?;
    let (mut send, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let body = StreamBody::new(body.map(|piece| Ok::<_, Infallible>(Frame::data(piece))));
    let request = Request::post(format!("http://{node}{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    let request = header.into_iter().fold(request, |request, value| request.header("authorization", value));
    let request = request.body(body)?;
    let code = async {
        let answer = send.send_request(request).await.ok()?;
        let in_head = answer.headers().get("grpc-status").cloned();
        let trailers = answer.into_body().collect().await.ok().and_then(|all| all.trailers().cloned());
        let status = in_head.or_else(|| trailers?.get("grpc-status").cloned())?;
        status.to_str().ok()?.parse().ok()
    };
    let code = code.await;
    connection.abort();
    Ok(code)
}
