//! The edge: everything that knows gRPC or HTTP. Behind it there are only answers, datasets and the cache.
//!
//! * [`flight`]: Arrow Flight, whose `DoGet` is the batch stream; [`frames`]: that stream's body.
//! * [`control`] answers `forebay.v1.Cache`, [`peer`] other nodes.
//! * [`scrape`] serves `/metrics` and `/health` over HTTP.

pub mod control;
pub mod flight;
pub mod frames;
pub mod gate;
pub mod metrics;
pub mod peer;
pub mod stream;

use crate::cluster::hot::Heat;
use crate::cluster::membership::Membership;
use crate::datasets::Datasets;
use crate::events::Events;
use crate::maintenance::stall_probe::Ticker;
use crate::read::cache::Cache;
use crate::service::gate::Gate;
use forebay_proto::v1;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// What the services share.
pub struct Node {
    /// The node's name.
    pub name: String,
    /// Where others reach it.
    pub url: String,
    /// How busy it is.
    pub heat: Arc<Heat>,
    /// The cluster, and its place in it.
    pub membership: Membership,
    /// What batch streams pass.
    pub gate: Gate,
    /// Says whether it serves, to whoever asks.
    pub health: HealthReporter,
    /// When it started.
    pub started: Instant,
    /// The read path.
    pub cache: Arc<Cache>,
    /// The datasets it knows.
    pub datasets: Datasets,
    /// What reads reported.
    pub events: Arc<Events>,
    /// How late the async threads are.
    pub ticker: Arc<Ticker>,
}

/// Resident memory of the process, pages of mapped files included; 0 where the system does not tell.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
}

impl Node {
    /// All counters of the node.
    pub fn counters(&self) -> v1::Counters {
        let (source, disk, events) =
            (self.cache.source().counters(), self.cache.disk().counters(), &self.events);
        let peers = self.cache.peers().counters();
        v1::Counters {
            s3_requests: source.s3_requests.load(Relaxed),
            s3_bytes: source.s3_bytes.load(Relaxed),
            s3_footer_requests: source.footer_requests.load(Relaxed),
            s3_footer_bytes: source.footer_bytes.load(Relaxed),
            s3_retries: source.retries.load(Relaxed),
            parquet_bytes_decoded: source.parquet_bytes_decoded.load(Relaxed),
            arrow_bytes_decoded: source.arrow_bytes_decoded.load(Relaxed),
            hits: events.hits.load(Relaxed),
            joins: events.joins.load(Relaxed),
            misses: events.misses.load(Relaxed),
            evictions: disk.evictions.load(Relaxed),
            corrupt_segments: disk.corrupt.load(Relaxed),
            store_bytes_written: disk.bytes_written.load(Relaxed),
            rows_served: events.rows_served.load(Relaxed),
            bytes_served: events.bytes_served.load(Relaxed),
            streams: events.streams.load(Relaxed),
            prefetched: events.prefetched.load(Relaxed),
            bypassed: events.bypassed.load(Relaxed),
            plans_announced: self.cache.plans().announced(),
            peer_fills: peers.fills.load(Relaxed),
            peer_bytes: peers.bytes.load(Relaxed),
            peer_bytes_served: peers.bytes_served.load(Relaxed),
        }
    }

    /// The memory in use, part by part.
    pub fn memory(&self) -> v1::Memory {
        let memory = self.cache.memory();
        v1::Memory {
            limit_bytes: memory.limit_bytes(),
            fills_bytes: memory.fills.used_bytes(),
            prefetch_bytes: memory.prefetch.used_bytes(),
            transit_bytes: memory.transit.used_bytes(),
            streams_bytes: memory.streams.used_bytes(),
            resident_bytes: resident_bytes(),
        }
    }

    /// Takes its place in the topology and serves.
    pub async fn enter(&self) {
        self.gate.open();
        self.health.set_service_status("", ServingStatus::Serving).await;
        self.membership.enter();
    }

    /// Says that it goes, so that clients whose streams end do not come back here. Streams go on until the
    /// gate is closed.
    pub async fn leave(&self) {
        self.membership.leave().await;
        self.health.set_service_status("", ServingStatus::NotServing).await;
    }

    /// How it stands to its cluster.
    pub fn membership(&self) -> v1::MembershipStatus {
        v1::MembershipStatus { draining: self.gate.is_closed(), ..self.membership.state() }
    }
}
