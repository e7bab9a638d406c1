//! Connections that speak gRPC: how long they may be silent, how many requests they may have, how large these
//! may be.
//!
//! A method sees a request only when all of it is here and accounted for; the batch stream and requests that
//! are streams read theirs by themselves, within bounds of their own.

mod activity;
pub(super) mod decoded;
mod parts;
mod requests;

use super::admission::Place;
use super::connection::Connections;
use super::guard::{CallGuard, ended_answer};
use super::handshake::{Handshakes, ProvenCertificate};
use super::refusals::{Refusals, TurnedAway};
use super::stalls::StreamOrigin;
use crate::read::memory::MemoryBudget;
use crate::settings::LimitSettings;
use activity::{Activity, Counted};
use forebay_tls::Purpose;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::{Code, Status};
use tower::Service as _;

/// Calls on one connection that were cancelled before this node came to them. Nodes and readers that think it
/// slow ask others instead; that must not cost the waiting calls their connection.
const RESETS_MAX: usize = 1000;

/// HTTP/2 pings: their interval, and how long the answer may take.
const PING: Duration = Duration::from_secs(10);

/// Bytes of requests that may come ahead of what was read: of one, and of all of a connection.
const WINDOW_BYTES: (u32, u32) = (64 << 10, 256 << 10);

/// How long a connection that is told to end may take.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// What all connections share.
pub struct GrpcServer {
    routes: Routes,
    http2: http2::Builder<TokioExecutor>,
    handshake: Duration,
    idle: Duration,
    /// Memory for requests.
    memory: Arc<MemoryBudget>,
    /// Counts those of readers and other nodes.
    connections: Connections,
    refusals: Arc<Refusals>,
    guard: Arc<CallGuard>,
    /// Called when no new requests are to be taken.
    closing: CancellationToken,
    tasks: TaskTracker,
}

impl GrpcServer {
    /// Serves these methods.
    pub fn new(
        routes: Routes,
        limits: &LimitSettings,
        memory: Arc<MemoryBudget>,
        connections: Connections,
        refusals: Arc<Refusals>,
        guard: Arc<CallGuard>,
    ) -> Arc<Self> {
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .keep_alive_interval(PING)
            .keep_alive_timeout(PING)
            .max_pending_accept_reset_streams(RESETS_MAX)
            .max_concurrent_streams(limits.streams_per_connection)
            .max_header_list_size(limits.header_bytes)
            .initial_stream_window_size(WINDOW_BYTES.0)
            .initial_connection_window_size(WINDOW_BYTES.1);
        Arc::new(Self {
            routes: routes.prepare(),
            http2,
            handshake: Duration::from_secs_f64(limits.handshake_s),
            idle: Duration::from_secs_f64(limits.idle_s),
            memory,
            connections,
            refusals,
            guard,
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
        })
    }

    /// Serves a connection to its end, as a task of its own.
    pub fn serve<T: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        self: &Arc<Self>,
        stream: T,
        place: Place,
    ) {
        self.tasks.spawn(self.clone().connection(stream, place, None));
    }

    /// The same of a connection by TLS.
    pub fn serve_tls<T: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        self: &Arc<Self>,
        tls: Arc<Handshakes>,
        stream: T,
        place: Place,
    ) {
        let server = self.clone();
        self.tasks.spawn(async move {
            let shaking = tls.shake(Purpose::Grpc, stream, &place);
            if let Some(Some((stream, certificate))) = server.closing.run_until_cancelled(shaking).await {
                server.connection(stream, place, certificate).await;
            }
        });
    }

    /// Takes no new requests, and waits until those that are being answered are.
    pub async fn finish(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    async fn connection<T: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        self: Arc<Self>,
        stream: T,
        place: Place,
        certificate: ProvenCertificate,
    ) {
        let _open = self.connections.open();
        let (activity, place) = (Arc::new(Activity::default()), Arc::new(place));
        let service = {
            let (server, activity, place) = (self.clone(), activity.clone(), place.clone());
            let origin = StreamOrigin { cut: place.evicted.clone(), address: place.address };
            service_fn(move |request: Request<Incoming>| {
                if activity.is_new() {
                    place.has_asked();
                }
                let visit = activity.begin();
                let server = server.clone();
                let mut request = request.map(Body::new);
                // What a batch stream cuts whose reader takes nothing.
                request.extensions_mut().insert(origin.clone());
                if let Some(certificate) = &certificate {
                    request.extensions_mut().insert(certificate.clone());
                }
                async move {
                    let response = server.answer(request).await;
                    Ok::<_, Infallible>(response.map(|body| Counted::new(body, visit)))
                }
            })
        };
        let mut connection = pin!(self.http2.serve_connection(TokioIo::new(stream), service));
        let mut deadline = pin!(sleep_until(Instant::now() + self.handshake));
        let mut is_ending = false;
        loop {
            tokio::select! {
                served = connection.as_mut() => {
                    if let Err(e) = served {
                        tracing::debug!(error = %e, "a gRPC connection ends");
                    }
                    return;
                }
                () = place.evicted.cancelled() => return,
                () = self.closing.cancelled(), if !is_ending => {
                    is_ending = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = deadline.as_mut(), if !self.closing.is_cancelled() => {
                    // It was told to end, and is there still.
                    if is_ending {
                        return;
                    }
                    match activity.idle_since() {
                        None => deadline.as_mut().reset(Instant::now() + self.idle),
                        Some(since) if !activity.is_new() && since.elapsed() < self.idle => {
                            deadline.as_mut().reset(since + self.idle);
                        }
                        Some(_) => {
                            place.ends(if activity.is_new() { TurnedAway::Silent } else { TurnedAway::Idle });
                            is_ending = true;
                            connection.as_mut().graceful_shutdown();
                            deadline.as_mut().reset(Instant::now() + LAST_WORDS);
                        }
                    }
                }
            }
        }
    }

    async fn answer(&self, mut request: Request<Body>) -> Response<Body> {
        // Nothing of a stranger's request is read.
        let admitted = self.guard.admit(request.uri().path(), request.headers(), request.extensions()).await;
        let admitted = match admitted {
            Ok(admitted) => admitted,
            Err(status) => return status.into_http(),
        };
        let origin = request.extensions().get::<StreamOrigin>().cloned().unwrap_or_default();
        request.extensions_mut().insert(admitted.caller.clone());
        let response = match admitted.caller.session() {
            None => self.answer_known(request).await,
            Some(session) => match session.end.run_until_cancelled(self.answer_known(request)).await {
                Some(response) => response,
                None => ended_answer(session),
            },
        };
        self.guard.finish(admitted, &origin, response).await
    }

    async fn answer_known(&self, request: Request<Body>) -> Response<Body> {
        let (request, _held) = match requests::whole(request, &self.memory).await {
            Ok(whole) => whole,
            Err(e) => {
                self.refusals.count(TurnedAway::Request);
                return tonic::Status::from(e).into_http();
            }
        };
        match self.routes.clone().call(request).await {
            Ok(response) => undecodable(response),
            Err(never) => match never {},
        }
    }
}

/// How the errors of messages begin that are none.
const UNDECODABLE: &str = "failed to decode Protobuf message";

/// The same answer. That a request is no message is its caller's mistake, where tonic takes it for its own.
fn undecodable(response: Response<Body>) -> Response<Body> {
    match Status::from_header_map(response.headers()) {
        Some(status) if status.code() == Code::Internal && status.message().starts_with(UNDECODABLE) => {
            Status::invalid_argument(status.message()).into_http()
        }
        _ => response,
    }
}
