//! The certificate that the other end of a connection proved to have.

use forebay_tls::CertificateNames;

/// What a verified client certificate says of its owner. It lies in the extensions of each request that comes
/// over its connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PeerCertificate {
    /// URIs among its alternative names, such as SPIFFE ids.
    pub uris: Vec<String>,
    /// DNS names among them.
    pub dns_names: Vec<String>,
    /// Of its subject.
    pub common_name: Option<String>,
    /// In hexadecimal digits.
    pub serial: String,
}

impl From<&CertificateNames> for PeerCertificate {
    fn from(names: &CertificateNames) -> Self {
        let CertificateNames { uris, dns_names, common_name, serial, .. } = names.clone();
        Self { uris, dns_names, common_name, serial }
    }
}
