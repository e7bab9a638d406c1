//! Work that async threads must not do: it touches mapped pages and copies megabytes.

use forebay_proto::{Error, Result};

/// Runs `work` off the async threads.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let span = tracing::Span::current();
    tokio::task::spawn_blocking(move || span.in_scope(work))
        .await
        .unwrap_or_else(|e| Err(Error::corrupt(format!("gathering rows failed: {e}"))))
}
