//! What one connection to the slow S3 carries: a large object by a single GET.

use crate::harness::s3::S3Server;
use futures::TryStreamExt;
use object_store::ObjectStoreExt;
use object_store::path::Path;
use std::time::Instant;

/// A second's worth at 90 MB/s.
const BYTES: usize = 90_000_000;

/// MB/s, the wait for the first byte included, each time it is read.
pub(super) async fn read(s3: &S3Server, endpoint: &str, times: usize) -> anyhow::Result<Vec<f64>> {
    let path = Path::from("connection/object");
    s3.put(path.as_ref(), vec![7u8; BYTES]);
    let mut rates = Vec::new();
    for _ in 0..times {
        // A new client opens a connection of its own.
        let store = s3.client(endpoint)?;
        let start = Instant::now();
        let mut body = store.get(&path).await?.into_stream();
        let mut bytes = 0;
        while let Some(piece) = body.try_next().await? {
            bytes += piece.len();
        }
        let seconds = start.elapsed().as_secs_f64();
        anyhow::ensure!(bytes == BYTES, "{bytes} bytes were read, not {BYTES}");
        rates.push(bytes as f64 / 1e6 / seconds);
    }
    Ok(rates)
}
