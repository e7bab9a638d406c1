//! The harness: what every test and benchmark that runs across crates stands on.
//!
//! [`s3`] is an S3 server in this process (real HTTP, SigV4 and XML) that keeps a log of requests and breaks
//! on demand; [`slow`] is a proxy that makes it behave like remote S3, `wire` one that breaks as networks do;
//! [`liar`] is an object store whose answers tests make up. [`s3_client`], `s3_signer` and [`s3_raw`] ask S3,
//! by rule or not.
//! [`made`] are objects by a rule, of any size. [`process`] starts the real binaries and watches their logs;
//! [`etcd`] starts real etcd. [`pki`] makes certificates, [`policy`] policies, [`tls_world`] both;
//! [`question`] asks a node anything as anybody, [`requests`] has a request of each method.
//! [`tap`] listens to what travels, `rogue` plays a node, [`wait`] waits for others.
//! [`mnist`] and [`table`] are the data, [`frames`] speaks HTTP/2 by hand,
//! [`reader`] reads a table and checks every value. [`check`] and [`report`] are the form in which
//! measurements tell what they found, [`origin`] says which commit and machine they are of.

pub(crate) mod answers;
pub mod background;
pub mod check;
pub mod cloud;
pub mod differential;
pub mod etcd;
pub mod fault;
pub mod frames;
pub(crate) mod html;
pub mod liar;
pub mod made;
pub mod mnist;
pub mod origin;
pub mod pki;
pub mod policy;
pub mod ports;
pub mod process;
pub mod question;
pub mod reader;
pub(crate) mod report;
pub mod requests;
pub(crate) mod rogue;
pub mod s3;
pub mod s3_client;
pub mod s3_raw;
pub(crate) mod s3_signer;
pub mod seen;
mod serve;
pub mod slow;
pub mod table;
pub mod tap;
pub mod tls_world;
pub mod wait;
pub(crate) mod wire;
