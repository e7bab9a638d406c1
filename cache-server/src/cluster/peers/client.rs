//! The connection to another node, and whether it answers.

use super::silence::{SUSPENDED, Suspension, in_time};
use crate::auth::authority::NO_ROLE;
use arrow::buffer::{Buffer, MutableBuffer};
use forebay_dataset::TokenFile;
use forebay_proto::manifest::DatasetId;
use forebay_proto::v1::peer_client::PeerClient;
use forebay_proto::{Error, Kind, Manifest, Result, v1};
use forebay_tls::ClientTls;
use http::Uri;
use hyper::rt::{Read, Write};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tower::{Service, service_fn};

/// What the URL of a node with TLS begins with.
const HTTPS: &str = "https://";

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_millis(500);

/// How long a node may take for a short answer. One that is busy with its disk, or on a machine that is, was
/// seen to take over half a second; what it would have given comes from the object store then.
const BRIEF: Duration = Duration::from_millis(1250);

/// Silence after which a node that owes bytes is asked whether it lives; it then has [`BRIEF`].
const SUSPICION: Duration = Duration::from_millis(250);

/// How long a node remembers a dataset version that it was told: all fills that it refused for want of it
/// come at once.
const LEARNED: Duration = Duration::from_secs(5);

/// Between two lines of the log about faults of TLS with other nodes.
const TELL_FAULT: Duration = Duration::from_secs(1);

/// Between two lines of the log about nodes that refuse this one's calls.
const TELL_REFUSAL: Duration = Duration::from_secs(60);

/// A request among nodes: a manifest, mostly.
const MESSAGE_BYTES_MAX: usize = 256 << 20;

/// Another node of the cluster, and the connections to it.
#[derive(Debug)]
pub struct Peer {
    address: String,
    client: PeerClient<PeerChannel>,
    /// A connection of its own, for what must not wait behind fills.
    probe: PeerClient<PeerChannel>,
    /// Asks whether it takes readers, for which no token is needed.
    health: HealthClient<Channel>,
    learned: tokio::sync::Mutex<Option<(DatasetId, Instant)>>,
    suspension: Arc<Mutex<Suspension>>,
    refusals: LogPause,
}

/// What this node shows others.
#[derive(Debug, Clone, Default)]
pub struct PeerCredentials {
    /// What they know it by, where they have a policy.
    pub token: Option<Arc<TokenFile>>,
    /// Its certificate, where there is one, and whom it believes.
    pub tls: ClientTls,
    pub faults: LogPause,
    pub refusals: LogPause,
}

/// When a fault of any node was last told: many faulty nodes must not fill the log.
#[derive(Debug, Clone, Default)]
pub struct LogPause(Arc<Mutex<Option<Instant>>>);

impl LogPause {
    /// Whether another one may be told now.
    fn may_tell(&self, now: Instant, pause: Duration) -> bool {
        let mut told_at = self.0.lock();
        let may = told_at.is_none_or(|at| now.duration_since(at) >= pause);
        if may {
            *told_at = Some(now);
        }
        may
    }
}

/// A connection that shows who this node is.
type PeerChannel = InterceptedService<Channel, PeerToken>;

/// The token of this node, where it has one.
#[derive(Debug, Clone)]
struct PeerToken(Option<Arc<TokenFile>>);

impl Interceptor for PeerToken {
    fn call(&mut self, mut request: Request<()>) -> std::result::Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            let bearer = token.bearer()?;
            let value = bearer.parse().map_err(|_| Status::internal("the peer token fits into no header"))?;
            request.metadata_mut().insert("authorization", value);
        }
        Ok(request)
    }
}

/// A segment file on its way: its first chunk, and those that follow.
pub type FileChunks = (v1::FetchChunk, Streaming<v1::FetchChunk>);

/// Whether a node does not take this one for a node of its cluster. That data are refused, as the object
/// store may do, has the same code.
fn is_refusal(status: &Status) -> bool {
    match status.code() {
        Code::Unauthenticated => true,
        Code::PermissionDenied => status.message().contains(NO_ROLE),
        _ => false,
    }
}

/// Connects by TLS.
fn connector(
    tls: ClientTls,
    faults: LogPause,
) -> impl Service<Uri, Response = impl Read + Write + Send + Unpin, Error = io::Error, Future: Send> + Send {
    let last_fault = Arc::new(Mutex::new(String::new()));
    service_fn(move |uri: Uri| {
        let (tls, faults, last_fault) = (tls.clone(), faults.clone(), last_fault.clone());
        async move {
            let (Some(host), Some(port)) = (uri.host(), uri.port_u16()) else {
                return Err(io::Error::other(format!("{uri} names no host and port")));
            };
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let dialled = tls.dial(host, port).await;
            // Nodes come and go, but certificates are for a person to settle.
            let fault = match &dialled {
                Err(e) if matches!(e.kind(), ErrorKind::InvalidData | ErrorKind::InvalidInput) => {
                    e.to_string()
                }
                _ => String::new(),
            };
            let is_new = *last_fault.lock() != fault;
            if fault.is_empty() {
                last_fault.lock().clear();
            } else if is_new && faults.may_tell(Instant::now(), TELL_FAULT) {
                tracing::warn!(node = %uri.authority().map_or("", |at| at.as_str()), error = fault, "no TLS with another node");
                *last_fault.lock() = fault;
            }
            dialled.map(TokioIo::new)
        }
    })
}

impl Peer {
    /// The node at a URL, connected to when first used; `None` if it is not a URL. Call it within a Tokio
    /// runtime.
    pub fn new(address: &str, credentials: PeerCredentials) -> Option<Self> {
        let PeerCredentials { token, tls, faults, refusals } = credentials;
        // To tonic the connection is plain: it sets up TLS once, and could not take new files.
        let plain = address.replacen(HTTPS, "http://", 1);
        let endpoint = Endpoint::from_shared(plain)
            .ok()?
            .origin(address.parse().ok()?)
            .connect_timeout(CONNECT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(Duration::from_secs(5))
            .keep_alive_timeout(Duration::from_secs(5))
            .initial_stream_window_size(4 << 20)
            // A file that waits for memory is read later: its unread bytes must not stop the other files.
            .initial_connection_window_size(i32::MAX as u32);
        let channel = || match address.starts_with(HTTPS) {
            false => endpoint.connect_lazy(),
            true => endpoint.connect_with_connector_lazy(connector(tls.clone(), faults.clone())),
        };
        let token = PeerToken(token);
        let client = PeerClient::with_interceptor(channel(), token.clone())
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
            .max_decoding_message_size(MESSAGE_BYTES_MAX);
        let probe_channel = channel();
        let health = HealthClient::new(probe_channel.clone());
        let probe = PeerClient::with_interceptor(probe_channel, token);
        let (learned, suspension) = (Default::default(), Arc::new(Mutex::new(Suspension::new())));
        Some(Self { address: address.to_owned(), client, probe, health, learned, suspension, refusals })
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// Whether it is left alone for now.
    pub fn is_suspended(&self) -> bool {
        self.suspension.lock().is_on(Instant::now())
    }

    /// Which of some segments it holds.
    pub async fn holds(&self, request: v1::HoldsRequest) -> Result<Vec<bool>> {
        let asked = request.segments.len();
        let mut client = self.probe.clone();
        let held = self.brief(client.holds(request)).await?.into_inner().held;
        match held.len() == asked {
            true => Ok(held),
            false => Err(Error::corrupt(format!("{}: the reply is for other segments", self.address))),
        }
    }

    /// Whether it says in time that it takes readers.
    pub async fn is_serving(&self) -> bool {
        let mut health = self.health.clone();
        match in_time(BRIEF, health.check(HealthCheckRequest::default())).await {
            Some(Ok(answer)) => answer.into_inner().status() == ServingStatus::Serving,
            _ => false,
        }
    }

    /// How busy and full it is.
    pub async fn load(&self) -> Result<v1::NodeLoad> {
        let mut client = self.probe.clone();
        Ok(self.brief(client.load(v1::LoadOfRequest {})).await?.into_inner())
    }

    /// An object's version, as the node knows it. Waits as long as it lives: it may be asking the object
    /// store.
    pub async fn version(&self, request: v1::VersionRequest) -> Result<v1::ObjectVersion> {
        let mut client = self.client.clone();
        Ok(self.while_alive(client.version(request)).await?.into_inner())
    }

    /// Tells it a dataset version.
    pub async fn learn(&self, manifest: &Manifest) -> Result<()> {
        let mut learned = self.learned.lock().await;
        if learned.is_some_and(|(dataset, at)| dataset == manifest.id() && at.elapsed() < LEARNED) {
            return Ok(());
        }
        let mut client = self.client.clone();
        self.while_alive(client.learn(v1::Manifest::from(manifest))).await?;
        *learned = Some((manifest.id(), Instant::now()));
        Ok(())
    }

    /// Has it take copies; returns which of them it holds then. Waits as long as it lives.
    pub async fn copy(&self, request: v1::CopyRequest) -> Result<Vec<bool>> {
        let mut client = self.client.clone();
        Ok(self.while_alive(client.copy(request)).await?.into_inner().held)
    }

    /// Asks for a segment file of `limit_bytes` at most. Waits as long as the node lives: it may be filling
    /// the segment. Returns its length, and its chunks.
    pub async fn fetch(&self, request: v1::FetchRequest, limit_bytes: u64) -> Result<(u64, FileChunks)> {
        let mut client = self.client.clone();
        let mut chunks = self.while_alive(client.fetch(request)).await?.into_inner();
        let first = self.while_alive(chunks.message()).await?;
        let first = first.ok_or_else(|| self.wrong("an empty segment"))?;
        match first.file_bytes {
            bytes if bytes > limit_bytes => {
                Err(self.wrong(&format!("a segment of {bytes} bytes, at most {limit_bytes} are right")))
            }
            bytes => Ok((bytes, (first, chunks))),
        }
    }

    /// The bytes of a segment file, aligned as Arrow likes it.
    pub async fn read(&self, (first, mut rest): FileChunks) -> Result<Buffer> {
        let file_bytes = first.file_bytes as usize;
        let mut file = MutableBuffer::with_capacity(file_bytes);
        let mut next = Some(first);
        while let Some(chunk) = next {
            if file.len() + chunk.data.len() > file_bytes {
                return Err(self.wrong("more bytes than announced"));
            }
            file.extend_from_slice(&chunk.data);
            next = self.while_alive(rest.message()).await?;
        }
        Ok(file.into())
    }

    fn wrong(&self, why: &str) -> Error {
        Error::corrupt(format!("{}: {why}", self.address))
    }

    /// A call that takes a moment only.
    async fn brief<T>(&self, call: impl Future<Output = std::result::Result<T, Status>>) -> Result<T> {
        match in_time(BRIEF, call).await {
            Some(done) => self.outcome(done),
            None => Err(self.silent()),
        }
    }

    /// A call that may take its time, as long as the node says that it lives.
    async fn while_alive<T>(&self, call: impl Future<Output = std::result::Result<T, Status>>) -> Result<T> {
        tokio::pin!(call);
        loop {
            if let Ok(done) = timeout(SUSPICION, &mut call).await {
                return self.outcome(done);
            }
            let mut client = self.probe.clone();
            tokio::select! {
                biased;
                done = &mut call => return self.outcome(done),
                alive = in_time(BRIEF, client.holds(v1::HoldsRequest::default())) => {
                    if !matches!(alive, Some(Ok(_))) {
                        return Err(self.silent());
                    }
                }
            }
        }
    }

    fn outcome<T>(&self, done: std::result::Result<T, Status>) -> Result<T> {
        match done {
            Ok(reply) => {
                self.suspension.lock().end();
                Ok(reply)
            }
            Err(status) => {
                // A node that refuses is not gone.
                let is_transport = std::error::Error::source(&status).is_some();
                let is_refusal = is_refusal(&status);
                let error = Error::from(status).context(&self.address);
                if is_refusal && self.refusals.may_tell(Instant::now(), TELL_REFUSAL) {
                    tracing::warn!(
                        error = %error,
                        "another node refuses this one's calls: see --peer-token-file, and who has the role peer in its policy"
                    );
                }
                if !is_transport {
                    return Err(error);
                }
                self.suspension.lock().extend(Instant::now());
                Err(Error { kind: Kind::Closed, ..error })
            }
        }
    }

    /// The node did not answer in time. It is used again as soon as it does.
    fn silent(&self) -> Error {
        if self.suspension.lock().extend(Instant::now()) {
            let (mut client, suspension) = (self.probe.clone(), self.suspension.clone());
            tokio::spawn(async move {
                let answer = timeout(SUSPENDED.1, client.holds(v1::HoldsRequest::default())).await;
                if matches!(answer, Ok(Ok(_))) {
                    suspension.lock().end();
                }
            });
        }
        Error::closed(format!("{}: does not answer", self.address))
    }
}
