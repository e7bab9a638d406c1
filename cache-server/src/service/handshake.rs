//! Shaking hands by TLS: in each connection's own task, within the time that strangers get.

use super::admission::Place;
use super::refusals::TurnedAway;
use crate::settings::{LimitSettings, TlsSettings};
use crate::tls::PeerCertificate;
use forebay_proto::Result;
use forebay_tls::{Purpose, ServerStream, ServerTls};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(2);

/// TLS of the listeners of a node that has a certificate.
#[derive(Debug)]
pub struct Handshakes {
    tls: Arc<ServerTls>,
    patience: Duration,
    /// Those that came to nothing.
    failed: AtomicU64,
}

/// What a client proved of itself; cheap to clone, for each of its requests.
pub type ProvenCertificate = Option<Arc<PeerCertificate>>;

impl Handshakes {
    /// `None` where the node has no certificate. Reads files: not for an async thread. `Invalid` names the
    /// one that is wrong.
    pub fn open(settings: &TlsSettings, limits: &LimitSettings) -> Result<Option<Arc<Self>>> {
        if !settings.is_on() {
            return Ok(None);
        }
        let tls = ServerTls::open(settings.files(), settings.clients()?)?;
        let patience = Duration::from_secs_f64(limits.handshake_s);
        Ok(Some(Arc::new(Self { tls, patience, failed: AtomicU64::new(0) })))
    }

    /// Takes new files when they come, until `stop` is called.
    pub async fn watch(self: Arc<Self>, stop: CancellationToken) {
        self.tls.clone().watch(LOOK, stop).await;
    }

    /// Shakes hands with a client; `None` where that comes to nothing. Its connection is cut when its
    /// certificate does not hold any more.
    pub async fn shake<T: AsyncRead + AsyncWrite + Unpin>(
        &self,
        purpose: Purpose,
        stream: T,
        place: &Place,
    ) -> Option<(ServerStream<T>, ProvenCertificate)> {
        let shaking = timeout(self.patience, self.tls.accept(purpose, stream, place.evicted.clone()));
        match place.evicted.run_until_cancelled(shaking).await? {
            Ok(Ok(stream)) => {
                let certificate = stream.client.as_deref().map(|names| Arc::new(names.into()));
                Some((stream, certificate))
            }
            Ok(Err(e)) => {
                self.failed.fetch_add(1, Relaxed);
                tracing::debug!(error = %e, ?purpose, from = ?place.address, "a TLS handshake failed");
                None
            }
            Err(_) => {
                place.ends(TurnedAway::Silent);
                None
            }
        }
    }

    /// Handshakes that failed since the start.
    pub fn failed(&self) -> u64 {
        self.failed.load(Relaxed)
    }

    /// How often new files could not be used.
    pub fn failed_reloads(&self) -> u64 {
        self.tls.failed_reloads()
    }

    /// The hosts that the certificate in force is for, unless `host` is one of them.
    pub fn hosts_without(&self, host: &str) -> Option<Vec<String>> {
        self.tls.hosts_without(host)
    }

    /// The certificate in force by its serial number, and the seconds until it ends; 0 once it has.
    pub fn certificate(&self) -> (String, u64) {
        self.tls.certificate()
    }
}
