//! The contract of Forebay: what server and client must agree on, and nothing that does I/O.
//!
//! * [`v1`]: the gRPC messages and services.
//! * [`manifest`]: a dataset frozen, its digest, the ids of its segments.
//! * [`object`]: any object in one of its versions, its raw blocks, ranges of its bytes.
//! * [`plan`]: the global order of samples, steps and ranks: a pure function.
//! * [`protocol`]: which versions of these messages two sides speak.
//! * [`digest`]: the mergeable order digest.
//! * [`hash`]: the hash of digests, checksums and placement.
//! * [`hex`]: bytes as hexadecimal digits.
//! * [`state`]: the loader state, under 100 bytes.
//! * [`snapshot`]: names of versions that are kept.
//! * [`view`]: splits and mixes of datasets.
//! * [`ring`]: which nodes own a segment.
//! * [`token`]: bearer tokens, and what a policy keeps of them.
//! * [`units`]: sizes as people write and read them.
//! * [`Error`]: the few kinds of error and their gRPC status.
//!
//! Pure tools that all crates share: [`Backoff`], [`TokenBucket`], [`SegmentSet`], [`RowRun`]; for programs
//! also `LogVariable`.

mod backoff;
pub mod digest;
mod error;
pub mod hash;
pub mod hex;
mod json;
#[cfg(feature = "logs")]
mod log_variable;
pub mod manifest;
pub mod object;
pub mod object_list;
pub mod plan;
pub mod protocol;
pub mod ring;
mod row_run;
mod segment_set;
pub mod snapshot;
pub mod state;
pub mod token;
mod token_bucket;
pub mod units;
pub mod view;

pub use backoff::Backoff;
pub use error::{Error, Kind, Result};
#[cfg(feature = "logs")]
pub use log_variable::LogVariable;
pub use manifest::Manifest;
pub use row_run::RowRun;
pub use segment_set::SegmentSet;
pub use token_bucket::TokenBucket;

/// Generated messages and services.
#[expect(
    missing_docs,
    clippy::allow_attributes_without_reason,
    reason = "generated; documented in the .proto files"
)]
pub mod v1 {
    tonic::include_proto!("forebay.v1");

    /// The file descriptor set, for gRPC reflection.
    pub const DESCRIPTORS: &[u8] = tonic::include_file_descriptor_set!("forebay");
}
