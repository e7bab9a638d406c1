//! A node of the cache and the connection to it.
//!
//! A [`Node`] is cheap to clone and connects when it is first used, so making one never waits. The first
//! failure to reach it comes within [`CONNECT_TIMEOUT`] and names its address. Going over to another node is
//! not its concern.

use crate::certificates;
use crate::credentials::{Credentials, NodeChannel};
use crate::same_host::HostOf;
use crate::stream::{Stream, reason};
use forebay_proto::v1::cache_client::CacheClient;
use forebay_proto::v1::objects_client::ObjectsClient;
use forebay_proto::v1::snapshots_client::SnapshotsClient;
use forebay_proto::v1::{OpenReply, OpenRequest, SaveSnapshotReply, Snapshot, SnapshotPart, StatusReply};
use forebay_proto::{Error, Kind, Result, object_list};
use futures::stream;
use prost::Message as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// How long a connection to a cache node may take to come about.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of a reply about objects at most: a page of a listing, or some of their bytes.
const OBJECT_REPLY_BYTES_MAX: usize = 16 << 20;

/// Bytes that may come before their reader takes them; the most that a stream holds of the connection's
/// memory.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;

/// A silent connection is probed this often, and given up when a probe goes unanswered for as long again.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Why a node takes no readers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NodeFault {
    /// It answers, and does not serve now: it is drained.
    NotServing,
    /// It does not answer, for a reason.
    Silent(String),
}

/// A node of the cache and the connection to it. Nodes are the same if they are at the same URL.
#[derive(Debug, Clone)]
pub struct Node(Arc<Connection>);

#[derive(Debug)]
struct Connection {
    url: String,
    endpoint: Endpoint,
    credentials: Credentials,
    channel: OnceLock<Channel>,
    host: HostOf,
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.url() == other.url()
    }
}

impl Eq for Node {}

impl Node {
    /// See [`crate::Access::endpoint`].
    pub fn new(url: &str) -> Result<Self> {
        let url = normal(url)?;
        let endpoint = certificates::endpoint(&url)
            .ok_or_else(|| not_an_address(&url))?
            .user_agent(concat!("forebay/", env!("CARGO_PKG_VERSION")))
            .map_err(|e| Error::invalid(format!("cannot name this client to {url}: {e}")))?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            // A stretch of an object that is read ahead waits for those before it: its unread bytes must not
            // stop them, nor a probe whether the node lives.
            .initial_connection_window_size(i32::MAX as u32);
        let (credentials, channel, host) = (Credentials::of_process(), OnceLock::new(), HostOf::default());
        Ok(Self(Arc::new(Connection { url, endpoint, credentials, channel, host })))
    }

    /// `http://host:port`, `https://host:port`, or `unix:/path`.
    pub fn url(&self) -> &str {
        &self.0.url
    }

    /// The shared connection, made when first used. Call it within a Tokio runtime.
    pub fn channel(&self) -> Channel {
        self.0.channel.get_or_init(|| certificates::channel(&self.0.endpoint, &self.0.url)).clone()
    }

    /// The same, and requests show who this process is.
    pub(crate) fn authorized(&self) -> NodeChannel {
        InterceptedService::new(self.channel(), self.0.credentials.clone())
    }

    /// The cache's own services. Replies may be of any size: manifests of big datasets are.
    pub fn client(&self) -> CacheClient<NodeChannel> {
        CacheClient::new(self.authorized()).max_decoding_message_size(usize::MAX)
    }

    /// The service that reads single objects, byte for byte.
    pub(crate) fn objects(&self) -> ObjectsClient<NodeChannel> {
        ObjectsClient::new(self.authorized()).max_decoding_message_size(OBJECT_REPLY_BYTES_MAX)
    }

    /// Has the cluster keep a snapshot, sent in parts if it has very many objects.
    pub(crate) async fn save(&self, mut snapshot: Snapshot) -> Result<SaveSnapshotReply> {
        if snapshot.encoded_len() <= object_list::MESSAGE_BYTES_MAX {
            return self.reply(self.snapshots().save(snapshot)).await;
        }
        let dataset = snapshot.dataset.take();
        let parts = object_list::parts(OpenRequest { dataset, ..Default::default() });
        let mut first = Some(snapshot);
        let parts = parts.into_iter().map(|part| SnapshotPart { snapshot: first.take(), part: Some(part) });
        let parts: Vec<_> = parts.collect();
        self.reply(self.snapshots().save_parts(stream::iter(parts))).await
    }

    /// The service of snapshots, which all nodes of a cluster share.
    pub(crate) fn snapshots(&self) -> SnapshotsClient<NodeChannel> {
        SnapshotsClient::new(self.authorized()).max_decoding_message_size(usize::MAX)
    }

    /// Opens a dataset, in parts if it is a list of very many objects.
    pub(crate) async fn open(&self, request: OpenRequest) -> Result<OpenReply> {
        match request.encoded_len() > object_list::MESSAGE_BYTES_MAX {
            false => self.reply(self.client().open(request)).await,
            true => self.reply(self.client().open_parts(stream::iter(object_list::parts(request)))).await,
        }
    }

    /// What the node holds and has done.
    pub async fn status(&self) -> Result<StatusReply> {
        self.reply(self.client().status(forebay_proto::v1::StatusRequest {})).await
    }

    /// Opens a batch stream, see [`Stream::open`]; if `same_host` and the node is on this host, through
    /// shared memory.
    pub(crate) async fn stream(&self, ticket: &[u8], window_bytes: u32, same_host: bool) -> Result<Stream> {
        let shared = match same_host {
            true => self.0.host.session(&self.client(), self.url(), window_bytes).await,
            false => None,
        };
        if let Some((address, session)) = shared {
            match Stream::open_shared(&address, ticket, window_bytes, session).await {
                Err(e) if e.kind == Kind::Retry => {
                    tracing::debug!(error = %e, "a stream through shared memory cannot be opened");
                }
                opened => return opened,
            }
        }
        Stream::open(self.url(), ticket, window_bytes).await
    }

    /// What the node answers to a call of [`Node::client`].
    pub async fn reply<T>(&self, call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T> {
        call.await.map(Response::into_inner).map_err(|status| self.error(status))
    }

    /// Whether the node says, within `limit`, that it serves. Costs it next to nothing: this tells one that
    /// is slow from one that is dead.
    pub async fn is_serving(&self, limit: Duration) -> bool {
        self.fault(limit).await.is_none()
    }

    /// Why the node does not say, within `limit`, that it serves; `None` if it does.
    pub(crate) async fn fault(&self, limit: Duration) -> Option<NodeFault> {
        let mut health = HealthClient::new(self.channel());
        match tokio::time::timeout(limit, health.check(HealthCheckRequest::default())).await {
            Ok(Ok(reply)) => match reply.into_inner().status() {
                ServingStatus::Serving => None,
                _ => Some(NodeFault::NotServing),
            },
            // Who answers lives, whatever it thinks of the question.
            Ok(Err(status)) => root_cause(self.url(), &status).map(NodeFault::Silent),
            Err(_) => Some(NodeFault::Silent(format!("no answer within {} s", limit.as_secs_f64()))),
        }
    }

    /// The error behind a failed call: the node's own, or one that names the endpoint which could not be
    /// reached.
    pub fn error(&self, status: Status) -> Error {
        let url = self.url();
        let Some(cause) = root_cause(url, &status) else {
            return match status.code() {
                Code::Unimplemented => Error::invalid(format!(
                    "{url} does not know this call: is it a forebay-server of the same version?"
                )),
                _ => Error::from(status),
            };
        };
        let advice = "check --endpoint and that forebay-server runs there";
        Error::new(Kind::Retry, format!("cannot reach the cache at {url}: {cause}: {advice}"))
    }
}

/// The innermost cause of a failure on this side; `None` when the other side answered with an error.
fn root_cause(url: &str, status: &Status) -> Option<String> {
    match reason(url, std::error::Error::source(status)?) {
        text if text == "deadline has elapsed" => {
            Some(format!("no connection within {} s", CONNECT_TIMEOUT.as_secs()))
        }
        text => Some(text),
    }
}

/// `http://host:port`, `https://host:port` or `unix:/path` of what a person typed.
fn normal(url: &str) -> Result<String> {
    let trimmed = url.trim().trim_end_matches('/');
    if let Some(path) = trimmed.strip_prefix("unix:") {
        // Some write the path with an empty host.
        let path = path.strip_prefix("//").unwrap_or(path);
        return match path.starts_with('/') {
            true => Ok(format!("unix:{path}")),
            false => Err(not_an_address(url)),
        };
    }
    let full = match trimmed.contains("://") {
        true => trimmed.to_owned(),
        false => format!("http://{trimmed}"),
    };
    let uri: http::Uri = full.parse().map_err(|_| not_an_address(url))?;
    match (uri.scheme_str(), uri.port_u16()) {
        (Some("http" | "https"), Some(1..)) if uri.path() == "/" && uri.query().is_none() => Ok(full),
        _ => Err(not_an_address(url)),
    }
}

fn not_an_address(url: &str) -> Error {
    Error::invalid(format!(
        "`{url}` is not the address of a cache: use http://host:port, https://host:port, or unix:/path"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn a_node_with_tls_is_told_from_one_that_is_not_there() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let node = Node::new(&listener.local_addr().unwrap().to_string()).unwrap();
        tokio::spawn(async move {
            while let Ok((mut tcp, _)) = listener.accept().await {
                // Its alert to who speaks no TLS.
                tcp.write_all(b"\x15\x03\x03\0\x02\x02\x46").await.ok();
                while matches!(tcp.read(&mut [0; 1024]).await, Ok(1..)) {}
            }
        });
        let e = tokio::time::timeout(Duration::from_secs(20), node.status()).await;
        let e = e.expect("an answer").unwrap_err();
        assert!(e.message.contains("if TLS is, use https://") && e.message.contains(node.url()), "{e}");
    }

    #[test]
    fn addresses_with_and_without_a_scheme() {
        for good in ["http://h:1", "h:1", " h:1 ", "http://h:1/"] {
            assert_eq!(normal(good).unwrap(), "http://h:1", "{good}");
        }
        assert_eq!(normal("https://h:1/").unwrap(), "https://h:1");
        assert_eq!(normal("[::1]:7070").unwrap(), "http://[::1]:7070");
        for good in ["unix:/run/f.sock", "unix:///run/f.sock"] {
            assert_eq!(normal(good).unwrap(), "unix:/run/f.sock");
        }
        for bad in [
            "",
            "h",
            "http://h",
            "h:0",
            "h:99999",
            "h:x",
            "ftp://h:1",
            "h:1/path",
            "http://a b:1",
            "https://h",
            "unix:f.sock",
            "unix:",
        ] {
            let e = normal(bad).unwrap_err();
            assert_eq!(e.kind, Kind::Invalid);
            assert!(e.message.contains(bad), "{e}");
        }
    }
}
