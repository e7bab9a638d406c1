//! A connection that a client made by TLS.

use super::open::Registration;
use crate::certificate::CertificateNames;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

/// A connection by TLS, after its handshake.
#[derive(Debug)]
pub struct ServerStream<T> {
    stream: TlsStream<T>,
    /// What the client's certificate says, if it has one.
    pub client: Option<Arc<CertificateNames>>,
    _registration: Option<Registration>,
}

impl<T> ServerStream<T> {
    pub(super) fn new(
        stream: TlsStream<T>,
        client: Option<Arc<CertificateNames>>,
        registration: Option<Registration>,
    ) -> Self {
        Self { stream, client, _registration: registration }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for ServerStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ServerStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
