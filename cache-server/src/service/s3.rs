//! The endpoint for clients of S3: objects through the cache, everything else in the object store's own
//! words.
//!
//! It reads only. GET and HEAD of objects are answered from a version and its blocks ([`object`]); listings,
//! locations and attributes are the object store's own answers ([`store`]), so they are right in all that
//! this program does not know. There is no S3 server library below: those parse documents that are only
//! passed on, and answer otherwise than S3 where it matters (ranges that make no sense, parts, versions).
//!
//! Promises: nothing is served that `--allow` does not name; every request is signed, or for public objects;
//! a write is refused before its body; memory is bounded whatever clients send ([`serve`]).

mod conditions;
mod endpoint;
mod object;
mod refusal;
mod request;
mod route;
mod serve;
mod signature;
mod store;
mod uncached;
mod visitor;

pub use endpoint::Endpoint;
pub use serve::run;
