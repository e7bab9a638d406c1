//! A node's side of TLS.
//!
//! Its files are looked at on a timer. When they changed and make sense, new connections are served by the
//! new ones, with tickets of their own, and connections whose client certificate does not hold by them are
//! cut. A certificate counts as of the time at which its connection was made: one that expires ends no
//! connection, it opens none.

mod open;
mod stream;

pub use stream::ServerStream;

use crate::certificate::CertificateNames;
use crate::explain::explained;
use crate::files::{Stamps, TlsFiles, settled};
use crate::material::Material;
use crate::provider::PROVIDER;
use arc_swap::ArcSwap;
use forebay_proto::{Error, Result};
use open::{Certified, OpenConnections, Registration};
use parking_lot::Mutex;
use rustls::client::verify_server_name;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{RootCertStore, ServerConfig};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// What a client still sends whose handshake failed is read for so long, and no more of it than this.
const LINGER: Duration = Duration::from_millis(500);
const LINGER_BYTES_MAX: u64 = 64 << 10;

/// Which client certificates are asked for where authorities are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientCertificates {
    /// Who has none is refused.
    #[default]
    Required,
    /// Who has none is let in without.
    Optional,
}

/// What a listener speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// HTTP/2.
    Grpc,
    /// HTTP/1.1, with the same client certificates as gRPC.
    Metrics,
    /// HTTP/1.1, whose clients have keys of their own: certificates are never required.
    S3,
}

/// A node's side of TLS.
#[derive(Debug)]
pub struct ServerTls {
    files: TlsFiles,
    clients: ClientCertificates,
    current: ArcSwap<ServerState>,
    /// What the files looked like when they were last read, whether that succeeded or not.
    seen: Mutex<Stamps>,
    open: Arc<Mutex<OpenConnections>>,
    failed: AtomicU64,
}

/// What new connections are served by.
#[derive(Debug)]
struct ServerState {
    grpc: Arc<ServerConfig>,
    metrics: Arc<ServerConfig>,
    s3: Arc<ServerConfig>,
    /// Of client certificates; `None` where none are asked for.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    identity: Arc<CertifiedKey>,
    names: CertificateNames,
}

impl ServerTls {
    /// By these files, of which certificate and key are needed; authorities make it ask for client
    /// certificates. `Invalid` names the file that is wrong. Not for an async thread.
    pub fn open(files: TlsFiles, clients: ClientCertificates) -> Result<Arc<Self>> {
        let seen = files.stamps();
        let state = ServerState::read(&files, clients)?;
        Ok(Arc::new(Self {
            files,
            clients,
            current: ArcSwap::from_pointee(state),
            seen: Mutex::new(seen),
            open: Arc::default(),
            failed: AtomicU64::new(0),
        }))
    }

    /// Shakes hands. `cut` is called if the client's certificate does not hold any more. The caller sees to
    /// it that this takes no longer than it may.
    pub async fn accept<T: AsyncRead + AsyncWrite + Unpin>(
        self: &Arc<Self>,
        purpose: Purpose,
        stream: T,
        cut: CancellationToken,
    ) -> io::Result<ServerStream<T>> {
        let state = self.current.load_full();
        let config = match purpose {
            Purpose::Grpc => &state.grpc,
            Purpose::Metrics => &state.metrics,
            Purpose::S3 => &state.s3,
        };
        let stream = match TlsAcceptor::from(config.clone()).accept(stream).into_fallible().await {
            Ok(stream) => stream,
            Err((e, stream)) => {
                farewell(stream).await;
                return Err(explained(e));
            }
        };
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let chain: Vec<_> = chain.iter().map(|one| one.clone().into_owned()).collect();
        let Some(first) = chain.first() else { return Ok(ServerStream::new(stream, None, None)) };
        let names = CertificateNames::read(first).map_err(|e| io::Error::other(e.message))?;
        let registration = self.register(&state, Certified { chain, since: UnixTime::now(), cut })?;
        Ok(ServerStream::new(stream, Some(Arc::new(names)), Some(registration)))
    }

    /// Lists a connection that was made by a state, which may have been replaced meanwhile.
    fn register(&self, by: &Arc<ServerState>, connection: Certified) -> io::Result<Registration> {
        let mut open = self.open.lock();
        let current = self.current.load();
        if !Arc::ptr_eq(by, &current) && !current.holds(&connection) {
            return Err(io::Error::other("its certificate does not hold any more"));
        }
        let number = open.next;
        open.next += 1;
        open.all.insert(number, connection);
        Ok(Registration { open: self.open.clone(), number })
    }

    /// Looks at the files each `interval` until `stop` is called.
    pub async fn watch(self: Arc<Self>, interval: Duration, stop: CancellationToken) {
        let look = async {
            loop {
                sleep(interval).await;
                let tls = self.clone();
                if spawn_blocking(move || tls.reload()).await.is_err() {
                    tracing::warn!("looking for new certificates broke off; it goes on");
                }
            }
        };
        stop.run_until_cancelled(look).await;
    }

    /// Takes the files as they are now, if they changed and make sense. Not for an async thread.
    pub fn reload(&self) {
        let mut seen = self.seen.lock();
        let now = self.files.stamps();
        if *seen == now {
            return;
        }
        let (stamps, read) = settled(&self.files, now, || ServerState::read(&self.files, self.clients));
        *seen = stamps;
        match read {
            Ok(state) => self.swap(state),
            Err(e) => {
                self.failed.fetch_add(1, Relaxed);
                tracing::warn!(error = %e, "the new TLS files cannot be used: the old ones stay in force");
            }
        }
    }

    fn swap(&self, state: ServerState) {
        tracing::info!(serial = state.names.serial, "TLS goes by new files from here on");
        self.current.store(Arc::new(state));
        let current = self.current.load();
        for (number, connection) in &self.open.lock().all {
            if !current.holds(connection) {
                tracing::info!(number, "a connection is cut: its certificate does not hold any more");
                connection.cut.cancel();
            }
        }
    }

    /// How often new files could not be used.
    pub fn failed_reloads(&self) -> u64 {
        self.failed.load(Relaxed)
    }

    /// The own certificate in force: its serial number, and the seconds until it ends; 0 once it has.
    pub fn certificate(&self) -> (String, u64) {
        let current = self.current.load();
        let left = current.names.ends_at - UnixTime::now().as_secs() as i64;
        (current.names.serial.clone(), left.max(0) as u64)
    }

    /// The hosts that the own certificate in force is for; `None` if `host` is one of them, as clients check
    /// it.
    pub fn hosts_without(&self, host: &str) -> Option<Vec<String>> {
        let current = self.current.load();
        (!current.is_for(host)).then(|| current.names.hosts())
    }
}

/// Closes a connection whose other end was told why. If what it still sends were not read, it would see the
/// connection break rather than the reason.
async fn farewell<T: AsyncRead + AsyncWrite + Unpin>(mut stream: T) {
    let close = async {
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(LINGER_BYTES_MAX), &mut tokio::io::sink()).await
    };
    // One that has gone is no trouble.
    timeout(LINGER, close).await.ok();
}

impl ServerState {
    fn read(files: &TlsFiles, clients: ClientCertificates) -> Result<Self> {
        let Material { identity, names, authorities, revoked } = Material::read(files)?;
        let identity =
            identity.ok_or_else(|| Error::invalid("TLS needs a certificate and a key: name their files"))?;
        let verifier = |roots: &Arc<RootCertStore>, needs: ClientCertificates| {
            let builder = WebPkiClientVerifier::builder_with_provider(roots.clone(), PROVIDER.clone())
                .with_crls(revoked.clone())
                .only_check_end_entity_revocation()
                // Of an authority without a list.
                .allow_unknown_revocation_status();
            let builder = match needs {
                ClientCertificates::Required => builder,
                ClientCertificates::Optional => builder.allow_unauthenticated(),
            };
            builder.build().map_err(|e| Error::invalid(format!("client certificates cannot be checked: {e}")))
        };
        let of = |needs| authorities.as_ref().map(|roots| verifier(roots, needs)).transpose();
        let (wanted, optional) = (of(clients)?, of(ClientCertificates::Optional)?);
        let config = |verifier: &Option<Arc<dyn ClientCertVerifier>>, protocol: &[u8]| {
            let builder = ServerConfig::builder_with_provider(PROVIDER.clone())
                .with_protocol_versions(&[&rustls::version::TLS13])
                .map_err(|e| Error::invalid(format!("TLS cannot be set up: {e}")))?;
            let builder = match verifier {
                Some(verifier) => builder.with_client_cert_verifier(verifier.clone()),
                None => builder.with_no_client_auth(),
            };
            let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(identity.clone())));
            config.alpn_protocols = vec![protocol.to_vec()];
            config.ignore_client_order = true;
            Ok::<_, Error>(Arc::new(config))
        };
        Ok(Self {
            grpc: config(&wanted, b"h2")?,
            metrics: config(&wanted, b"http/1.1")?,
            s3: config(&optional, b"http/1.1")?,
            verifier: wanted,
            identity,
            names,
        })
    }

    fn is_for(&self, host: &str) -> bool {
        let Some(own) = self.identity.cert.first() else { return false };
        match (ParsedCertificate::try_from(own), ServerName::try_from(host)) {
            (Ok(own), Ok(host)) => verify_server_name(&own, &host).is_ok(),
            _ => false,
        }
    }

    fn holds(&self, connection: &Certified) -> bool {
        let Some(verifier) = &self.verifier else { return true };
        let Some((first, rest)) = connection.chain.split_first() else { return true };
        verifier.verify_client_cert(first, rest, connection.since).is_ok()
    }
}
