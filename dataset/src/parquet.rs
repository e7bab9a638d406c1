//! Parquet objects: their footers, the cost of a segment, its bytes in few ranged reads, and those decoded.

mod chunks;
pub(crate) mod cost;
mod decode;
mod fetch;
pub(crate) mod footer;
pub(crate) mod footers;
mod reader;
mod run;

pub use cost::Cost;
pub use reader::SegmentReader;
pub use run::SegmentRun;
