//! The disk cache: segment files under a byte limit, with an index rebuilt from their headers at start.
//!
//! Promises: the limit holds at every instant, as `du` sees it, temporary files and folders included; a file
//! that does not verify is a miss, never data; a full or failing disk costs only what it holds, and heals.
//! The file whose next use is farthest away leaves first; a file that is pinned or being read stays. The
//! kernel's page cache is the RAM tier.
//!
//! ```text
//! DIR/lock                        held while a server uses the directory
//! DIR/v1/segments/a/ID.COLUMNS    segment files: id and a hash of the column names
//! DIR/v1/tmp/                     files being written; emptied at start
//! DIR/v1/pins                     pinned URIs
//! DIR/v1/AREA/NAME                small files that others keep beside the segments
//! ```
//!
//! Each part owns its state. One arrow means "uses":
//!
//! ```text
//! cache ─► segment_files ─► dirs ─► file, file_system     health, lock, block sizes
//!   │            │   └────► evict ─► index ─► quota, prefixes, holdings, map
//!   │            │                                        who leaves; which files there are
//!   ├─► rebuild                                           the files of a directory that is opened
//!   └─► pins, sidecar, copies, dataset_counts, scrub      each over segment_files
//! ```

mod cache;
pub(crate) mod copies;
mod counters;
mod dataset_counts;
pub(crate) mod dirs;
mod evict;
pub(crate) mod file;
mod file_system;
mod holdings;
mod index;
mod map;
mod pin_set;
mod pins;
pub(crate) mod policy;
mod prefixes;
mod quota;
mod rebuild;
mod scrub;
mod segment_files;
mod sidecar;
mod underway;
mod watch;

pub use cache::{DiskCache, DiskCacheSettings, Found, Written};
pub use file_system::RealDisk;
pub use holdings::{Occurrence, SegmentsHeld};
pub use prefixes::PrefixLimit;
pub use sidecar::Sidecar;

#[cfg(test)]
pub(crate) mod tests;
