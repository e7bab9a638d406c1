//! One node: its parts, and what they add up to.
//!
//! The services and the background tasks take from here the parts that they use. No part reaches back to the node.

use crate::cluster::hot::{Heat, HotTask};
use crate::cluster::membership::{EtcdSettings, Membership};
use crate::cluster::peers::Peers;
use crate::cluster::replicate::Replicator;
use crate::datasets::Datasets;
use crate::disk::{DiskCache, DiskCacheSettings};
use crate::events::Events;
use crate::maintenance::stall_probe::Ticker;
use crate::read::cache::{Cache, Stored};
use crate::read::memory::Memory;
use crate::read::plans::Plans;
use crate::runtime::blocking;
use crate::service::gate::Gate;
use crate::service::health::Health;
use crate::settings::Settings;
use forebay_dataset::SegmentReader;
use forebay_proto::{Result, v1};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use tokio_util::sync::CancellationToken;

/// The parts of a node.
pub struct Node {
    pub name: String,
    /// Where others reach it.
    pub url: String,
    pub started: Instant,
    pub membership: Arc<Membership>,
    pub peers: Arc<Peers>,
    pub source: SegmentReader,
    pub disk: Arc<DiskCache>,
    pub memory: Memory,
    pub plans: Arc<Plans>,
    pub cache: Arc<Cache>,
    /// What the cache wrote to disk lately.
    pub stored: Stored,
    pub datasets: Arc<Datasets>,
    pub heat: Arc<Heat>,
    pub events: Arc<Events>,
    pub ticker: Arc<Ticker>,
    /// What batch streams pass.
    pub gate: Gate,
    pub health: Health,
}

impl Node {
    /// Opens the disk cache, which rebuilds its index, and joins the parts. The node is at `url`; `streams` ends its batch
    /// streams. Errors name the setting to change.
    pub async fn open(settings: &Settings, url: String, streams: CancellationToken) -> Result<Self> {
        let name = settings.node.clone().unwrap_or_else(|| url.trim_start_matches("http://").to_owned());
        let me = v1::Node {
            name: name.clone(),
            address: url.clone(),
            weight: settings.cluster.weight,
            zone: settings.cluster.zone.clone(),
        };
        let mut source = settings.source.clone();
        // A segment larger than the whole memory must not wait for more than there is.
        source.segment_memory_bytes = source.segment_memory_bytes.min(settings.memory_bytes);
        let source = SegmentReader::new(source)?;
        let (plans, memory) = (Arc::new(Plans::default()), Memory::new(settings.memory_bytes));
        let disk = open_disk(settings, &plans, &memory).await?;
        let events = Arc::new(Events::default());
        let membership = Arc::new(membership(settings, me));
        let peers = Arc::new(Peers::new(url.clone(), membership.topology()));
        let datasets =
            Arc::new(Datasets::open(source.clone(), &settings.allow, disk.clone(), peers.clone())?);
        let cache = Cache::new(
            source.clone(),
            disk.clone(),
            events.clone(),
            plans.clone(),
            memory.clone(),
            peers.clone(),
        );
        Ok(Self {
            name,
            url,
            started: Instant::now(),
            membership,
            peers,
            source,
            disk,
            memory,
            plans,
            stored: cache.stored().clone(),
            cache: Arc::new(cache),
            datasets,
            heat: Arc::new(Heat::new(settings.serve_bytes_per_s)),
            events,
            ticker: Arc::default(),
            gate: Gate::new(streams),
            health: Health::default(),
        })
    }

    /// The task that keeps copies at the other nodes.
    pub fn replicator(&self) -> Replicator {
        Replicator {
            url: self.url.clone(),
            peers: self.peers.clone(),
            disk: self.disk.clone(),
            plans: self.plans.clone(),
            datasets: self.datasets.clone(),
            stored: self.stored.clone(),
        }
    }

    /// The task that shares the heat of hot segments.
    pub fn hot_task(&self) -> HotTask {
        HotTask {
            url: self.url.clone(),
            heat: self.heat.clone(),
            source: self.source.clone(),
            disk: self.disk.clone(),
            membership: self.membership.clone(),
            peers: self.peers.clone(),
        }
    }

    /// Takes its place in the topology and serves.
    pub async fn enter(&self) {
        self.gate.open();
        self.health.set_serving(true).await;
        self.membership.enter();
    }

    /// Leaves the topology, so that clients whose streams end do not come back here. Streams go on until the gate is
    /// closed.
    pub async fn leave(&self) {
        self.membership.leave().await;
        self.health.set_serving(false).await;
    }

    /// All counters of the node.
    pub fn counters(&self) -> v1::Counters {
        let (source, disk, events) = (self.source.counters(), self.disk.counters(), &self.events);
        let peers = self.peers.counters();
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
            plans_announced: self.plans.announced(),
            peer_fills: peers.fills.load(Relaxed),
            peer_bytes: peers.bytes.load(Relaxed),
            peer_bytes_served: peers.bytes_served.load(Relaxed),
        }
    }

    /// The memory in use, part by part.
    pub fn memory(&self) -> v1::Memory {
        v1::Memory {
            limit_bytes: self.memory.limit_bytes(),
            fills_bytes: self.memory.fills.used_bytes(),
            prefetch_bytes: self.memory.prefetch.used_bytes(),
            transit_bytes: self.memory.transit.used_bytes(),
            streams_bytes: self.memory.streams.used_bytes(),
            resident_bytes: resident_bytes(),
        }
    }

    /// The node's place in its cluster.
    pub fn membership(&self) -> v1::MembershipStatus {
        v1::MembershipStatus { draining: self.gate.is_closed(), ..self.membership.state() }
    }
}

async fn open_disk(settings: &Settings, plans: &Arc<Plans>, memory: &Memory) -> Result<Arc<DiskCache>> {
    let disk = DiskCacheSettings {
        maps_bytes: memory.maps_bytes,
        dirs: settings.cache_dir.clone(),
        ..DiskCacheSettings::new("", settings.cache_bytes)
    };
    let (started, forecast) = (Instant::now(), plans.clone());
    let disk = blocking(move || DiskCache::open(&disk, forecast)).await??;
    tracing::info!(
        segments = disk.files(),
        bytes = disk.used_bytes(),
        ms = started.elapsed().as_millis() as u64,
        "the index is rebuilt"
    );
    Ok(Arc::new(disk))
}

fn membership(settings: &Settings, me: v1::Node) -> Membership {
    let cluster = &settings.cluster;
    if !settings.nodes.is_empty() {
        return Membership::fixed(me, &settings.nodes, cluster.replicas);
    }
    if cluster.etcd.is_empty() {
        return Membership::alone(me);
    }
    let (endpoints, prefix, lease_ttl_s) =
        (cluster.etcd.clone(), cluster.etcd_prefix.clone(), cluster.lease_ttl_s);
    Membership::etcd(EtcdSettings { endpoints, prefix, lease_ttl_s }, me, cluster.replicas)
}

/// Resident memory of the process, pages of mapped files included; 0 where the system does not tell.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
}
