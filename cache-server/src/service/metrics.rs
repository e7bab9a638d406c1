//! `/metrics` (Prometheus text) and `/health` over HTTP. docs/metrics.md lists the names.

use crate::disk::dirs::Health;
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
use std::sync::atomic::Ordering::Relaxed;
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
        let c = self.0.counters();
        let counters = [
            ("s3_requests", "Requests to the object store that carried column data", c.s3_requests),
            ("s3_bytes", "Bytes of column data read from the object store", c.s3_bytes),
            ("s3_footer_requests", "Listings, heads and footer reads", c.s3_footer_requests),
            ("s3_footer_bytes", "Bytes of Parquet footers read", c.s3_footer_bytes),
            ("s3_retries", "Requests to the object store that failed and were tried again", c.s3_retries),
            ("parquet_decoded_bytes", "Compressed Parquet bytes decoded", c.parquet_bytes_decoded),
            ("arrow_decoded_bytes", "Arrow bytes that decoding yielded", c.arrow_bytes_decoded),
            ("segment_hits", "Segment reads answered from the disk cache", c.hits),
            ("segment_joins", "Segment reads that waited for a fill under way", c.joins),
            ("segment_misses", "Segments filled, from another node or the object store", c.misses),
            ("evictions", "Segment files evicted", c.evictions),
            ("corrupt_segments", "Segment files that failed their checks", c.corrupt_segments),
            ("store_written_bytes", "Bytes written to segment files", c.store_bytes_written),
            ("rows_served", "Rows sent on batch streams", c.rows_served),
            ("served_bytes", "Bytes sent on batch streams", c.bytes_served),
            ("streams", "Batch streams opened", c.streams),
            ("segments_prefetched", "Segments filled before they were asked for", c.prefetched),
            ("segments_bypassed", "Segments filled and served without being stored", c.bypassed),
            ("plans_announced", "Plans announced, one for each stream of one", c.plans_announced),
            ("peer_fills", "Segments that came from other nodes", c.peer_fills),
            ("peer_bytes", "Their bytes", c.peer_bytes),
            ("peer_served_bytes", "Bytes of segments sent to other nodes", c.peer_bytes_served),
        ];
        let (disk, source) = (self.0.disk.counters(), self.0.source.counters());
        let peers = self.0.peers.counters();
        let others = [
            ("s3_damaged", "Segments that did not decode and were fetched anew", &source.damaged),
            ("segments_not_stored", "Segments served without storing: no room, or no disk", &disk.not_stored),
            ("peer_corrupt", "Segments that came from other nodes damaged", &peers.corrupt),
            ("scrubbed_bytes", "Bytes of segment files that the scrub has read", &disk.scrubbed_bytes),
            ("cache_dir_faults", "Times that a cache directory was set aside", &disk.dir_faults),
        ];
        let others = others.map(|(name, help, value)| (name, help, value.load(Relaxed)));
        for (name, help, value) in counters.into_iter().chain(others) {
            let metric = ConstCounter::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        let (disk, memory, cluster) = (&self.0.disk, self.0.memory(), self.0.membership());
        let gauges = [
            ("cache_used_bytes", "Bytes that the cache directories use", disk.used_bytes()),
            ("cache_limit_bytes", "Bytes that the cache directories may use", disk.limit_bytes()),
            ("cache_pinned_bytes", "Bytes of segment files that are pinned", disk.pinned().1),
            ("segment_files", "Segment files held", disk.files()),
            ("streams_open", "Batch streams that are open", self.0.gate.streams()),
            ("draining", "Whether the node sends its readers to other nodes", cluster.draining.into()),
            ("hot_segments", "Segments whose readers are told of copies", self.0.heat.segments() as u64),
            ("load_percent", "How busy the node is with serving", (self.0.heat.load() * 100.0) as u64),
            ("topology_nodes", "Nodes in the topology that this node tells", cluster.nodes),
            ("topology_revision", "Revision of that topology, as etcd counts", cluster.revision),
            ("registered", "Whether the node is a member of its cluster", cluster.registered.into()),
            ("etcd_connected", "Whether etcd answers; 1 without etcd", cluster.connected.into()),
            ("etcd_silent_seconds", "For how long it does not", cluster.silent_s as u64),
            ("memory_limit_bytes", "Bytes of memory that may be used", memory.limit_bytes),
            ("memory_fills_bytes", "Bytes in segments being fetched and decoded", memory.fills_bytes),
            ("memory_prefetch_bytes", "The part of them that nobody waits for", memory.prefetch_bytes),
            ("memory_transit_bytes", "Bytes in segments served without being stored", memory.transit_bytes),
            ("memory_streams_bytes", "Bytes in messages not sent yet", memory.streams_bytes),
            (
                "resident_bytes",
                "Resident memory of the process, mapped files included",
                memory.resident_bytes,
            ),
        ];
        for (name, help, value) in gauges {
            let metric = ConstGauge::new(value as i64);
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        let help = "Whether a cache directory works: 1; 0 when it failed or its disk is full";
        let mut dirs = encoder.encode_descriptor("cache_dir_up", help, None, MetricType::Gauge)?;
        for dir in disk.dirs() {
            let labels = [("dir", dir.path.display().to_string())];
            let up = ConstGauge::new(i64::from(dir.health == Health::Up));
            up.encode(dirs.encode_family(&labels)?)?;
        }
        let worst = ConstGauge::new(self.0.ticker.take_ms());
        let (name, help) = ("ticker_stall_ms_max", "Worst lateness of a 1 ms ticker since the last scrape");
        worst.encode(encoder.encode_descriptor(name, help, None, worst.metric_type())?)?;
        Ok(())
    }
}
