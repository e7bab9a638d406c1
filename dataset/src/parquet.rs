//! Parquet objects: their footers, the cost of a segment, its bytes in few ranged reads, and those decoded.

mod chunks;
pub(crate) mod column_origin;
pub(crate) mod cost;
pub(crate) mod counting;
mod decode;
mod fetch;
mod filtered;
pub(crate) mod footer;
pub(crate) mod footers;
mod page_headers;
mod pages;
mod reader;
mod run;
pub(crate) mod statistics;

pub use cost::Cost;
pub use reader::SegmentReader;
pub use run::SegmentRun;
