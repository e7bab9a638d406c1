//! Tests and benchmarks that run across crates: [`harness`] is what they stand on, [`bench`] is `make
//! bench-*`, [`demo`] is `make demo`. Nothing here is used by the product itself.
#![cfg_attr(not(feature = "bench"), allow(dead_code, reason = "the benchmarks use more of the harness"))]

#[cfg(feature = "bench")]
pub mod bench;
pub mod demo;
pub mod harness;
