//! End to end: the real binaries against an S3 server in this process.
//!
//! * [`data`]: what is delivered equals what pyarrow reads, value by value.
//! * [`order`]: the order of samples, and what an epoch costs at the store.
//! * [`bad_input`]: whatever is wrong is told in one line, soon, and without a secret.
//! * [`node`]: what a cache node tells of itself, and does when told.
//! * [`tickets`]: what a node makes of requests that are wrong.
//! * [`trainer`]: training runs on a cache.
//! * [`refused`]: how a command must end that cannot succeed.
//! * [`replicas`]: several copies of a segment, who makes them and who reads them.
//! * [`restart`]: what a run survives without an error.
//! * [`store`]: the faster checks of `make bench-store`.
//! * [`demo`]: that it leaves nothing behind.
//!
//! One executable, so that the fixtures are written once. `make test` builds the binaries before.

mod bad_input;
mod commands;
mod data;
mod demo;
mod failover;
mod fixtures;
mod membership;
mod node;
mod order;
mod refused;
mod replicas;
mod restart;
mod store;
mod tickets;
mod trainer;
mod tries;
mod views;
