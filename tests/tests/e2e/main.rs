//! End to end: the real binaries against an S3 server in this process.
//!
//! * [`data`]: delivered values equal those that pyarrow reads.
//! * [`order`]: the order of samples, and the S3 requests of an epoch.
//! * [`bad_input`]: every error is told in one line, soon, and without a secret.
//! * [`node`]: status and metrics of a cache node, and the commands that it takes.
//! * [`tickets`]: requests to a node that are wrong.
//! * [`trainer`]: training runs on a cache.
//! * [`refused`]: how a command that cannot succeed must end.
//! * [`replicas`]: several copies of a segment, who makes them and who reads them.
//! * [`restart`]: the faults that a run survives without an error.
//! * [`store`]: the faster checks of `make bench-store`.
//! * [`warm`]: `make bench-warm`, at a small size.
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
mod warm;
