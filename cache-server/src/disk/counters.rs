//! What the disk cache counts.

use std::sync::atomic::AtomicU64;

/// Sums since start.
#[derive(Debug, Default)]
pub struct DiskCounters {
    /// Files that left to make room, or to keep to a limit.
    pub evictions: AtomicU64,
    /// Files that failed their checks.
    pub corrupt: AtomicU64,
    /// Bytes written to files that took their place.
    pub bytes_written: AtomicU64,
    /// Segments not stored: no room, or the disk failed.
    pub not_stored: AtomicU64,
    /// Times that the whole index was gone through for victims.
    pub scans: AtomicU64,
    /// Bytes that the scrub has read.
    pub scrubbed_bytes: AtomicU64,
    /// Times that a directory was set aside.
    pub dir_faults: AtomicU64,
}
