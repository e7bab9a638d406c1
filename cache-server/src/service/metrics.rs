//! `/metrics` (Prometheus text) and `/health` over HTTP. `table` defines the figures.

mod table;

pub use table::{counters, resident_bytes};

use crate::node::Node;
use crate::runtime::blocking;
use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use table::{METRICS, Metric, Value};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Serves until `stop` is called.
pub async fn run(listener: TcpListener, node: Arc<Node>, stop: CancellationToken) -> std::io::Result<()> {
    let mut registry = Registry::with_prefix("forebay");
    registry.register_collector(Box::new(NodeMetrics(node)));
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/health", get(|| async { "ok\n" }))
        .with_state(Arc::new(registry));
    axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await
}

async fn metrics(State(registry): State<Arc<Registry>>) -> impl IntoResponse {
    // It looks at every file that is held: not for an async thread.
    let encode = move || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).map(|()| text)
    };
    // Writing to a string does not fail; if it did, a scrape would show nothing rather than half.
    let text = blocking(encode).await.ok().and_then(Result::ok).unwrap_or_default();
    ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
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
                Value::DirGauge(value) => {
                    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                    for (dir, value) in value(&self.0) {
                        ConstGauge::new(value as i64).encode(family.encode_family(&[("dir", dir)])?)?;
                    }
                    continue;
                }
            };
            figure.encode(encoder.encode_descriptor(name, help, None, figure.metric_type())?)?;
        }
        Ok(())
    }
}
