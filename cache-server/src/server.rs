//! Builds the parts of a node and owns their lifetimes.

use crate::cluster::hot::{self, Heat};
use crate::cluster::membership::{EtcdSettings, Membership};
use crate::cluster::peers::Peers;
use crate::cluster::replicate::Replicator;
use crate::datasets::Datasets;
use crate::disk::{DiskCache, DiskCacheSettings};
use crate::events::Events;
use crate::maintenance::upkeep;
use crate::read::cache::Cache;
use crate::read::memory::Memory;
use crate::read::plans::Plans;
use crate::read::prefetch;
use crate::service::control::Control;
use crate::service::flight::Flight;
use crate::service::gate::Gate;
use crate::service::{self, Node, metrics};
use crate::settings::Settings;
use forebay_dataset::Source;
use forebay_proto::v1::cache_server::CacheServer;
use forebay_proto::v1::peer_server::PeerServer;
use forebay_proto::{Error, Result, v1};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

/// Bytes of a request that is not a ticket.
const REQUEST_BYTES_MAX: usize = 4 << 20;

/// Calls on one connection that were given up before this node came to them. Nodes and readers that think it
/// slow ask others instead; that must not cost those who wait their connection.
const RESETS_MAX: usize = 1000;

/// Bytes of a request from another node: a manifest, mostly.
const PEER_BYTES_MAX: usize = 256 << 20;

/// How long streams that were told to end may take to say so: a reader that stands still never lets them.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A node whose sockets are bound and whose disk cache is open.
pub struct Server {
    node: Arc<Node>,
    listener: TcpListener,
    metrics: Option<TcpListener>,
    drain: Duration,
    scrub_mb_per_s: f64,
    /// Ends what still runs.
    streams: CancellationToken,
}

impl Server {
    /// Binds, opens the disk cache, rebuilds its index. Errors name the setting to change.
    pub async fn bind(settings: Settings) -> Result<Self> {
        let listener = bind(settings.listen, "--listen").await?;
        let metrics = match settings.metrics_listen {
            Some(at) => Some(bind(at, "--metrics-listen").await?),
            None => None,
        };
        let url = settings.url(local(&listener)?)?;
        let name = settings.node.clone().unwrap_or_else(|| url.trim_start_matches("http://").to_owned());
        let me = v1::Node {
            name: name.clone(),
            address: url.clone(),
            weight: settings.cluster.weight,
            zone: settings.cluster.zone.clone(),
        };
        let mut source = settings.source.clone();
        // What is larger than all of a part has that part to itself, but not more than there is.
        source.segment_memory_bytes = source.segment_memory_bytes.min(settings.memory_bytes);
        let source = Source::new(source)?;
        let (plans, memory) = (Arc::new(Plans::default()), Memory::new(settings.memory_bytes));
        let stored = DiskCacheSettings {
            maps_bytes: memory.maps_bytes,
            dirs: settings.cache_dir.clone(),
            ..DiskCacheSettings::new("", settings.cache_bytes)
        };
        let started = Instant::now();
        let forecast = plans.clone();
        let disk = crate::runtime::blocking(move || DiskCache::open(&stored, forecast)).await??;
        tracing::info!(
            segments = disk.files(),
            bytes = disk.used_bytes(),
            ms = started.elapsed().as_millis() as u64,
            "the index is rebuilt"
        );
        let disk = Arc::new(disk);
        let events = Arc::new(Events::default());
        let membership = membership(&settings, me);
        let peers = Arc::new(Peers::new(url.clone(), membership.topology()));
        let datasets = Datasets::open(source.clone(), &settings.allow, disk.clone(), peers.clone())?;
        let cache = Arc::new(Cache::new(source, disk, events.clone(), plans, memory, peers));
        let streams = CancellationToken::new();
        let node = Node {
            name,
            url,
            heat: Arc::new(Heat::new(settings.serve_bytes_per_s)),
            membership,
            gate: Gate::new(streams.clone()),
            health: HealthReporter::new(),
            started: Instant::now(),
            cache,
            datasets,
            events,
            ticker: Arc::default(),
        };
        let (drain, scrub_mb_per_s) = (Duration::from_secs_f64(settings.drain_s), settings.scrub_mb_per_s);
        Ok(Self { node: Arc::new(node), listener, metrics, drain, scrub_mb_per_s, streams })
    }

    /// Where gRPC is served.
    pub fn address(&self) -> Result<SocketAddr> {
        local(&self.listener)
    }

    /// Where metrics are served.
    pub fn metrics_address(&self) -> Result<Option<SocketAddr>> {
        self.metrics.as_ref().map(local).transpose()
    }

    /// Serves until `stop` is called or the cluster refuses the node. Then it leaves the topology and sends
    /// its streams to other nodes; without any, they get the drain time to finish. Connections that are left
    /// after that end with the runtime.
    pub async fn run(self, stop: CancellationToken) -> Result<()> {
        let streams = self.streams;
        // A service of its own, asked through `self.node.health`, which its clones share.
        let health = HealthServer::new(HealthService::from_health_reporter(self.node.health.clone()));
        self.node.health.set_serving::<CacheServer<Control>>().await;
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(v1::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .build_v1()
            .map_err(|e| Error::invalid(format!("gRPC reflection: {e}")))?;
        let mut background = JoinSet::new();
        background.spawn(prefetch::run(self.node.cache.clone()));
        let replicator = Replicator::new(self.node.clone());
        background.spawn(replicator.clone().run());
        background.spawn(hot::run(self.node.clone()));
        if let Some(listener) = self.metrics {
            background.spawn(self.node.ticker.clone().run());
            let (node, stop) = (self.node.clone(), streams.clone());
            tokio::spawn(async move {
                if let Err(e) = metrics::run(listener, node, stop).await {
                    tracing::error!(error = %e, "metrics are no longer served");
                }
            });
        }
        let disk = self.node.cache.disk().clone();
        tokio::spawn(upkeep::run(disk, self.scrub_mb_per_s, streams.clone()));
        let peer = service::peer::Peers::new(self.node.clone());
        let control = Control::new(self.node.clone(), streams.clone());
        let refused = Arc::new(OnceLock::new());
        let ending = {
            let (streams, node, drain, refused) =
                (streams.clone(), self.node.clone(), self.drain, refused.clone());
            async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    error = node.membership.refused() => refused.set(error).unwrap_or_default(),
                }
                tracing::info!(
                    drain_s = drain.as_secs_f64(),
                    "stopping: no new connections, streams may finish"
                );
                node.leave().await;
                let has_others = node.membership.has_others();
                if has_others {
                    node.gate.close();
                }
                let finish = async move {
                    let all = async { tokio::join!(node.gate.empty(), replicator.hand_over()) };
                    tokio::time::timeout(drain, all).await.ok();
                    node.membership.go().await;
                    streams.cancel();
                };
                // Others may fetch what they lack until the end, which takes new connections.
                match has_others {
                    true => finish.await,
                    false => drop(tokio::spawn(finish)),
                }
            }
        };
        self.node.enter().await;
        let serving = tonic::transport::Server::builder()
            .tcp_nodelay(true)
            .http2_keepalive_interval(Some(Duration::from_secs(10)))
            .http2_keepalive_timeout(Some(Duration::from_secs(10)))
            .http2_max_pending_accept_reset_streams(Some(RESETS_MAX))
            .add_service(health)
            .add_service(reflection)
            .add_service(CacheServer::new(control).max_decoding_message_size(REQUEST_BYTES_MAX))
            .add_service(PeerServer::new(peer).max_decoding_message_size(PEER_BYTES_MAX))
            .add_service(Flight::new(self.node.clone()))
            .serve_with_incoming_shutdown(nodelay(self.listener), ending);
        // A body is asked for its next frame only when there is room on the wire, so it cannot end by itself
        // then.
        let overdue = async {
            streams.cancelled().await;
            tokio::time::sleep(LAST_WORDS).await;
        };
        let served = tokio::select! {
            served = serving => served,
            () = overdue => {
                tracing::info!("connections that did not end in time are cut");
                Ok(())
            }
        };
        streams.cancel();
        if let Some(error) = refused.get() {
            return Err(error.clone());
        }
        served.map_err(|e| Error::closed(format!("gRPC is no longer served: {e}")))
    }
}

/// The cluster that the settings speak of.
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

async fn bind(at: SocketAddr, flag: &str) -> Result<TcpListener> {
    TcpListener::bind(at).await.map_err(|e| match e.kind() {
        std::io::ErrorKind::AddrInUse => {
            Error::invalid(format!("{at} is in use by another program: choose another port with {flag}"))
        }
        _ => Error::denied(format!("cannot listen on {at}: {e}; choose another address with {flag}")),
    })
}

fn local(listener: &TcpListener) -> Result<SocketAddr> {
    listener.local_addr().map_err(|e| Error::closed(format!("the listening socket has gone: {e}")))
}

/// Connections with Nagle's delay off: heads and small messages must not wait.
fn nodelay(
    listener: TcpListener,
) -> impl futures::Stream<Item = std::io::Result<tokio::net::TcpStream>> + Send + 'static {
    use futures::StreamExt;
    TcpListenerStream::new(listener).map(|accepted| {
        accepted.inspect(|stream| {
            stream.set_nodelay(true).ok();
        })
    })
}
