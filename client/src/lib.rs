//! Reading training data through Forebay: the loader, its streams, and the command `forebay`.
//!
//! * [`access`]: where data comes from, a cache node or the store itself.
//! * [`args`]: that choice as command-line arguments.
//! * [`dataset`]: a dataset opened.
//! * [`direct`]: the store without a cache.
//! * [`counters`]: what a stretch of reading cost.
//! * [`cli`]: the command.

pub mod access;
pub mod args;
pub mod cli;
pub mod counters;
pub mod dataset;
pub mod direct;

pub use access::Access;
pub use dataset::{Dataset, DatasetSpec};
