//! Connections to the gRPC service: by TCP, or over the node's Unix socket; how many are open, and since when
//! none is.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::time::sleep;
use tonic::transport::server::Connected;

/// A connection to the gRPC service.
#[derive(Debug)]
pub struct Connection {
    transport: Transport,
    _open: OpenConnection,
}

#[derive(Debug)]
enum Transport {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// How many connections are open. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Connections(Arc<watch::Sender<usize>>);

/// Counts as open until dropped.
#[derive(Debug)]
pub struct OpenConnection(Connections);

impl Connections {
    /// Counts a connection by TCP.
    pub fn tcp(&self, stream: TcpStream) -> Connection {
        self.open(Transport::Tcp(stream))
    }

    /// Counts one over the Unix socket.
    pub fn unix(&self, stream: UnixStream) -> Connection {
        self.open(Transport::Unix(stream))
    }

    /// Counts one that another service holds, until dropped.
    pub fn other(&self) -> OpenConnection {
        self.0.send_modify(|open| *open += 1);
        OpenConnection(self.clone())
    }

    fn open(&self, transport: Transport) -> Connection {
        Connection { transport, _open: self.other() }
    }

    /// Waits until none has been open for `time`.
    pub async fn idle_for(&self, time: Duration) {
        let mut open = self.0.subscribe();
        loop {
            let is_open = *open.borrow_and_update() > 0;
            tokio::select! {
                () = sleep(time), if !is_open => return,
                // The sender is here: it cannot have gone.
                _ = open.changed() => {}
            }
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.0.send_modify(|open| *open -= 1);
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().transport {
            Transport::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Transport::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().transport {
            Transport::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Transport::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().transport {
            Transport::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Transport::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().transport {
            Transport::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Transport::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().transport {
            Transport::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Transport::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{Instant, timeout};

    #[tokio::test]
    async fn idle_is_counted_from_the_last_connection() {
        let connections = Connections::default();
        let (short, long) = (Duration::from_millis(10), Duration::from_millis(100));
        let (one, two) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let (one, two) = (connections.unix(one.0), connections.unix(two.0));
        assert!(timeout(long, connections.idle_for(short)).await.is_err(), "two are open");
        drop(one);
        assert!(timeout(long, connections.idle_for(short)).await.is_err(), "one is open");
        drop(two);
        connections.idle_for(short).await;
    }

    #[tokio::test]
    async fn a_short_visit_begins_the_time_again() {
        let (connections, time) = (Connections::default(), Duration::from_secs(1));
        let waiting = connections.clone();
        let idle = tokio::spawn(async move { waiting.idle_for(time).await });
        sleep(time / 10).await;
        let visit = Instant::now();
        drop(connections.unix(UnixStream::pair().unwrap().0));
        idle.await.unwrap();
        assert!(visit.elapsed() >= time);
    }
}
