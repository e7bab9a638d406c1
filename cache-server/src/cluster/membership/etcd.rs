//! The connection to etcd: one member of it at a time, another one after a failure.
//!
//! A client that balances over all members now and then asks a dead one; a node needs so little of etcd that
//! one connection does. HTTP/2 pings notice a silent member, `require_leader` one that lost its quorum.
//! Files of certificates and the password are read for each connection.

use crate::settings::ClusterSettings;
use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
use forebay_proto::{Backoff, Error};
use forebay_tls::PemFiles;
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// How long one call may take.
pub(super) const CALL: Duration = Duration::from_secs(3);

/// Waits after failures: a restarted etcd is found within seconds, and not by all nodes in the same instant.
pub(super) const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(2));

/// Between two HTTP/2 pings on a quiet connection. Not below 5 s: etcd hangs up on clients that ping more
/// often than its `--grpc-keepalive-min-time`.
const PING: Duration = Duration::from_secs(6);

/// What a key is about; its name follows.
pub(super) const NODES: &str = "nodes/";
pub(super) const REPLICAS: &str = "replicas/";
pub(super) const HOT: &str = "hot/";

/// A key; clusters with different prefixes share one etcd.
pub(super) fn key(settings: &ClusterSettings, kind: &str, name: &str) -> String {
    format!("{}/{kind}{name}", settings.etcd_prefix)
}

/// Connects to the `attempt`-th member, round and round; returns its URL too.
pub(super) async fn connect(settings: &ClusterSettings, attempt: usize) -> Result<(Client, String), String> {
    let url = settings.etcd.get(attempt % settings.etcd.len().max(1)).ok_or("no etcd is configured")?;
    let mut options = ConnectOptions::new()
        .with_connect_timeout(Duration::from_secs(2))
        .with_keep_alive(PING, CALL)
        .with_keep_alive_while_idle(true)
        .with_require_leader(true);
    if url.starts_with("https://") {
        let files = settings.etcd_files();
        let pem = spawn_blocking(move || files.pem()).await.map_err(|e| e.to_string())?;
        options = options.with_tls(tls(pem.map_err(|e| format!("{url}: {e}"))?));
    }
    if let (Some(user), Some(path)) = (&settings.etcd_user, &settings.etcd_password_file) {
        let password = tokio::fs::read_to_string(path).await;
        let password = password.map_err(|e| format!("{url}: the password file {}: {e}", path.display()))?;
        options = options.with_user(user, password.trim_end_matches(['\r', '\n']));
    }
    let client = call(url, Client::connect([url], Some(options))).await?;
    Ok((client, url.clone()))
}

/// Whom to believe and what to show, as the files have it now.
fn tls(pem: PemFiles) -> TlsOptions {
    let mut options = TlsOptions::new();
    if let Some(ca) = pem.ca {
        options = options.ca_certificate(Certificate::from_pem(ca));
    }
    if let (Some(cert), Some(key)) = (pem.cert, pem.key) {
        options = options.identity(Identity::from_pem(cert, key));
    }
    options
}

/// Writes how many copies there are to be of what lies under a URI, at the first member that takes it.
pub(super) async fn set_replicas(settings: &ClusterSettings, uri: &str, replicas: u32) -> Result<(), Error> {
    let key = key(settings, REPLICAS, uri);
    let mut failed = String::new();
    for attempt in 0..settings.etcd.len() {
        let written = async {
            let (mut client, url) = connect(settings, attempt).await?;
            match replicas {
                0 => call(&url, client.delete(key.as_str(), None)).await.map(drop),
                n => call(&url, client.put(key.as_str(), n.to_string(), None)).await.map(drop),
            }
        };
        match written.await {
            Ok(()) => return Ok(()),
            Err(e) => failed = e,
        }
    }
    Err(Error::retry(format!("the number of replicas cannot be kept: etcd does not answer: {failed}")))
}

/// A call with a limit of time; the error names the member.
pub(super) async fn call<T>(
    url: &str,
    future: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, String> {
    match timeout(CALL, future).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(failed(url, &error)),
        Err(_) => Err(format!("{url}: no answer within {} s", CALL.as_secs())),
    }
}

/// What went wrong at which member, in one line.
pub(super) fn failed(url: &str, error: &etcd_client::Error) -> String {
    let mut text = error.to_string();
    let mut cause: Option<&dyn std::error::Error> = match error {
        etcd_client::Error::GRpcStatus(status) => std::error::Error::source(status),
        other => std::error::Error::source(other),
    };
    while let Some(inner) = cause {
        text = inner.to_string();
        cause = inner.source();
    }
    format!("{url}: {text}")
}
