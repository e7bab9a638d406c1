//! A connection that does not wait for ever for its client to take bytes, and lets others have their turn.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Bytes that a connection sends before others have their turn: a client on this machine takes them as fast
/// as they come.
const TURN_BYTES: usize = 2 << 20;

/// A connection that ends when its client has taken no bytes for some time.
pub struct Patient<T> {
    stream: T,
    patience: Duration,
    /// Runs while the client takes nothing.
    waiting: Option<Pin<Box<Sleep>>>,
    /// Bytes sent since others had their turn.
    sent: usize,
}

impl<T> Patient<T> {
    /// It ends after so long.
    pub fn new(stream: T, patience: Duration) -> Self {
        Self { stream, patience, waiting: None, sent: 0 }
    }

    /// The connection below.
    pub fn into_inner(self) -> T {
        self.stream
    }

    /// Whether it is the others' turn.
    fn yields(&mut self, cx: &mut Context<'_>) -> bool {
        let is_due = self.sent >= TURN_BYTES;
        if is_due {
            self.sent = 0;
            cx.waker().wake_by_ref();
        }
        is_due
    }

    fn watch(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(written) = written {
            self.waiting = None;
            self.sent += written.as_ref().copied().unwrap_or_default();
            return Poll::Ready(written);
        }
        self.sent = 0;
        let patience = self.patience;
        let waiting =
            self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + patience)));
        match waiting.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Patient<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Patient<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.yields(cx) {
            return Poll::Pending;
        }
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.yields(cx) {
            return Poll::Pending;
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
