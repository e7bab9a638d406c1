//! A proxy that makes the S3 server next door behave like S3 far away: time to first byte, a rate per
//! connection, a rate in all, 503 SlowDown, bodies cut short. It counts what passes.
//!
//! The Host header is kept, so signatures stay valid. HTTP/1.1 clients open one connection per request in
//! flight, so the rate per connection acts as S3's limit per stream.

#[cfg(test)]
mod tests;

use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fastrand::Rng;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::time::Sleep;

use crate::harness::fault;
use crate::harness::serve::{BoxError, Handler, ResponseBody, Serving};

/// Bodies are paced in pieces of this size.
const PIECE_BYTES: usize = 64 << 10;

/// How remote the object store is. Rates are in MB/s (10^6 bytes); 0 means no limit.
#[derive(Clone, Debug)]
pub struct Slowness {
    /// From the request to the first byte of its answer.
    pub first_byte: Duration,
    /// The most that one connection gets.
    pub connection_mb_s: f64,
    /// The most that all connections get together.
    pub total_mb_s: f64,
    /// The share of requests answered 503 SlowDown.
    pub slow_down: f64,
    /// The share of answers cut in half.
    pub cut: f64,
}

impl Slowness {
    /// Nothing is slowed down and nothing breaks.
    pub fn none() -> Self {
        Self { first_byte: Duration::ZERO, connection_mb_s: 0.0, total_mb_s: 0.0, slow_down: 0.0, cut: 0.0 }
    }

    /// S3 from within its region: 30 ms to the first byte, 90 MB/s per connection.
    pub fn remote_s3() -> Self {
        Self { first_byte: Duration::from_millis(30), connection_mb_s: 90.0, ..Self::none() }
    }
}

/// Traffic since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// All requests, those answered with a fault too.
    pub requests: u64,
    /// GETs of objects among them.
    pub object_gets: u64,
    /// Bytes of objects sent.
    pub object_bytes: u64,
    /// Bytes of other answers sent (listings, errors).
    pub other_bytes: u64,
    /// Requests answered 503.
    pub slow_downs: u64,
    /// Bodies cut.
    pub cuts: u64,
}

impl Passed {
    /// The traffic since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            requests: self.requests - earlier.requests,
            object_gets: self.object_gets - earlier.object_gets,
            object_bytes: self.object_bytes - earlier.object_bytes,
            other_bytes: self.other_bytes - earlier.other_bytes,
            slow_downs: self.slow_downs - earlier.slow_downs,
            cuts: self.cuts - earlier.cuts,
        }
    }
}

/// A running proxy; stops when dropped.
pub struct SlowProxy {
    /// `http://127.0.0.1:PORT`
    pub endpoint: String,
    inner: Arc<Inner>,
    _serving: Serving,
}

impl SlowProxy {
    /// Starts a proxy on a free port before `upstream` (`http://host:port`).
    pub fn start(upstream: &str, slowness: Slowness) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let inner = Arc::new(Inner {
            upstream: upstream.trim_end_matches('/').to_owned(),
            client: Client::builder(TokioExecutor::new()).http1_max_buf_size(1 << 20).build(connector),
            slowness: Mutex::new(slowness),
            total: Arc::default(),
            dice: Mutex::new(Rng::with_seed(42)),
            passed: Arc::default(),
        });
        let shared = inner.clone();
        let connect = move || shared.clone().handler();
        let serving = Serving::start("slow-proxy", connect).expect("start the slow proxy");
        Self { endpoint: format!("http://{}", serving.address), inner, _serving: serving }
    }

    /// Changes the behaviour for requests from now on.
    pub fn set(&self, slowness: Slowness) {
        *self.inner.slowness.lock() = slowness;
    }

    /// The traffic so far.
    pub fn passed(&self) -> Passed {
        self.inner.passed.snapshot()
    }
}

struct Inner {
    upstream: String,
    client: Client<HttpConnector, Incoming>,
    slowness: Mutex<Slowness>,
    total: Arc<Pace>,
    dice: Mutex<Rng>,
    passed: Arc<PassedCounters>,
}

impl Inner {
    fn handler(self: Arc<Self>) -> Handler {
        let connection = Arc::new(Pace::default());
        Arc::new(move |request| {
            let (inner, connection) = (self.clone(), connection.clone());
            Box::pin(async move { inner.forward(request, connection).await })
        })
    }

    async fn forward(&self, mut request: Request<Incoming>, connection: Arc<Pace>) -> Response<ResponseBody> {
        let start = Instant::now();
        let slowness = self.slowness.lock().clone();
        let is_object = is_object_get(&request);
        self.passed.requests.fetch_add(1, Ordering::Relaxed);
        self.passed.object_gets.fetch_add(u64::from(is_object), Ordering::Relaxed);
        if self.dice.lock().f64() < slowness.slow_down {
            self.passed.slow_downs.fetch_add(1, Ordering::Relaxed);
            return fault::slow_down();
        }
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        match format!("{}{path}", self.upstream).parse::<Uri>() {
            Ok(uri) => *request.uri_mut() = uri,
            Err(error) => return bad_gateway(&error.to_string()),
        }
        let response = match self.client.request(request).await {
            Ok(response) => response,
            Err(error) => return bad_gateway(&error.to_string()),
        };
        tokio::time::sleep_until((start + slowness.first_byte).into()).await;
        let cut = is_object && self.dice.lock().f64() < slowness.cut;
        self.passed.cuts.fetch_add(u64::from(cut), Ordering::Relaxed);
        let passed = self.passed.clone();
        let total = self.total.clone();
        let response = response.map(|body| body.map_err(BoxError::from).boxed_unsync());
        let response = if cut { fault::cut(response) } else { response };
        response.map(|body| {
            let limits = vec![(connection, slowness.connection_mb_s), (total, slowness.total_mb_s)];
            let counts_as_object = is_object;
            PacedBody { body, rest: Bytes::new(), limits, sleep: None, passed, counts_as_object }
                .boxed_unsync()
        })
    }
}

/// The moment up to which a channel's capacity is spoken for.
#[derive(Default)]
struct Pace(Mutex<Option<Instant>>);

impl Pace {
    /// Reserves the channel for `bytes` and says until when they take.
    fn reserve(&self, bytes: usize, mb_s: f64) -> Option<Instant> {
        if mb_s <= 0.0 {
            return None;
        }
        // An idle channel saves up no more than a few milliseconds of capacity.
        let earliest = Instant::now().checked_sub(Duration::from_millis(4))?;
        let mut busy_until = self.0.lock();
        let until = busy_until.map_or(earliest, |until| until.max(earliest))
            + Duration::from_secs_f64(bytes as f64 / (mb_s * 1e6));
        *busy_until = Some(until);
        Some(until)
    }
}

/// A body that is sent no faster than its limits allow.
struct PacedBody {
    body: ResponseBody,
    rest: Bytes,
    limits: Vec<(Arc<Pace>, f64)>,
    sleep: Option<(Pin<Box<Sleep>>, Bytes)>,
    passed: Arc<PassedCounters>,
    counts_as_object: bool,
}

impl PacedBody {
    fn pass(&self, piece: Bytes) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let counter =
            if self.counts_as_object { &self.passed.object_bytes } else { &self.passed.other_bytes };
        counter.fetch_add(piece.len() as u64, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

impl Body for PacedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            if let Some((mut sleep, piece)) = self.sleep.take() {
                if sleep.as_mut().poll(cx).is_pending() {
                    self.sleep = Some((sleep, piece));
                    return Poll::Pending;
                }
                return self.pass(piece);
            }
            if self.rest.is_empty() {
                match std::task::ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                    Some(Ok(frame)) => match frame.into_data() {
                        Ok(data) => self.rest = data,
                        Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                    },
                    end => return Poll::Ready(end),
                }
                continue;
            }
            let size = self.rest.len().min(PIECE_BYTES);
            let piece = self.rest.split_to(size);
            let until = self.limits.iter().filter_map(|(pace, mb_s)| pace.reserve(size, *mb_s)).max();
            match until.filter(|until| *until > Instant::now()) {
                Some(until) => self.sleep = Some((Box::pin(tokio::time::sleep_until(until.into())), piece)),
                None => return self.pass(piece),
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self.body.size_hint().exact() {
            Some(left) => SizeHint::with_exact(left + self.rest.len() as u64),
            None => SizeHint::default(),
        }
    }
}

#[derive(Default)]
struct PassedCounters {
    requests: AtomicU64,
    object_gets: AtomicU64,
    object_bytes: AtomicU64,
    other_bytes: AtomicU64,
    slow_downs: AtomicU64,
    cuts: AtomicU64,
}

impl PassedCounters {
    fn snapshot(&self) -> Passed {
        Passed {
            requests: self.requests.load(Ordering::Relaxed),
            object_gets: self.object_gets.load(Ordering::Relaxed),
            object_bytes: self.object_bytes.load(Ordering::Relaxed),
            other_bytes: self.other_bytes.load(Ordering::Relaxed),
            slow_downs: self.slow_downs.load(Ordering::Relaxed),
            cuts: self.cuts.load(Ordering::Relaxed),
        }
    }
}

/// `GET /bucket/key`, as opposed to a listing of the bucket.
fn is_object_get(request: &Request<Incoming>) -> bool {
    let key = request.uri().path().trim_start_matches('/').split_once('/').map_or("", |(_, key)| key);
    request.method() == Method::GET && !key.is_empty()
}

fn bad_gateway(message: &str) -> Response<ResponseBody> {
    fault::refusal(StatusCode::BAD_GATEWAY, "BadGateway", message)
}
