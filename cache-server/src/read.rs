//! The read path: a segment from the disk cache or filled once, ahead of those who will ask, within a memory
//! budget.
//!
//! * [`cache`] is the path itself: look-up, fill, placement. [`copies`] reads and writes segments for other
//!   nodes.
//! * [`block`], [`block_reader`] and `block_fill`: raw blocks, whose readers get bytes as they come (`tail`),
//!   or as they lie in files ([`loans`]).
//! * [`plans`] knows which segment will be read when, [`prefetch`] fills the segments read next.
//! * [`memory`] divides the node's memory; `memory_tier` holds segments that are not worth storing.
//! * [`single_flight`] lets one caller do what many wait for.

pub(crate) mod block;
mod block_fill;
pub(crate) mod block_reader;
pub(crate) mod cache;
pub(crate) mod copies;
pub(crate) mod fill;
pub(crate) mod loans;
mod lookup;
pub(crate) mod memory;
mod memory_tier;
mod placement;
pub(crate) mod plans;
pub(crate) mod prefetch;
pub(crate) mod single_flight;
mod tail;
