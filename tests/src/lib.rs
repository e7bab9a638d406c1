//! The test harness: what every test that runs across crates stands on.
//!
//! [`s3`] is an S3 server in this process (real HTTP, SigV4 and XML) that keeps a log of requests and breaks on demand;
//! [`slow`] is a proxy that makes it behave like remote S3; [`process`] starts the real binaries and watches their
//! logs; [`etcd`] starts real etcd; [`mnist`] is the data. [`demo`] is `make demo`, [`epochs`] is
//! `make bench-epoch`, [`order`] is `make bench-order`, [`store`] is `make bench-store`,
//! [`train`] is `make bench-train`, [`cluster`] is `make bench-cluster`,
//! [`report`] the form of their reports. Nothing here is used by the product itself.

pub mod cluster;
pub mod demo;
pub mod epochs;
pub mod etcd;
pub mod fault;
pub mod mnist;
pub mod order;
pub mod process;
pub mod report;
pub mod s3;
mod serve;
pub mod slow;
pub mod store;
pub mod train;
