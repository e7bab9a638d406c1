//! TLS between the programs of Forebay: certificates, keys, authorities and lists of revoked certificates
//! from PEM files, which are read again when they change.
//!
//! [`ServerTls`] is a node's side, [`ClientTls`] that of a program that connects. Both speak TLS 1.3 only,
//! and swap their whole configuration when their files change: connections that are open go on, but those
//! whose client certificate does not hold any more. Files that make no sense leave the old ones in force.
//!
//! It knows neither HTTP nor gRPC, and issues no certificates.

mod certificate;
mod client;
mod explain;
mod files;
mod material;
mod provider;
mod server;
#[cfg(test)]
mod tests;

pub use certificate::CertificateNames;
pub use client::{ClientStream, ClientTls};
pub use files::TlsFiles;
pub use material::PemFiles;
pub use server::{ClientCertificates, Purpose, ServerStream, ServerTls};
