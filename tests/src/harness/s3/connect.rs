//! A proxy by CONNECT, for clients that speak TLS with hosts that no resolver knows: one server is behind all
//! names.

use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use crate::harness::tap::listen_at;

/// What a client may say before its connection is through.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// A running proxy; cut when dropped.
pub struct ConnectProxy {
    /// `http://127.0.0.1:PORT`
    pub endpoint: String,
    asked: Arc<Mutex<Vec<String>>>,
    /// `None` once it is dropped.
    runtime: Option<Runtime>,
}

impl ConnectProxy {
    /// Connects clients to `to`, whatever host they name.
    pub fn start(to: SocketAddr) -> anyhow::Result<Self> {
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let (runtime, address) = listen_at("127.0.0.1:0", {
            let asked = asked.clone();
            move |near| {
                let asked = asked.clone();
                async move {
                    // Who goes away ends it.
                    through(near, to, &asked).await.ok();
                }
            }
        })?;
        Ok(Self { endpoint: format!("http://{address}"), asked, runtime: Some(runtime) })
    }

    /// The hosts that clients named, with their ports.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().clone()
    }
}

impl Drop for ConnectProxy {
    fn drop(&mut self) {
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// One connection: `CONNECT HOST:PORT HTTP/1.1`, headers, an empty line, and then what it is for.
async fn through(mut near: TcpStream, to: SocketAddr, asked: &Mutex<Vec<String>>) -> anyhow::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        anyhow::ensure!(head.len() < HEAD_BYTES_MAX, "a head of more than {HEAD_BYTES_MAX} bytes");
        head.push(near.read_u8().await?);
    }
    let head = String::from_utf8(head)?;
    let mut words = head.split_whitespace();
    let (Some("CONNECT"), Some(host)) = (words.next(), words.next()) else {
        anyhow::bail!("no CONNECT: {head}");
    };
    asked.lock().push(host.to_owned());
    let mut far = TcpStream::connect(to).await?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    near.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    copy_bidirectional(&mut near, &mut far).await?;
    Ok(())
}
