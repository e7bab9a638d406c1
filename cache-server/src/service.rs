//! The edge: everything that knows gRPC or HTTP. Behind it there are only answers, datasets and the cache.
//!
//! * [`flight`]: Arrow Flight, whose `DoGet` is the batch stream; [`frames`]: that stream's body.
//! * [`control`] answers `forebay.v1.Cache`, [`snapshots`] `forebay.v1.Snapshots`, [`objects`]
//!   `forebay.v1.Objects`, [`peer`] other nodes.
//! * [`s3`]: the endpoint for clients of S3.
//! * [`accept`] takes connections as far as [`admission`] lets them in, [`grpc`] serves those that speak
//!   gRPC, [`socket`] is the node's Unix socket, [`listeners`] names them all.
//! * [`handshake`]: TLS of these connections, where the node has a certificate.
//! * [`guard`]: who makes a request, and whether it is written down; [`visible`]: the part of an answer that
//!   a caller may see.
//! * [`stalls`]: readers that take nothing.
//! * [`shared`]: readers on the node's host, which get batches through shared memory.
//! * [`metrics`] serves `/metrics` and `/health` over HTTP, [`health`] the same to gRPC. [`http1`] has their
//!   connections, and those of S3 clients.

pub(crate) mod accept;
pub(crate) mod admission;
pub(crate) mod connection;
pub(crate) mod control;
mod fetch_limit;
pub(crate) mod flight;
pub(crate) mod frames;
pub(crate) mod gate;
pub(crate) mod grpc;
pub(crate) mod guard;
pub(crate) mod handshake;
pub(crate) mod health;
mod http1;
mod list_parts;
pub(crate) mod listeners;
mod message;
mod meter;
pub(crate) mod metrics;
pub(crate) mod objects;
mod patient;
pub(crate) mod peer;
mod refusals;
pub(crate) mod s3;
pub(crate) mod shared;
pub(crate) mod snapshots;
pub(crate) mod socket;
pub(crate) mod stalls;
pub(crate) mod stream;
mod ticket;
mod visible;

/// How a method of a gRPC service ends.
type Reply<T> = Result<tonic::Response<T>, tonic::Status>;
