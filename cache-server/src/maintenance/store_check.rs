//! A look at the object store when the node starts: wrong keys, a wrong endpoint or bucket are in its log
//! before the first reader meets them. It only tells; the node serves what it holds in any case.

use crate::allow::is_all_buckets;
use forebay_dataset::SegmentReader;
use std::time::Duration;
use tokio::time::timeout;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Lists a little of each bucket and prefix that may be read. Of all buckets there is none to ask for.
pub async fn run(source: SegmentReader, allow: Vec<String>) {
    for root in allow.iter().filter(|root| !root.starts_with("file:") && !is_all_buckets(root)) {
        match timeout(PATIENCE, source.try_list(root)).await {
            Ok(Ok(())) => tracing::debug!(root, "the object store answers"),
            Ok(Err(e)) => tracing::warn!(error = %e, "readers of what --allow names will fail"),
            Err(_) => tracing::warn!(
                root,
                "readers will wait: the object store has not answered for {} s",
                PATIENCE.as_secs()
            ),
        }
    }
}
