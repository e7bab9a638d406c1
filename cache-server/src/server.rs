//! The daemon: binds the sockets, runs a node's services and background tasks, and ends them in order.

use crate::cluster::replicate::Replicator;
use crate::maintenance;
use crate::node::Node;
use crate::read::prefetch;
use crate::service::control::Control;
use crate::service::flight::Flight;
use crate::service::{metrics, peer};
use crate::settings::Settings;
use forebay_proto::v1::cache_server::CacheServer;
use forebay_proto::v1::peer_server::PeerServer;
use forebay_proto::{Error, Result, v1};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::{Router, TcpIncoming};
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::HealthService;

/// Bytes of a request that is not a ticket.
const REQUEST_BYTES_MAX: usize = 4 << 20;

/// Calls on one connection that were cancelled before this node came to them. Nodes and readers that think it
/// slow ask others instead; that must not cost the waiting calls their connection.
const RESETS_MAX: usize = 1000;

/// Bytes of a request from another node: a manifest, mostly.
const PEER_BYTES_MAX: usize = 256 << 20;

/// HTTP/2 pings: their interval, and how long the answer may take.
const PING: Duration = Duration::from_secs(10);

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
    /// Binds the sockets, opens the disk cache, rebuilds its index. Errors name the setting to change.
    pub async fn bind(settings: Settings) -> Result<Self> {
        let listener = bind(settings.listen, "--listen").await?;
        let metrics = match settings.metrics_listen {
            Some(at) => Some(bind(at, "--metrics-listen").await?),
            None => None,
        };
        let url = settings.url(local(&listener)?)?;
        let streams = CancellationToken::new();
        let node = Arc::new(Node::open(&settings, url, streams.clone()).await?);
        let (drain, scrub_mb_per_s) = (Duration::from_secs_f64(settings.drain_s), settings.scrub_mb_per_s);
        Ok(Self { node, listener, metrics, drain, scrub_mb_per_s, streams })
    }

    /// Where gRPC is served.
    pub fn address(&self) -> Result<SocketAddr> {
        local(&self.listener)
    }

    /// Where metrics are served.
    pub fn metrics_address(&self) -> Result<Option<SocketAddr>> {
        self.metrics.as_ref().map(local).transpose()
    }

    /// Serves until `stop` is called or the cluster refuses the node. Then the node leaves the topology and
    /// sends its streams to other nodes; without any, they get the drain time to finish. Connections that are
    /// left after that end with the runtime.
    pub async fn run(mut self, stop: CancellationToken) -> Result<()> {
        let services = self.services().await?;
        let replicator = self.node.replicator();
        let _background = self.start_background(&replicator);
        let (refuse, refused) = oneshot::channel();
        let (node, streams, drain) = (self.node.clone(), self.streams.clone(), self.drain);
        let shutdown = async move {
            tokio::select! {
                () = stop.cancelled() => {}
                error = node.membership.refused() => drop(refuse.send(error)),
            }
            shut_down(node, streams, drain, replicator).await;
        };
        self.node.enter().await;
        let served = serve(services, self.listener, self.streams.clone(), shutdown).await;
        self.streams.cancel();
        match refused.await {
            Ok(error) => Err(error),
            Err(_) => served.map_err(|e| Error::closed(format!("gRPC is no longer served: {e}"))),
        }
    }

    async fn services(&self) -> Result<Router> {
        let node = &self.node;
        node.health.set_serving::<CacheServer<Control>>().await;
        let health = HealthService::from_health_reporter(node.health.clone());
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(v1::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .build_v1()
            .map_err(|e| Error::invalid(format!("gRPC reflection: {e}")))?;
        let control = CacheServer::new(Control {
            node: node.clone(),
            stop: self.streams.clone(),
            draining: Arc::default(),
        });
        let peer = PeerServer::new(peer::PeerService(node.clone()));
        Ok(tonic::transport::Server::builder()
            .http2_keepalive_interval(Some(PING))
            .http2_keepalive_timeout(Some(PING))
            .http2_max_pending_accept_reset_streams(Some(RESETS_MAX))
            .add_service(HealthServer::new(health))
            .add_service(reflection)
            .add_service(control.max_decoding_message_size(REQUEST_BYTES_MAX))
            .add_service(peer.max_decoding_message_size(PEER_BYTES_MAX))
            .add_service(Flight(node.clone())))
    }

    /// Starts the node's own work. Most of it ends when the set is dropped; metrics and the care of the disk
    /// go on until the streams are told to end.
    fn start_background(&mut self, replicator: &Replicator) -> JoinSet<()> {
        let node = &self.node;
        let mut background = JoinSet::new();
        background.spawn(prefetch::run(node.cache.clone()));
        background.spawn(replicator.clone().run());
        background.spawn(node.publisher().run());
        if let Some(listener) = self.metrics.take() {
            background.spawn(node.stall_probe.clone().run());
            let (node, stop) = (node.clone(), self.streams.clone());
            tokio::spawn(async move {
                if let Err(e) = metrics::run(listener, node, stop).await {
                    tracing::error!(error = %e, "metrics are no longer served");
                }
            });
        }
        tokio::spawn(maintenance::run(node.disk.clone(), self.scrub_mb_per_s, self.streams.clone()));
        background
    }
}

/// Serves until `shutdown` ends and the connections have, or some time after the streams were told to end.
async fn serve(
    services: Router,
    listener: TcpListener,
    streams: CancellationToken,
    shutdown: impl Future<Output = ()>,
) -> std::result::Result<(), tonic::transport::Error> {
    // Nagle's delay off: heads and small messages must not wait.
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    // A body is asked for its next frame only when there is room on the wire, so it cannot end by itself
    // then.
    let overdue = async {
        streams.cancelled().await;
        tokio::time::sleep(LAST_WORDS).await;
    };
    tokio::select! {
        served = services.serve_with_incoming_shutdown(incoming, shutdown) => served,
        () = overdue => {
            tracing::info!("connections that did not end in time are cut");
            Ok(())
        }
    }
}

/// Leaves the cluster. Returns when no new connection is to be taken; streams are told to end after `drain`
/// at most.
async fn shut_down(node: Arc<Node>, streams: CancellationToken, drain: Duration, replicator: Replicator) {
    tracing::info!(drain_s = drain.as_secs_f64(), "stopping: no new connections, streams may finish");
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
    // Until the end others may fetch what they lack, which takes new connections.
    match has_others {
        true => finish.await,
        false => drop(tokio::spawn(finish)),
    }
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
