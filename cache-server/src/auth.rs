//! Who may do what: callers are told apart, and each call is held against one table.
//!
//! * [`calls`]: the table of all calls, by gRPC and by S3, and the roles that they need.
//! * [`principal`]: who a caller can be; [`policy`]: the text that says so; [`policy_file`]: where it is, and
//!   when it counts; [`pattern`]: names in it.
//! * [`jwt`]: tokens that another authority signed; [`jwks`]: its keys.
//! * [`authority`]: from what a request shows to its caller, and what becomes of callers when the policy
//!   changes; [`session`]: what one credential has open; [`caller`]: what the services ask of a caller.
//! * [`limiter`]: what a principal may take in a second.
//! * [`private_words`]: names of the node's object store, which callers are not told.
//! * [`audit`]: who was refused, and what operators did.
//!
//! Without a policy everybody may all that `--allow` names. It knows neither gRPC nor HTTP.

pub(crate) mod audit;
pub(crate) mod authority;
pub(crate) mod caller;
pub(crate) mod calls;
mod jwks;
mod jwt;
pub(crate) mod limiter;
mod pattern;
mod policy;
mod policy_file;
mod principal;
pub(crate) mod private_words;
pub(crate) mod session;
