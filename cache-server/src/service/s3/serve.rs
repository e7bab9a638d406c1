//! Connections of S3 clients: how much they may say, and what one too many is told.

use super::endpoint::Endpoint;
use super::refusal::S3Refusal;
use super::route;
use crate::service::connection::Connections;
use crate::service::http1::{Http1Server, LINGER};
use forebay_tls::Purpose;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Bytes of a request's head at most.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Clients that are told at once to come back; others see the connection closed.
const FAREWELLS_MAX: usize = 64;

/// Serves until `stop` is called; requests that are being answered then end by themselves.
pub async fn run(
    listener: TcpListener,
    endpoint: Endpoint,
    connections: Connections,
    stop: CancellationToken,
) {
    let listeners = &endpoint.node.listeners;
    let server = Http1Server {
        purpose: Purpose::S3,
        clients: "of an S3 client",
        admission: listeners.s3.clone(),
        tls: listeners.tls.clone(),
        connections: Some(connections),
        head_bytes_max: HEAD_BYTES_MAX,
        // A number of our own would have hyper write a list of 3 KB for each request.
        headers_max: None,
        head_timeout: endpoint.head_timeout,
        write_timeout: endpoint.write_timeout,
    };
    let (is_plain, farewells) = (server.tls.is_none(), Arc::new(Semaphore::new(FAREWELLS_MAX)));
    let turn_away = |stream: TcpStream| {
        // A handshake would cost more than this client is to have.
        if !is_plain {
            return;
        }
        tracing::debug!("an S3 client is told to come back: there are too many connections");
        if let Ok(farewell) = farewells.clone().try_acquire_owned() {
            tokio::spawn(async move {
                timeout(LINGER, turn_away(stream)).await.ok();
                drop(farewell);
            });
        }
    };
    let endpoint = Arc::new(endpoint);
    let answer = move |request: Request<Incoming>| {
        let endpoint = endpoint.clone();
        async move { route::answer(&endpoint, request).await }
    };
    server.run(listener, stop, answer, turn_away).await;
}

/// Answers on a connection that is one too many.
async fn turn_away(stream: TcpStream) {
    let refusal = S3Refusal::new(
        http::StatusCode::SERVICE_UNAVAILABLE,
        "SlowDown",
        "There are too many connections: come back later.",
    );
    let service = service_fn(move |_: Request<Incoming>| {
        let response: Response<Full<_>> = S3Refusal { closes: true, ..refusal.clone() }.response("/", "0");
        async move { Ok::<_, Infallible>(response) }
    });
    let connection =
        http1::Builder::new().max_buf_size(HEAD_BYTES_MAX).serve_connection(TokioIo::new(stream), service);
    connection.await.ok();
}
