//! Wires for TLS: one that writes down all that passes, and one whose near end speaks TLS while its far end
//! is plain.

use anyhow::Context;
use forebay_client::TlsFiles;
use forebay_tls::{ClientCertificates, Purpose, ServerTls};
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

/// Bytes that are kept of each direction of each connection; the rest only passes.
const KEPT_BYTES: usize = 16 << 20;

/// A wire that writes down what passes; cut when dropped.
pub struct Tap {
    /// Where its near end is.
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Record>>>,
    /// `None` once it is dropped.
    runtime: Option<Runtime>,
}

/// One direction of a connection.
type Record = Arc<Mutex<Vec<u8>>>;

impl Tap {
    /// Lays a wire to an address, from a port of the loopback that the system chooses.
    pub fn start(to: SocketAddr) -> anyhow::Result<Self> {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (runtime, address) = listen({
            let seen = seen.clone();
            move |near| pass(near, to, seen.clone())
        })?;
        Ok(Self { address, seen, runtime: Some(runtime) })
    }

    /// Whether bytes passed in either direction.
    pub fn has(&self, bytes: &[u8]) -> bool {
        let records: Vec<Record> = self.seen.lock().clone();
        records.iter().any(|record| record.lock().windows(bytes.len()).any(|part| part == bytes))
    }

    /// How many bytes were written down.
    pub fn bytes(&self) -> usize {
        self.seen.lock().iter().map(|record| record.lock().len()).sum()
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

async fn pass(near: TcpStream, to: SocketAddr, seen: Arc<Mutex<Vec<Record>>>) {
    let Ok(far) = TcpStream::connect(to).await else { return };
    // Small messages must not wait.
    near.set_nodelay(true).ok();
    far.set_nodelay(true).ok();
    let [forth, back] = [(); 2].map(|()| Record::default());
    seen.lock().extend([forth.clone(), back.clone()]);
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    tokio::join!(copy(near_in, far_out, forth), copy(far_in, near_out, back));
}

async fn copy(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, record: Record) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        {
            let mut kept = record.lock();
            let more = read.min(KEPT_BYTES.saturating_sub(kept.len()));
            kept.extend_from_slice(&buffer[..more]);
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
    to.shutdown().await.ok();
}

/// A server with TLS before one without, for clients that speak HTTP/1.1; cut when dropped.
pub struct TlsFront {
    /// Where it is.
    pub address: SocketAddr,
    runtime: Option<Runtime>,
}

impl TlsFront {
    /// Stands before `to`, with the certificate of these files.
    pub fn start(files: TlsFiles, to: SocketAddr) -> anyhow::Result<Self> {
        let files = TlsFiles { ca: None, ..files };
        let tls = ServerTls::open(files, ClientCertificates::Optional)?;
        let (runtime, address) = listen(move |near| {
            let tls = tls.clone();
            async move {
                let stop = CancellationToken::new();
                let Ok(mut near) = tls.accept(Purpose::S3, near, stop).await else { return };
                let Ok(mut far) = TcpStream::connect(to).await else { return };
                far.set_nodelay(true).ok();
                // Who goes away ends it.
                copy_bidirectional(&mut near, &mut far).await.ok();
            }
        })?;
        Ok(Self { address, runtime: Some(runtime) })
    }
}

impl Drop for TlsFront {
    fn drop(&mut self) {
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

fn listen<F: Future<Output = ()> + Send + 'static>(
    serve: impl Fn(TcpStream) -> F + Send + 'static,
) -> anyhow::Result<(Runtime, SocketAddr)> {
    listen_at("127.0.0.1:0", serve)
}

/// Listens at an address, and serves each connection.
pub(super) fn listen_at<F: Future<Output = ()> + Send + 'static>(
    address: &str,
    serve: impl Fn(TcpStream) -> F + Send + 'static,
) -> anyhow::Result<(Runtime, SocketAddr)> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let listener = std::net::TcpListener::bind(address).context("a free port")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    runtime.spawn(async move {
        let Ok(listener) = TcpListener::from_std(listener) else { return };
        while let Ok((near, _)) = listener.accept().await {
            tokio::spawn(serve(near));
        }
    });
    Ok((runtime, address))
}
