//! Reading training data through Forebay: one rank's batches of a dataset, from a cache or from the object store itself.
//!
//! [`Access`] says where data comes from, [`Dataset`] is a dataset opened there, [`Loader`] hands out its batches.
//! [`survey`] asks all nodes of a cache what they hold; [`counters`] says what a stretch of reading cost; [`routing`]
//! chooses the node for each segment.

mod access;
#[cfg(feature = "cli")]
pub mod args;
pub mod counters;
mod dataset;
mod direct;
mod endpoints;
pub mod loader;
mod node;
pub mod origin;
mod pool;
pub mod routing;
pub mod stream;
pub mod survey;

pub use access::Access;
pub use dataset::{Dataset, DatasetSpec};
pub use direct::Direct;
pub use endpoints::Endpoints;
pub use loader::{Batch, EpochSummary, Event, Loader, LoaderSettings};
pub use node::Node;
