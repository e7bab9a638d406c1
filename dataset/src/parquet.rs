//! Parquet objects: their footers, the cost of a segment, its bytes in few ranged reads, and those decoded.

mod chunks;
pub(crate) mod column_origin;
pub(crate) mod cost;
pub(crate) mod counting;
mod decode;
mod fetch;
mod filtered;
pub(crate) mod footer;
pub(crate) mod footer_claims;
pub(crate) mod footers;
mod int96;
mod page_bodies;
mod page_headers;
mod pages;
pub(crate) mod quiet;
mod reader;
mod run;
mod run_buffers;
pub(crate) mod statistics;
mod thrift;

pub use cost::Cost;
pub use reader::SegmentReader;
pub use run::SegmentRun;
