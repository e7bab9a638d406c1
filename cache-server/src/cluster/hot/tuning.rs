//! The figures of hot segments.

use std::time::Duration;

/// Between two measurements of the load.
pub const MEASURE_EVERY: Duration = Duration::from_secs(1);

/// Saturated: at least this load, in this many measurements in a row.
pub const SATURATED: (f64, u32) = (0.9, 2);

/// Cool: less than this load with all readers of the hot segments, in this many measurements in a row.
pub const COOL: (f64, u32) = (0.6, 10);

/// From this load on bytes are counted by segment.
pub const COUNTING_LOAD: f64 = 0.3;

/// From this load on a node takes no copies.
pub const BUSY_LOAD: f64 = 0.85;

/// Segments that are made hot at a time.
pub const SEGMENTS_AT_ONCE: usize = 64;

/// Segments that are hot in all.
pub const SEGMENTS_MAX: usize = 512;

/// Bytes of what a node publishes at most: others take 256 KiB with the key.
pub const PUBLISHED_BYTES_MAX: usize = 248 << 10;

/// Copies of a segment beside its owner and replicas.
pub const COPIES_MAX: usize = 16;

/// The hottest segments are those that make up this share of the heat.
pub const HOTTEST_SHARE: f64 = 0.6;

/// Heat in bytes below which a segment is forgotten.
pub const HEAT_MIN: f64 = 1024.0;

/// How long a node may take to take copies. This one measures nothing meanwhile.
pub const COPY: Duration = Duration::from_secs(60);

/// By how much serving may run ahead of its limit.
pub const BURST: Duration = Duration::from_millis(20);

/// A copy that was never listed is dropped after this time.
pub const NEVER_LISTED: Duration = Duration::from_secs(60);

/// A copy that is no longer listed is dropped after this time: the list goes with its owner's lease, and may
/// be back at once.
pub const UNLISTED: Duration = Duration::from_secs(10);
