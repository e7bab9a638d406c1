//! A connection by TLS to a server, whose errors say what they mean.
//!
//! By TLS 1.3 a server refuses a client's certificate only when the client believes the handshake to be over:
//! the refusal comes where the first bytes are read.

use crate::explain::explained;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::client::TlsStream;

/// A connection by TLS, after its handshake.
#[derive(Debug)]
pub struct ClientStream<T> {
    stream: TlsStream<T>,
    /// The first bytes, which were read already and not taken yet.
    first: Vec<u8>,
}

impl<T> ClientStream<T> {
    pub(super) fn new(stream: TlsStream<T>, first: Vec<u8>) -> Self {
        Self { stream, first }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for ClientStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.first.is_empty() {
            let taken = self.first.len().min(buffer.remaining());
            buffer.put_slice(&self.first[..taken]);
            self.first.drain(..taken);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer).map_err(explained)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ClientStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes).map_err(explained)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts).map_err(explained)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx).map_err(explained)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
