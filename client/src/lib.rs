//! Reading training data through Forebay: the loader, its streams, and the command `forebay`.
//!
//! * [`access`], [`endpoints`]: where data comes from, a cache or the store itself.
//! * [`args`]: that choice as command-line arguments.
//! * [`dataset`]: a dataset opened.
//! * [`direct`]: the store without a cache.
//! * [`loader`]: one rank's batches, epoch after epoch.
//! * [`routing`], [`stream`], [`pool`]: the nodes, one batch stream, the buffers.
//! * [`survey`], [`counters`]: what all nodes hold, what a stretch of reading cost.
//! * [`origin`]: where a benchmark's figures are from.
//! * [`cli`]: the command.

pub mod access;
pub mod args;
pub mod cli;
pub mod counters;
pub mod dataset;
pub mod direct;
pub mod endpoints;
pub mod loader;
pub mod origin;
pub mod pool;
pub mod routing;
pub mod stream;
pub mod survey;

pub use access::Access;
pub use dataset::{Dataset, DatasetSpec};
pub use loader::{Batch, EpochSummary, Event, Loader, LoaderSettings};
