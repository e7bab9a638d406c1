//! The sums of a source.

use std::sync::atomic::AtomicU64;

/// Sums since the source was made. `file://` counts like S3.
#[derive(Debug, Default)]
pub struct SourceCounters {
    /// Requests that carried column data or raw blocks.
    pub s3_requests: AtomicU64,
    /// Bytes of column data and raw blocks.
    pub s3_bytes: AtomicU64,
    /// Listings, heads and footers.
    pub footer_requests: AtomicU64,
    /// Bytes received by these.
    pub footer_bytes: AtomicU64,
    /// Attempts that failed and could be tried again.
    pub retries: AtomicU64,
    /// Segments that did not decode and were fetched again.
    pub damaged: AtomicU64,
    /// Compressed bytes of the column chunks that were decoded.
    pub parquet_bytes_decoded: AtomicU64,
    /// Bytes of Arrow buffers that they became.
    pub arrow_bytes_decoded: AtomicU64,
    /// Processor time of decoding them, in microseconds.
    pub decode_cpu_us: AtomicU64,
}
