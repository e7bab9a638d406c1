//! From an object store to Arrow segments: the code that reads a dataset, shared by the cache's nodes and by
//! the client's direct mode.
//!
//! * [`SegmentReader`]: freezes a URI to a manifest, and reads segments of it. Below it: `source`, ranges of
//!   objects with retries, limits and clear errors; `parquet`, footers, the bytes of a segment's columns, and
//!   those decoded to one record batch; `freeze`.
//! * [`ObjectReader`]: any object, byte for byte.
//! * [`schema`]: the Arrow schema that a dataset's segments have.
//! * [`view`]: a split of a dataset, or a mix of several.
//! * [`SegmentBatch`]: the rows of a segment, narrow columns packed row by row ([`PackedSchema`]).
//! * [`pool`]: large buffers that are used again.
//! * [`ready`]: a segment that is ready to be read. [`map_guard`]: maps of files that others may cut.
//! * [`shared`]: memory that a node shares with a reader on its host.
//! * [`node_memory`]: how much memory a node takes unless told otherwise.
//! * [`off_thread`]: the threads for work that async ones must not do.
//! * [`stream`]: the messages that a ticket asks for, made of chosen rows of segments.

mod delta;
mod filter;
mod freeze;
pub mod map_guard;
pub mod node_memory;
mod object_reader;
pub mod off_thread;
mod packed;
mod parquet;
mod partitions;
pub mod pool;
mod prefetch;
mod priority;
pub mod ready;
pub mod schema;
mod segment_batch;
mod selection;
pub mod shared;
mod slice_bytes;
pub mod source;
pub mod stream;
mod token_file;
mod urgency;
pub mod view;

pub use freeze::Frozen;
pub use object_reader::{ListPage, ObjectReader};
pub use packed::{Form, PackedSchema, RowLayout, SplitRows};
pub use parquet::{Cost, SegmentReader, SegmentRun};
pub use priority::{PrioritySemaphore, SemaphorePermit};
pub use ready::{MemoryGuard, ReadySegment};
pub use schema::union::Conflict;
pub use segment_batch::SegmentBatch;
pub use selection::Selection;
pub use slice_bytes::slice_bytes;
#[cfg(feature = "cli")]
pub use source::SourceArgs;
pub use source::{SourceCounters, SourceSettings};
pub use token_file::TokenFile;
pub use urgency::Urgency;
pub use view::View;
