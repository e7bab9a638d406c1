//! Connections of S3 clients: how many, how long they may take, how much they may say.

use super::endpoint::Endpoint;
use super::refusal::S3Refusal;
use super::route::answer;
use crate::service::connection::Connections;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Bytes of a request's head at most.
const HEAD_BYTES_MAX: usize = 64 << 10;
const HEADERS_MAX: usize = 100;

/// How long no connection is taken when there are no more file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Bytes that a connection sends before others have their turn: a client on this machine takes them as fast
/// as they come.
const TURN_BYTES: usize = 2 << 20;

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
    let endpoint = Arc::new(endpoint);
    let places = Arc::new(Semaphore::new(endpoint.connections_max));
    loop {
        let stream = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(e) => {
                    tracing::debug!(error = %e, "a connection to the S3 endpoint could not be taken");
                    sleep(PAUSE).await;
                    continue;
                }
            },
        };
        // Nagle's delay off: heads and small answers must not wait.
        stream.set_nodelay(true).ok();
        match places.clone().try_acquire_owned() {
            Ok(place) => {
                let (endpoint, stop, open) = (endpoint.clone(), stop.clone(), connections.other());
                tokio::spawn(async move {
                    serve(stream, endpoint, stop).await;
                    drop((place, open));
                });
            }
            Err(_) => {
                tracing::debug!("an S3 client is told to come back: there are too many connections");
                tokio::spawn(timeout(LINGER, turn_away(stream)));
            }
        }
    }
}

async fn serve(stream: TcpStream, endpoint: Arc<Endpoint>, stop: CancellationToken) {
    let service = {
        let endpoint = endpoint.clone();
        service_fn(move |request: Request<Incoming>| {
            let endpoint = endpoint.clone();
            Box::pin(async move { Ok::<_, Infallible>(answer(&endpoint, request).await) })
        })
    };
    let stream = Patient { stream, patience: endpoint.write_timeout, waiting: None, sent: 0 };
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(endpoint.head_timeout)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let served = tokio::select! {
        served = poll_fn(|cx| connection.poll_without_shutdown(cx)) => served,
        () = stop.cancelled() => {
            Pin::new(&mut connection).graceful_shutdown();
            poll_fn(|cx| connection.poll_without_shutdown(cx)).await
        }
    };
    if let Err(e) = &served {
        tracing::debug!(error = %e, "a connection of an S3 client ends");
    }
    if served.is_ok() {
        linger(connection.into_parts().io.into_inner().stream).await;
    }
}

/// Says that the answers are over, and waits for the client to have read them.
async fn linger(mut stream: TcpStream) {
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

/// A connection that ends when its client has taken no bytes for some time.
struct Patient {
    stream: TcpStream,
    patience: Duration,
    /// Runs while the client takes nothing.
    waiting: Option<Pin<Box<Sleep>>>,
    /// Bytes sent since others had their turn.
    sent: usize,
}

impl Patient {
    /// Whether it is the others' turn.
    fn yields(&mut self, cx: &mut Context<'_>) -> bool {
        let is_due = self.sent >= TURN_BYTES;
        if is_due {
            self.sent = 0;
            cx.waker().wake_by_ref();
        }
        is_due
    }

    fn watch(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(written) = written {
            self.waiting = None;
            self.sent += written.as_ref().copied().unwrap_or_default();
            return Poll::Ready(written);
        }
        self.sent = 0;
        let patience = self.patience;
        let waiting =
            self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + patience)));
        match waiting.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.yields(cx) {
            return Poll::Pending;
        }
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.yields(cx) {
            return Poll::Pending;
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
