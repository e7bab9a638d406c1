//! The edge: everything that knows gRPC or HTTP. Behind it there are only answers, datasets and the cache.
//!
//! * [`flight`]: Arrow Flight, whose `DoGet` is the batch stream; [`frames`]: that stream's body.
//! * [`control`] answers `forebay.v1.Cache`, [`peer`] other nodes.
//! * [`metrics`] serves `/metrics` and `/health` over HTTP, [`health`] the same to gRPC.

pub mod control;
pub mod flight;
pub mod frames;
pub mod gate;
pub mod health;
pub mod metrics;
pub mod peer;
pub mod stream;
