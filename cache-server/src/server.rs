//! The daemon: binds the sockets, runs a node's services and background tasks, and ends them in order.

use crate::cluster::replicate::Replicator;
use crate::disk::dirs::{DirStatus, Health};
use crate::maintenance::{self, store_check};
use crate::node::Node;
use crate::read::prefetch;
use crate::runtime::blocking;
use crate::service::accept;
use crate::service::connection::Connections;
use crate::service::control::Control;
use crate::service::flight::Flight;
use crate::service::grpc::GrpcServer;
use crate::service::objects::ObjectService;
use crate::service::s3;
use crate::service::snapshots::SnapshotService;
use crate::service::socket::{self, Socket, SocketFile};
use crate::service::{metrics, peer};
use crate::settings::{LimitSettings, ListenAddress, Settings};
use forebay_proto::v1::cache_server::CacheServer;
use forebay_proto::v1::objects_server::ObjectsServer;
use forebay_proto::v1::peer_server::PeerServer;
use forebay_proto::v1::snapshots_server::SnapshotsServer;
use forebay_proto::{Error, Result, v1};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::HealthService;

/// Bytes of a message of a request that is a stream.
const REQUEST_BYTES_MAX: usize = 4 << 20;

/// How long streams that were told to end may take to say so: a reader that stands still never lets them.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A node whose sockets are bound and whose disk cache is open.
pub struct Server {
    node: Arc<Node>,
    listener: Option<TcpListener>,
    socket: Option<Socket>,
    address: ListenAddress,
    metrics: Option<TcpListener>,
    s3: Option<(TcpListener, s3::Endpoint)>,
    drain: Duration,
    /// How long no connection is open before the node ends by itself.
    exit_when_idle: Option<Duration>,
    scrub_mb_per_s: f64,
    limits: LimitSettings,
    /// Ends what still runs.
    streams: CancellationToken,
}

impl Server {
    /// Binds the sockets, opens the disk cache, rebuilds its index. Errors name the setting to change.
    pub async fn bind(settings: Settings) -> Result<Self> {
        if let Some(exposure) = settings.exposure() {
            tracing::warn!("--insecure: {exposure}");
        }
        let mut address = settings.listen.clone();
        let listener = match address.tcp() {
            Some(at) => Some(bind(at, "--listen").await?),
            None => None,
        };
        if let Some(listener) = &listener {
            address = local(listener)?.into();
        }
        let metrics = match settings.metrics_listen {
            Some(at) => Some(bind(at, "--metrics-listen").await?),
            None => None,
        };
        let s3 = match settings.gateway.s3_listen {
            Some(at) => Some(bind(at, "--s3-listen").await?),
            None => None,
        };
        let url = settings.url(&address)?;
        let streams = CancellationToken::new();
        let node = Arc::new(Node::open(&settings, url, streams.clone()).await?);
        if settings.check_at_start {
            let check = store_check::run(node.source.clone(), settings.allow.clone());
            let stop = streams.clone();
            tokio::spawn(async move { stop.run_until_cancelled_owned(check).await });
        }
        let s3 = match s3 {
            Some(listener) => {
                let (node, gateway) = (node.clone(), settings.gateway.clone());
                Some((listener, blocking(move || s3::Endpoint::new(node, &gateway)).await??))
            }
            None => None,
        };
        // The cache directory is this server's own since the node was opened.
        let socket = unix_socket(&settings, &node.disk.dirs())?;
        if let Some(socket) = &socket {
            node.shared.listens_at(socket.file.path.clone());
        }
        let (drain, scrub_mb_per_s) = (Duration::from_secs_f64(settings.drain_s), settings.scrub_mb_per_s);
        let exit_when_idle = settings.exit_when_idle_s.map(Duration::from_secs_f64);
        Ok(Self {
            node,
            listener,
            socket,
            address,
            metrics,
            s3,
            drain,
            exit_when_idle,
            scrub_mb_per_s,
            limits: settings.limits,
            streams,
        })
    }

    /// Where gRPC is served, with the port that the system chose if that was left to it.
    pub fn address(&self) -> &ListenAddress {
        &self.address
    }

    /// Where metrics are served, if they are; likewise.
    pub fn metrics_address(&self) -> Result<Option<SocketAddr>> {
        self.metrics.as_ref().map(local).transpose()
    }

    /// Where S3 clients are served, if they are; likewise.
    pub fn s3_address(&self) -> Result<Option<SocketAddr>> {
        self.s3.as_ref().map(|(listener, _)| local(listener)).transpose()
    }

    /// Serves until `stop` is called, the node has been idle for long enough, or the cluster refuses it. Then
    /// the node leaves the topology and sends its streams to other nodes; without any, they get the drain
    /// time to finish. Connections that are left after that end with the runtime.
    pub async fn run(mut self, stop: CancellationToken) -> Result<()> {
        let connections = Connections::default();
        let memory = self.node.memory.requests.clone();
        let refusals = self.node.listeners.refusals.clone();
        let services = self.services().await?;
        let guard = self.node.guard.clone();
        let grpc = GrpcServer::new(services, &self.limits, memory, connections.clone(), refusals, guard);
        let replicator = self.node.replicator();
        let _background = self.start_background(&replicator, &connections);
        let (refuse, refused) = oneshot::channel();
        let (node, streams, drain) = (self.node.clone(), self.streams.clone(), self.drain);
        let idle = idle(connections.clone(), self.exit_when_idle);
        let shutdown = async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = idle => {}
                error = node.membership.refused() => drop(refuse.send(error)),
            }
            shut_down(node, streams, drain, replicator).await;
        };
        self.node.enter().await;
        let accepting = CancellationToken::new();
        let _file = self.start_accepting(&grpc, &accepting);
        serve(&grpc, accepting, self.streams.clone(), shutdown).await;
        self.streams.cancel();
        match refused.await {
            Ok(error) => Err(error),
            Err(_) => Ok(()),
        }
    }

    async fn services(&self) -> Result<Routes> {
        let node = &self.node;
        node.health.set_serving::<CacheServer<Control>>().await;
        let health = HealthService::from_health_reporter(node.health.clone());
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(v1::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .build_v1()
            .map_err(|e| Error::invalid(format!("gRPC reflection: {e}")))?;
        let control = CacheServer::new(Control::new(node.clone(), self.streams.clone()));
        let objects = ObjectsServer::new(ObjectService { node: node.clone(), stop: self.streams.clone() });
        let peer = PeerServer::new(peer::PeerService(node.clone()));
        let snapshots = SnapshotsServer::new(SnapshotService::new(node.membership.clone()));
        // How large each request may be is checked before it is read (see `service::grpc`).
        let mut routes = Routes::builder();
        routes
            .add_service(HealthServer::new(health))
            .add_service(reflection)
            .add_service(control.max_decoding_message_size(REQUEST_BYTES_MAX))
            .add_service(objects)
            .add_service(snapshots.max_decoding_message_size(REQUEST_BYTES_MAX))
            .add_service(peer.max_decoding_message_size(usize::MAX))
            .add_service(Flight(node.clone()));
        Ok(routes.routes())
    }

    /// Takes connections by TCP and over the Unix socket until `accepting` is called off. The socket's file
    /// lives as long as the node.
    fn start_accepting(
        &mut self,
        grpc: &Arc<GrpcServer>,
        accepting: &CancellationToken,
    ) -> Option<SocketFile> {
        if let Some(listener) = self.listener.take() {
            let (grpc, admission) = (grpc.clone(), self.node.listeners.grpc.clone());
            let tls = self.node.listeners.tls.clone();
            let serve = move |stream, place| match &tls {
                None => grpc.serve(stream, place),
                Some(tls) => grpc.serve_tls(tls.clone(), stream, place),
            };
            tokio::spawn(accept::run(listener, admission, accepting.clone(), serve, drop));
        }
        let Socket { listener, file } = self.socket.take()?;
        let (node, accepting, stop) = (self.node.clone(), accepting.clone(), self.streams.clone());
        tokio::spawn(socket::run(listener, node, grpc.clone(), accepting, stop));
        Some(file)
    }

    /// Starts the node's own work. Most of it ends when the set is dropped; metrics and the care of the disk
    /// go on until the streams are told to end.
    fn start_background(&mut self, replicator: &Replicator, connections: &Connections) -> JoinSet<()> {
        let node = &self.node;
        let mut background = JoinSet::new();
        background.spawn(prefetch::run(node.cache.clone()));
        background.spawn(replicator.clone().run());
        background.spawn(node.guard.authority.clone().run());
        background.spawn(node.publisher().run());
        if let Some(tls) = &node.listeners.tls {
            background.spawn(tls.clone().watch(self.streams.clone()));
        }
        if let Some(listener) = self.metrics.take() {
            background.spawn(node.stall_probe.clone().run());
            tokio::spawn(metrics::run(listener, node.clone(), self.limits.clone(), self.streams.clone()));
        }
        if let Some((listener, endpoint)) = self.s3.take() {
            tokio::spawn(s3::run(listener, endpoint, connections.clone(), self.streams.clone()));
        }
        let (disk, authority) = (node.disk.clone(), node.guard.authority.clone());
        tokio::spawn(maintenance::run(disk, authority, self.scrub_mb_per_s, self.streams.clone()));
        background
    }
}

/// Serves until `shutdown` ends and the connections have, or some time after the streams were told to end.
async fn serve(
    grpc: &GrpcServer,
    accepting: CancellationToken,
    streams: CancellationToken,
    shutdown: impl Future<Output = ()>,
) {
    shutdown.await;
    accepting.cancel();
    // A body is asked for its next frame only when there is room on the wire, so it cannot end by itself
    // then.
    let overdue = async {
        streams.cancelled().await;
        tokio::time::sleep(LAST_WORDS).await;
    };
    tokio::select! {
        () = grpc.finish() => {}
        () = overdue => tracing::info!("connections that did not end in time are cut"),
    }
}

/// Waits until no connection has been open for so long; without a time, for ever.
async fn idle(connections: Connections, time: Option<Duration>) {
    let Some(time) = time else { return std::future::pending().await };
    connections.idle_for(time).await;
    tracing::info!(idle_s = time.as_secs_f64(), "no reader for so long: this node ends");
}

/// Leaves the cluster. Returns when no new connection is to be taken; streams are told to end after `drain`
/// at most.
async fn shut_down(node: Arc<Node>, streams: CancellationToken, drain: Duration, replicator: Replicator) {
    tracing::info!(drain_s = drain.as_secs_f64(), "stopping: no new connections, streams may finish");
    node.is_ending.store(true, Ordering::Relaxed);
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

/// The node's Unix socket. Where nobody asked for it and it cannot be had, the node does without: in a cache
/// directory that is set aside it is not even tried, as its disk may hang.
fn unix_socket(settings: &Settings, dirs: &[DirStatus]) -> Result<Option<Socket>> {
    let Some(plan) = settings.socket()? else { return Ok(None) };
    let is_named = settings.unix_socket.is_some() || settings.listen.tcp().is_none();
    let is_described = settings.unix_socket_mode.is_some() || settings.unix_socket_group.is_some();
    let is_there =
        |dir: &DirStatus| std::path::absolute(&dir.path).is_ok_and(|dir| plan.path.starts_with(dir));
    let is_away = dirs.iter().any(|dir| dir.health == Health::Away && is_there(dir));
    let bound = match is_away {
        true => Err(Error::denied(format!(
            "unix:{}: its cache directory is set aside; choose another path with --unix-socket",
            plan.path.display()
        ))),
        false => Socket::bind(&plan),
    };
    match bound {
        Err(e) if !is_named && (is_away || !is_described) => {
            tracing::info!(error = %e, "no Unix socket: readers on this host get bytes by TCP");
            Ok(None)
        }
        bound => bound.map(Some),
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
