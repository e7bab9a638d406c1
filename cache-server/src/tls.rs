//! Connections with TLS: who is at the other end.

mod peer_certificate;

pub use peer_certificate::PeerCertificate;
