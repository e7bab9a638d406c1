//! Tests and benchmarks that run across crates: [`harness`] is what they stand on, [`bench`] is `make
//! bench-*`, [`demo`] is `make demo`. Nothing here is used by the product itself.

pub mod bench;
pub mod demo;
pub mod harness;
