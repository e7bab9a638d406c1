//! Connections of S3 clients: how many, how long they may take, how much they may say.

use super::endpoint::Endpoint;
use super::refusal::S3Refusal;
use super::route::answer;
use crate::service::accept;
use crate::service::admission::Place;
use crate::service::connection::Connections;
use crate::service::patient::Patient;
use crate::service::refusals::TurnedAway;
use crate::service::stalls::StreamOrigin;
use forebay_tls::Purpose;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Bytes of a request's head at most. Headers may be 100, hyper's own number: named here, it would have hyper
/// write a list of 3 KB for each request.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Clients that are told at once to come back; others see the connection closed.
const FAREWELLS_MAX: usize = 64;

/// What a client still sends when it was answered is read for so long, and no more of it than this: else it
/// would see the connection break rather than the answer.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: u64 = 256 << 10;

/// Serves until `stop` is called; requests that are being answered then end by themselves.
pub async fn run(
    listener: TcpListener,
    endpoint: Endpoint,
    connections: Connections,
    stop: CancellationToken,
) {
    let admission = endpoint.node.listeners.s3.clone();
    let endpoint = Arc::new(endpoint);
    let farewells = Arc::new(Semaphore::new(FAREWELLS_MAX));
    let serve = |stream, place: Place| {
        let (endpoint, stop, open) = (endpoint.clone(), stop.clone(), connections.open());
        tokio::spawn(async move {
            let evicted = place.evicted.clone();
            let serving = async {
                match endpoint.node.listeners.tls.clone() {
                    None => serve(stream, endpoint, place, stop).await,
                    Some(tls) => {
                        if let Some((stream, _)) = tls.shake(Purpose::S3, stream, &place).await {
                            serve(stream, endpoint, place, stop).await;
                        }
                    }
                }
            };
            evicted.run_until_cancelled(serving).await;
            drop(open);
        });
    };
    let is_plain = endpoint.node.listeners.tls.is_none();
    let turn_away = |stream| {
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
    accept::run(listener, admission, stop.clone(), serve, turn_away).await;
}

async fn serve<T: AsyncRead + AsyncWrite + Unpin>(
    stream: T,
    endpoint: Arc<Endpoint>,
    place: Place,
    stop: CancellationToken,
) {
    let refusals = endpoint.node.listeners.refusals.clone();
    let service = {
        let endpoint = endpoint.clone();
        let origin = StreamOrigin { cut: place.evicted.clone(), address: place.address };
        service_fn(move |mut request: Request<Incoming>| {
            place.has_asked();
            request.extensions_mut().insert(origin.clone());
            let endpoint = endpoint.clone();
            Box::pin(async move { Ok::<_, Infallible>(answer(&endpoint, request).await) })
        })
    };
    let stream = Patient::new(stream, endpoint.write_timeout);
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(endpoint.head_timeout)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let served = tokio::select! {
        served = poll_fn(|cx| connection.poll_without_shutdown(cx)) => served,
        () = stop.cancelled() => {
            Pin::new(&mut connection).graceful_shutdown();
            poll_fn(|cx| connection.poll_without_shutdown(cx)).await
        }
    };
    if let Err(e) = &served {
        if e.is_timeout() {
            refusals.count(TurnedAway::Silent);
        }
        tracing::debug!(error = %e, "a connection of an S3 client ends");
    }
    if served.is_ok() {
        linger(connection.into_parts().io.into_inner().into_inner()).await;
    }
}

/// Says that the answers are over, and waits for the client to have read them.
async fn linger<T: AsyncRead + AsyncWrite + Unpin>(mut stream: T) {
    let close = async {
        stream.shutdown().await?;
        tokio::io::copy(&mut (&mut stream).take(LINGER_BYTES_MAX), &mut tokio::io::sink()).await
    };
    // A client that has gone is no trouble.
    timeout(LINGER, close).await.ok();
}

/// One connection too many.
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
