//! The Forebay daemon: decoded segments on local disk, served as batch streams.
//!
//! * [`service`]: the edge. gRPC, the batch stream, metrics. Nothing else knows gRPC.
//! * [`read`]: a segment from the disk cache, from another node, or filled from its object; and when plans
//!   will read it.
//! * [`objects`]: any object, byte for byte.
//! * [`disk`]: the disk cache. Segment files under a byte limit.
//! * [`cluster`]: the other nodes: who they are, what they hold, who serves what.
//! * [`allow`]: which URIs this node may read.
//! * [`auth`]: who may do what.
//! * [`datasets`]: the manifests that this node knows.
//! * [`descriptors`]: how many files may be open.
//! * [`maintenance`]: work on a timer, and the probe for stalled async threads.
//!
//! ARCHITECTURE.md follows a read hop by hop.

mod allow;
mod auth;
mod cluster;
mod datasets;
mod descriptors;
mod disk;
mod events;
mod maintenance;
mod node;
mod objects;
mod read;
mod runtime;
mod server;
mod service;
mod settings;
mod tls;

pub use runtime::runtime;
pub use server::Server;
pub use settings::{ListenAddress, Settings};
