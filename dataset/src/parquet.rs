//! Parquet objects: their footers, what a segment of one costs, its bytes in few ranged reads, and those decoded.

pub mod cost;
pub mod decode;
pub mod fetch;
pub(crate) mod footer;
