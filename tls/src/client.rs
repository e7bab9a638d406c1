//! The side of a program that connects.
//!
//! Its files are looked at whenever it connects, so it needs no task. Files that make no sense leave the last
//! good ones in force.

mod stream;

pub use stream::ClientStream;

use crate::explain::explained;
use crate::files::{Stamps, TlsFiles, settled};
use crate::material::Material;
use crate::provider::PROVIDER;
use forebay_proto::{Error, Result};
use parking_lot::Mutex;
use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// A server of HTTP/2 speaks first. What it says is waited for this long: one behind a proxy may not.
const FIRST: Duration = Duration::from_millis(500);
const FIRST_BYTES: usize = 64;

/// How a program connects by TLS. Cheap to clone; clones share what they read.
#[derive(Debug, Clone, Default)]
pub struct ClientTls(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    files: TlsFiles,
    loaded: Mutex<Option<Loaded>>,
}

#[derive(Debug)]
struct Loaded {
    /// What the files looked like when they were last read, whether that succeeded or not.
    seen: Stamps,
    config: Arc<ClientConfig>,
}

impl ClientTls {
    /// By these files: authorities, or else those that the system believes; certificate and key, if there is
    /// one. Reads nothing yet.
    pub fn new(files: TlsFiles) -> Self {
        Self(Arc::new(Shared { files, loaded: Mutex::default() }))
    }

    /// Reads the files, so that mistakes in them are known early. `Invalid` names the file. Not for an async
    /// thread.
    pub fn load(&self) -> Result<()> {
        self.config().map(drop)
    }

    /// The configuration by the files as they are now. Not for an async thread.
    fn config(&self) -> Result<Arc<ClientConfig>> {
        let Shared { files, loaded } = &*self.0;
        let (mut loaded, now) = (loaded.lock(), files.stamps());
        let Some(known) = loaded.as_mut() else {
            let config = Arc::new(read(files)?);
            *loaded = Some(Loaded { seen: now, config: config.clone() });
            return Ok(config);
        };
        if known.seen != now {
            let (stamps, made) = settled(files, now, || read(files));
            known.seen = stamps;
            match made {
                Ok(config) => known.config = Arc::new(config),
                Err(e) => {
                    tracing::warn!(error = %e, "the new TLS files cannot be used: the old ones stay in force");
                }
            }
        }
        Ok(known.config.clone())
    }

    /// Connects to a port of a host and shakes hands. The caller sees to it that this takes no longer than it
    /// may.
    pub async fn dial(&self, host: &str, port: u16) -> io::Result<ClientStream<TcpStream>> {
        let tcp = TcpStream::connect((host, port)).await?;
        tcp.set_nodelay(true)?;
        self.connect(host, tcp).await
    }

    /// Shakes hands with a host over a connection.
    pub async fn connect<T: AsyncRead + AsyncWrite + Unpin>(
        &self,
        host: &str,
        stream: T,
    ) -> io::Result<ClientStream<T>> {
        let tls = self.clone();
        let config = spawn_blocking(move || tls.config()).await.map_err(io::Error::other)?;
        let config = config.map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        let wrong = |_| io::Error::other(format!("`{host}` is no host name that a certificate can be for"));
        let name = ServerName::try_from(host.to_owned()).map_err(wrong)?;
        let mut stream = TlsConnector::from(config).connect(name, stream).await.map_err(explained)?;
        // The server may refuse this side's certificate only now.
        let mut first = vec![0; FIRST_BYTES];
        let read = match timeout(FIRST, stream.read(&mut first)).await {
            Ok(Ok(0)) => {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closes the connection"));
            }
            Ok(read) => read.map_err(explained)?,
            Err(_) => 0,
        };
        first.truncate(read);
        Ok(ClientStream::new(stream, first))
    }
}

fn read(files: &TlsFiles) -> Result<ClientConfig> {
    let Material { identity, authorities, revoked, .. } = Material::read(files)?;
    let roots = match authorities {
        Some(roots) => roots,
        None => Arc::new(system_roots()?),
    };
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, PROVIDER.clone())
        .with_crls(revoked)
        .only_check_end_entity_revocation()
        .allow_unknown_revocation_status()
        .build()
        .map_err(|e| Error::invalid(format!("certificates of servers cannot be checked: {e}")))?;
    let builder = ClientConfig::builder_with_provider(PROVIDER.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| Error::invalid(format!("TLS cannot be set up: {e}")))?
        .with_webpki_verifier(verifier);
    let mut config = match identity {
        Some(identity) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity))),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// The authorities that this machine believes.
fn system_roots() -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    match roots.is_empty() {
        true => Err(Error::invalid(
            "this machine has no list of authorities: name a file of them (FOREBAY_CA, or [tls] ca)",
        )),
        false => Ok(roots),
    }
}
