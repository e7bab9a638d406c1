//! What a certificate says of its holder.

use forebay_proto::{Error, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use x509_cert::Certificate;
use x509_cert::der::asn1::{PrintableStringRef, UintRef, Utf8StringRef};
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::{self, Decode as _, Reader as _, SliceReader};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// Of RSA keys, and of the common name in a subject.
const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// Bits of an RSA key at least.
const RSA_BITS_MIN: usize = 2048;

/// The names that a certificate is for, and its number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateNames {
    /// URIs, such as SPIFFE ids.
    pub uris: Vec<String>,
    /// Host names that it is for, wildcards included.
    pub dns_names: Vec<String>,
    /// IP addresses that it is for.
    pub addresses: Vec<IpAddr>,
    /// The `CN` of its subject, which no host is checked against.
    pub common_name: Option<String>,
    /// The serial number, in hexadecimal digits with colons between bytes.
    pub serial: String,
    /// When it ends, in seconds of Unix time.
    pub ends_at: i64,
}

impl CertificateNames {
    /// Of a certificate in DER; `Invalid` if it is none.
    pub fn read(der: &[u8]) -> Result<Self> {
        let certificate = parse(der)?.tbs_certificate;
        let mut names = Self {
            common_name: common_name(&certificate.subject),
            serial: certificate.serial_number.to_string(),
            ends_at: certificate.validity.not_after.to_unix_duration().as_secs() as i64,
            ..Self::default()
        };
        let alternatives = certificate.get::<SubjectAltName>();
        let alternatives =
            alternatives.map_err(|e| Error::invalid(format!("its names make no sense: {e}")))?;
        for name in alternatives.iter().flat_map(|(_, alternatives)| &alternatives.0) {
            match name {
                GeneralName::UniformResourceIdentifier(uri) => names.uris.push(uri.as_str().to_owned()),
                GeneralName::DnsName(name) => names.dns_names.push(name.as_str().to_owned()),
                GeneralName::IpAddress(bytes) => names.addresses.extend(address(bytes.as_bytes())),
                _ => {}
            }
        }
        Ok(names)
    }

    /// Those by which a server can be found.
    pub fn hosts(&self) -> Vec<String> {
        let addresses = self.addresses.iter().map(IpAddr::to_string);
        self.dns_names.iter().cloned().chain(addresses).collect()
    }
}

fn parse(der: &[u8]) -> Result<Certificate> {
    Certificate::from_der(der).map_err(|e| Error::invalid(format!("is no certificate: {e}")))
}

fn common_name(subject: &x509_cert::name::Name) -> Option<String> {
    let of = subject.0.iter().flat_map(|part| part.0.iter()).find(|one| one.oid == COMMON_NAME)?;
    let utf8 = of.value.decode_as::<Utf8StringRef<'_>>().map(|text| text.as_str().to_owned());
    let printable = || of.value.decode_as::<PrintableStringRef<'_>>().map(|text| text.as_str().to_owned());
    utf8.or_else(|_| printable()).ok()
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(|bytes| IpAddr::V4(Ipv4Addr::from(bytes)));
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(|bytes| IpAddr::V6(Ipv6Addr::from(bytes)))).ok()
}

/// `Invalid` if a certificate's key is too weak.
pub(crate) fn check_strength(der: &[u8]) -> Result<()> {
    let certificate = parse(der)?.tbs_certificate;
    let key = &certificate.subject_public_key_info;
    if key.algorithm.oid != RSA {
        return Ok(());
    }
    let bits = key.subject_public_key.as_bytes().and_then(|key| rsa_bits(key).ok()).unwrap_or_default();
    match bits < RSA_BITS_MIN {
        true => Err(Error::invalid(format!(
            "the certificate of {} has an RSA key of {bits} bits: {RSA_BITS_MIN} are the least",
            certificate.subject
        ))),
        false => Ok(()),
    }
}

/// Bits of the modulus of an `RSAPublicKey` (RFC 8017, A.1.1).
fn rsa_bits(key: &[u8]) -> der::Result<usize> {
    SliceReader::new(key)?.sequence(|key| {
        let modulus = UintRef::decode(key)?;
        UintRef::decode(key)?;
        let first = modulus.as_bytes().first().map_or(8, |first| first.leading_zeros() as usize);
        Ok((modulus.as_bytes().len() * 8).saturating_sub(first))
    })
}

/// `Invalid` unless each certificate of a chain was issued by the next.
pub(crate) fn check_order<'a>(chain: impl IntoIterator<Item = &'a [u8]>) -> Result<()> {
    let chain: Vec<Certificate> = chain.into_iter().map(parse).collect::<Result<_>>()?;
    for pair in chain.windows(2) {
        let (one, next) = (&pair[0].tbs_certificate, &pair[1].tbs_certificate);
        if one.issuer != next.subject {
            return Err(Error::invalid(format!(
                "the chain is in the wrong order: the certificate of {} was issued by {}, and that of {} follows it: begin \
                 with the own one, and go on with its issuer's",
                one.subject, one.issuer, next.subject
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    #[test]
    fn names_are_read() {
        let mut params = CertificateParams::new(vec!["a.example".to_owned(), "10.0.0.1".to_owned()]).unwrap();
        params.subject_alt_names.push(SanType::URI("spiffe://t/x".try_into().unwrap()));
        params.distinguished_name.push(DnType::CommonName, "me");
        params.serial_number = Some(vec![1, 0xab].into());
        let der = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let names = CertificateNames::read(der.der()).unwrap();
        assert_eq!(
            (names.uris.as_slice(), names.hosts()),
            (&["spiffe://t/x".to_owned()][..], vec!["a.example".into(), "10.0.0.1".into()])
        );
        assert_eq!((names.common_name.as_deref(), names.serial.as_str()), (Some("me"), "01:AB"));
        assert!(CertificateNames::read(b"nonsense").is_err());
    }
}
