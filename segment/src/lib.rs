//! From an object store to Arrow segments: the code that reads a dataset, shared by the cache's nodes and by the
//! client's direct mode.
//!
//! * [`source`]: object stores, opened by URI, with retries, limits and clear errors.
//! * [`freeze`]: a URI becomes a manifest.
//! * [`fetch`]: the bytes of a segment's projected column chunks, in few ranged reads.
//! * [`decode`]: those bytes become one record batch.
//! * [`cost`]: what that takes in memory.
//! * [`schema`]: the Arrow schema that a dataset's segments have.
//! * [`view`]: a split of a dataset, or a mix of several.
//! * [`gather`]: chosen rows of segments as one batch.
//! * [`wire`]: batches as messages, and back.
//! * [`answer`]: the messages that a ticket asks for.

pub mod answer;
pub mod cost;
pub mod decode;
pub mod fetch;
mod footer;
pub mod freeze;
pub mod gather;
pub mod schema;
pub mod source;
pub mod view;
pub mod wire;

pub use cost::Cost;
pub use freeze::Frozen;
pub use source::{Source, SourceCounters, SourceSettings, Urgency, jitter};
pub use view::View;
