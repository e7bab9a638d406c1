//! `/metrics` (Prometheus text) and `/health` over HTTP. `table` defines the figures.

mod table;

pub use table::figures;
#[cfg(test)]
pub use table::resident_bytes;

use super::guard::{CallGuard, shown};
use super::http1::{Http1Server, has_body};
use crate::auth::calls::{Call, METRICS_CALL};
use crate::node::Node;
use crate::runtime::blocking;
use crate::settings::LimitSettings;
use bytes::Bytes;
use forebay_tls::Purpose;
use http::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::{Duration, Instant};
use table::{METRICS, Metric, Value};
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use tonic::Code;

/// Bytes of a request's head at most.
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;

const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What all requests share.
struct MetricsServer {
    registry: Arc<Registry>,
    guard: Arc<CallGuard>,
    age: Duration,
    /// The text, and when it was made.
    text: Mutex<Option<(Instant, Bytes)>>,
}

/// Serves until `stop` is called.
pub async fn run(listener: TcpListener, node: Arc<Node>, limits: LimitSettings, stop: CancellationToken) {
    // For a head to come, and for its answer to be taken.
    let patience = Duration::from_secs_f64(limits.handshake_s);
    let http1 = Http1Server {
        purpose: Purpose::Metrics,
        clients: "to /metrics",
        admission: node.listeners.metrics.clone(),
        tls: node.listeners.tls.clone(),
        connections: None,
        head_bytes_max: HEAD_BYTES_MAX,
        headers_max: Some(HEADERS_MAX),
        head_timeout: patience,
        write_timeout: patience,
    };
    let guard = node.guard.clone();
    let mut registry = Registry::with_prefix("forebay");
    registry.register_collector(Box::new(NodeMetrics(node)));
    let server = Arc::new(MetricsServer {
        registry: Arc::new(registry),
        guard,
        age: Duration::from_secs_f64(limits.metrics_age_s),
        text: Mutex::default(),
    });
    let answer = move |request: Request<Incoming>| {
        let server = server.clone();
        async move { server.answer(&request).await }
    };
    http1.run(listener, stop, answer, drop).await;
}

impl MetricsServer {
    async fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if has_body(request.headers()) {
            let mut refusal = response(StatusCode::BAD_REQUEST, "a request here has no body\n".into());
            refusal.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            return refusal;
        }
        let is_known = matches!(request.uri().path(), "/metrics" | "/health");
        match request.method() {
            _ if !is_known => response(StatusCode::NOT_FOUND, Bytes::new()),
            &Method::GET | &Method::HEAD => match request.uri().path() {
                "/health" => response(StatusCode::OK, "ok\n".into()),
                _ => {
                    if let Err(refusal) = self.admit(request).await {
                        return refusal;
                    }
                    let mut metrics = response(StatusCode::OK, self.text().await);
                    metrics.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT));
                    metrics
                }
            },
            _ => {
                let mut refusal = response(StatusCode::METHOD_NOT_ALLOWED, Bytes::new());
                refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
                refusal
            }
        }
    }

    /// Lets those in who may see the node's figures.
    async fn admit(&self, request: &Request<Incoming>) -> Result<(), Response<Full<Bytes>>> {
        let shown = shown(request.headers(), request.extensions());
        let Err(refused) = self.guard.authority.admit(shown, Call::of(METRICS_CALL)) else { return Ok(()) };
        let (code, why) = self.guard.refuse(METRICS_CALL, request.extensions().get(), refused).await;
        Err(match code {
            Code::Unauthenticated => {
                let mut refusal = response(StatusCode::UNAUTHORIZED, format!("{why}\n").into());
                refusal.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
                refusal
            }
            _ => response(StatusCode::FORBIDDEN, format!("{why}\n").into()),
        })
    }

    /// The text of now, or of a little while ago; those who come together wait for the same one.
    async fn text(&self) -> Bytes {
        let mut last = self.text.lock().await;
        if let Some((made, text)) = &*last
            && made.elapsed() < self.age
        {
            return text.clone();
        }
        let registry = self.registry.clone();
        // It looks at every file that is held: not for an async thread.
        let encode = move || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).map(|()| text)
        };
        // Writing to a string does not fail; if it did, a scrape would show nothing rather than half.
        let text: Bytes = blocking(encode).await.ok().and_then(Result::ok).unwrap_or_default().into();
        *last = Some((Instant::now(), text.clone()));
        text
    }
}

fn response(status: StatusCode, text: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// Reads the node's counters at each scrape.
struct NodeMetrics(Arc<Node>);

impl std::fmt::Debug for NodeMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeMetrics")
    }
}

impl Collector for NodeMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for metric @ Metric { name, value, .. } in METRICS {
            let help = metric.help();
            let figure: Box<dyn EncodeMetric> = match value {
                Value::Counter(value) => Box::new(ConstCounter::new(value(&self.0))),
                Value::Gauge(value) => Box::new(ConstGauge::new(value(&self.0) as i64)),
                Value::FloatGauge(value) => Box::new(ConstGauge::new(value(&self.0))),
                Value::Gauges(label, value) => {
                    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                    for (of, value) in value(&self.0) {
                        ConstGauge::new(value as i64).encode(family.encode_family(&[(*label, of)])?)?;
                    }
                    continue;
                }
                Value::Counters(label, value) => {
                    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
                    for (of, value) in value(&self.0) {
                        ConstCounter::new(value).encode(family.encode_family(&[(*label, of)])?)?;
                    }
                    continue;
                }
            };
            figure.encode(encoder.encode_descriptor(name, help, None, figure.metric_type())?)?;
        }
        Ok(())
    }
}
