//! End to end: the real binaries against an S3 server in this process.
//!
//! * [`data`]: delivered values equal those that pyarrow reads.
//! * [`definition`]: the order that docs/order.md defines.
//! * [`delta`]: Delta tables.
//! * [`content`]: the content digest, the same by every way and by other people's reader.
//! * [`order`]: the order of samples, and the S3 requests of an epoch.
//! * [`attacks`]: `make attack`, at small sizes.
//! * [`auth`]: who may do what at a node that has a policy.
//! * [`bad_input`]: every error is told in one line, soon, and without a secret.
//! * [`filters`]: datasets of some rows only.
//! * [`real`]: tables as real writers leave them.
//! * [`packing`]: documents as sequences of tokens.
//! * [`node`]: status and metrics of a cache node, and the commands that it takes.
//! * [`tickets`]: requests to a node that are wrong.
//! * [`tls`]: TLS on every hop.
//! * [`objects`]: any object, byte for byte.
//! * [`trainer`]: training runs on a cache.
//! * [`refused`]: how a command that cannot succeed must end.
//! * [`replicas`]: several copies of a segment, who makes them and who reads them.
//! * [`restart`]: the faults that a run survives without an error.
//! * [`gateway`]: the endpoint for clients of S3.
//! * [`full_disk`]: a disk that is full.
//! * [`hung_disk`]: a disk that does not answer.
//! * [`lists`]: lists of very many objects.
//! * [`local_node`]: a node that the commands start by themselves.
//! * [`s3_wire`]: S3 by names of hosts, by TLS, in another region, by keys that expire.
//! * [`same_host`]: readers on the node's own host.
//! * [`snapshots`]: versions of datasets under names.
//! * [`versions`]: snapshots in a bucket that keeps versions.
//! * [`store`]: the faster checks of `make bench-store`.
//! * [`waits`]: who waits for data is told for what.
//! * [`warm`]: `make bench-warm`, at a small size.
//! * `ways`: `forebay-bench-ways`, small; with the feature `gpu`, as the program is built by that alone.
//! * [`peers`]: `make bench-peers`, at a small size, with the peers that need no more than pyarrow.
//! * [`python`]: `make bench-python`, at a small size.
//! * [`raw`]: the faster checks of `make bench-raw`.
//! * [`demo`]: that it leaves nothing behind.
//! * [`drain`]: a node that is drained while a job reads from it.
//!
//! One executable, so that the fixtures are written once. `make test` builds the binaries before.

mod attacks;
mod auth;
mod bad_input;
mod commands;
mod content;
mod data;
mod definition;
mod delta;
mod demo;
mod drain;
mod failover;
mod filters;
mod fixtures;
mod full_disk;
mod gateway;
mod hung_disk;
mod lists;
mod local_node;
mod membership;
mod node;
mod objects;
mod order;
mod packing;
mod peers;
mod python;
mod raw;
mod real;
mod refused;
mod replicas;
mod restart;
mod s3_wire;
mod same_host;
mod snapshots;
mod store;
mod tickets;
mod tls;
mod trainer;
mod versions;
mod views;
mod waits;
mod warm;
#[cfg(feature = "gpu")]
mod ways;
