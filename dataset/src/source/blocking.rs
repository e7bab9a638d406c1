//! Work that asks the file system, off the async threads.

use forebay_proto::{Error, Result};

/// Runs `work` on the blocking pool.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|e| Err(Error::closed(format!("on a blocking thread: {e}"))))
}
