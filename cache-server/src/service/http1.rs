//! Connections that speak HTTP/1, to `/metrics` and of S3 clients: how long they may take, how much they may
//! say.
//!
//! What a client still sends when it was answered is read for a moment: else it would see the connection
//! break rather than the answer.

use super::accept;
use super::admission::{Admission, Place};
use super::connection::Connections;
use super::handshake::{Handshakes, ProvenCertificate};
use super::patient::Patient;
use super::refusals::TurnedAway;
use super::stalls::StreamOrigin;
use bytes::Bytes;
use forebay_tls::Purpose;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, Request, Response};
use http_body::Body;
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
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// What an answered client still sends is read for so long, and no more of it than this.
pub const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: u64 = 256 << 10;

/// A listener's connections, and their bounds.
pub struct Http1Server {
    pub purpose: Purpose,
    /// Which connections these are, in the words of the log.
    pub clients: &'static str,
    pub admission: Admission,
    /// `None`: they speak no TLS.
    pub tls: Option<Arc<Handshakes>>,
    /// Counts them, if they are readers'.
    pub connections: Option<Connections>,
    /// Bytes of a request's head at most.
    pub head_bytes_max: usize,
    /// Its headers at most; `None`: 100, hyper's own number, for which it writes no list of them.
    pub headers_max: Option<usize>,
    /// How long a head may take to come.
    pub head_timeout: Duration,
    /// How long a client may take nothing of its answer.
    pub write_timeout: Duration,
}

impl Http1Server {
    /// Has every request answered by `answer` until `stop` is called; requests that are being answered then
    /// end by themselves. Connections for which there is no place go to `turn_away`.
    pub async fn run<F, B>(
        self,
        listener: TcpListener,
        stop: CancellationToken,
        answer: impl Fn(Request<Incoming>) -> F + Clone + Send + Unpin + 'static,
        turn_away: impl Fn(TcpStream),
    ) where
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let server = Arc::new(self);
        let serve = |stream: TcpStream, place: Place| {
            let open = server.connections.as_ref().map(Connections::open);
            let (server, stop, answer) = (server.clone(), stop.clone(), answer.clone());
            tokio::spawn(async move {
                server.connection(stream, place, stop, answer).await;
                drop(open);
            });
        };
        accept::run(listener, server.admission.clone(), stop.clone(), serve, turn_away).await;
    }

    async fn connection<A, F, B>(&self, stream: TcpStream, place: Place, stop: CancellationToken, answer: A)
    where
        A: Fn(Request<Incoming>) -> F + Send + Unpin + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let evicted = place.evicted.clone();
        let serving = async {
            match &self.tls {
                None => self.serve(stream, None, place, stop, answer).await,
                Some(tls) => {
                    if let Some((stream, certificate)) = tls.shake(self.purpose, stream, &place).await {
                        self.serve(stream, certificate, place, stop, answer).await;
                    }
                }
            }
        };
        evicted.run_until_cancelled(serving).await;
    }

    async fn serve<T, A, F, B>(
        &self,
        stream: T,
        certificate: ProvenCertificate,
        place: Place,
        stop: CancellationToken,
        answer: A,
    ) where
        T: AsyncRead + AsyncWrite + Unpin + Send,
        A: Fn(Request<Incoming>) -> F + Send + Unpin + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let origin = StreamOrigin { cut: place.evicted.clone(), address: place.address };
        let service = service_fn(move |mut request: Request<Incoming>| {
            place.has_asked();
            request.extensions_mut().insert(origin.clone());
            if let Some(certificate) = &certificate {
                request.extensions_mut().insert(certificate.clone());
            }
            let answered = answer(request);
            Box::pin(async move { Ok::<_, Infallible>(answered.await) })
        });
        let mut http1 = http1::Builder::new();
        http1.timer(TokioTimer::new()).header_read_timeout(self.head_timeout);
        http1.max_buf_size(self.head_bytes_max);
        if let Some(headers_max) = self.headers_max {
            http1.max_headers(headers_max);
        }
        let stream = Patient::new(stream, self.write_timeout);
        let mut connection = http1.serve_connection(TokioIo::new(stream), service);
        let served = tokio::select! {
            served = poll_fn(|cx| connection.poll_without_shutdown(cx)) => served,
            () = stop.cancelled() => {
                Pin::new(&mut connection).graceful_shutdown();
                poll_fn(|cx| connection.poll_without_shutdown(cx)).await
            }
        };
        let was_answered = match served {
            Ok(()) => true,
            Err(e) => {
                if e.is_timeout() {
                    self.admission.refusals().count(TurnedAway::Silent);
                }
                tracing::debug!(error = %e, "a connection {} ends", self.clients);
                // A head that makes no sense was answered too.
                e.is_parse()
            }
        };
        if was_answered {
            // The connection keeps its place meanwhile: its service has it.
            let parts = connection.into_parts();
            linger(parts.io.into_inner().into_inner()).await;
        }
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

/// Whether bytes follow the head, by any of the ways to say so.
pub fn has_body(headers: &HeaderMap) -> bool {
    headers.contains_key(TRANSFER_ENCODING)
        || headers.get_all(CONTENT_LENGTH).iter().any(|length| length.as_bytes() != b"0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::admission::ConnectionLimits;
    use http::HeaderValue;
    use http_body_util::Full;

    #[test]
    fn a_body_is_seen_however_it_is_announced() {
        let mut headers = HeaderMap::new();
        assert!(!has_body(&headers));
        headers.append(CONTENT_LENGTH, HeaderValue::from_static("0"));
        assert!(!has_body(&headers));
        headers.append(CONTENT_LENGTH, HeaderValue::from_static("5"));
        assert!(has_body(&headers), "the second of two lengths");
        headers.clear();
        headers.append(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        assert!(has_body(&headers));
    }

    #[tokio::test]
    async fn who_says_too_much_reads_the_answer_to_its_end() {
        let limits = ConnectionLimits { all: 1, per_address: 1 };
        let server = Http1Server {
            purpose: Purpose::Metrics,
            clients: "of a test",
            admission: Admission::new(limits, Arc::default()),
            tls: None,
            connections: None,
            head_bytes_max: 16 << 10,
            headers_max: None,
            head_timeout: LINGER * 10,
            write_timeout: LINGER * 10,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let answer = |_: Request<Incoming>| async { Response::new(Full::new(Bytes::new())) };
        let running = tokio::spawn(server.run(listener, CancellationToken::new(), answer, drop));
        let head = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(100 << 10));
        client.write_all(head.as_bytes()).await.unwrap();
        let mut told = String::new();
        client.read_to_string(&mut told).await.expect("the connection ends well");
        assert!(told.starts_with("HTTP/1.1 431 "), "{told}");
        running.abort();
    }
}
