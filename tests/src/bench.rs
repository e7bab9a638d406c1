//! The benchmarks, one module for each `make bench-*`.

pub mod attack;
pub mod cluster;
mod compare;
pub mod disk;
pub mod epoch;
pub mod order;
mod package;
pub mod peers;
pub mod python;
pub mod raw;
pub mod real;
pub mod stages;
pub mod tls;
pub mod train;
pub mod warm;
#[cfg(feature = "gpu")]
pub mod ways;
