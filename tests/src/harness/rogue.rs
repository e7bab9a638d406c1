//! Somebody who pretends to be a node, and counts what comes to them.

use super::tap::listen_at;
use forebay_client::TlsFiles;
use forebay_tls::{ClientCertificates, Purpose, ServerTls};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

/// A listener that counts; gone when dropped.
pub struct Rogue {
    /// Where it is; the same port of all other addresses of the loopback is its own too.
    pub address: SocketAddr,
    counts: Arc<RogueCounts>,
    /// `None` once it is dropped.
    runtime: Option<Runtime>,
}

/// What came to a rogue.
#[derive(Debug, Default)]
pub struct RogueCounts {
    /// Connections.
    pub connections: AtomicU64,
    /// Of these, those whose other side went through with the handshake.
    pub handshakes: AtomicU64,
    /// Bytes that were said to it, by TLS: after the handshake.
    pub bytes: AtomicU64,
}

impl Rogue {
    /// One without TLS.
    pub fn plain() -> anyhow::Result<Self> {
        Self::start(None)
    }

    /// One with TLS, that shows the certificate of these files.
    pub fn with_tls(files: TlsFiles) -> anyhow::Result<Self> {
        let files = TlsFiles { ca: None, ..files };
        Self::start(Some(ServerTls::open(files, ClientCertificates::Optional)?))
    }

    fn start(tls: Option<Arc<ServerTls>>) -> anyhow::Result<Self> {
        let counts = Arc::<RogueCounts>::default();
        let (runtime, address) = listen_at("0.0.0.0:0", {
            let counts = counts.clone();
            move |stream| serve(stream, tls.clone(), counts.clone())
        })?;
        let address = SocketAddr::from(([127, 0, 0, 1], address.port()));
        Ok(Self { address, counts, runtime: Some(runtime) })
    }

    /// Connections, handshakes that were completed, and bytes, so far.
    pub fn counts(&self) -> (u64, u64, u64) {
        let RogueCounts { connections, handshakes, bytes } = &*self.counts;
        (connections.load(Relaxed), handshakes.load(Relaxed), bytes.load(Relaxed))
    }
}

impl Drop for Rogue {
    fn drop(&mut self) {
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

async fn serve(stream: TcpStream, tls: Option<Arc<ServerTls>>, counts: Arc<RogueCounts>) {
    counts.connections.fetch_add(1, Relaxed);
    let Some(tls) = tls else { return count(stream, &counts).await };
    if let Ok(stream) = tls.accept(Purpose::Grpc, stream, CancellationToken::new()).await {
        counts.handshakes.fetch_add(1, Relaxed);
        count(stream, &counts).await;
    }
}

async fn count(mut stream: impl AsyncRead + Unpin, counts: &RogueCounts) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(read @ 1..) = stream.read(&mut bytes).await {
        counts.bytes.fetch_add(read as u64, Relaxed);
    }
}
