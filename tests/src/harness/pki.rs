//! Authorities and certificates of a test's own, good ones and bad ones, in files.

use anyhow::Context;
use forebay_client::TlsFiles;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod,
    KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber,
};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use time::{Duration, OffsetDateTime};

/// A folder of certificates.
pub struct Pki {
    folder: tempfile::TempDir,
    serial: AtomicU64,
}

/// Who signs certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate.
    pub pem: String,
}

/// What a certificate is for.
#[derive(Debug, Clone, Copy)]
pub struct Leaf<'a> {
    /// Of its files.
    pub name: &'a str,
    /// Names and addresses that it is for.
    pub hosts: &'a [&'a str],
    /// Such as a SPIFFE id.
    pub uri: Option<&'a str>,
    /// When it begins and ends, in days from now.
    pub days: (i64, i64),
}

impl<'a> Leaf<'a> {
    /// Of a node on this machine.
    pub fn node(name: &'a str) -> Self {
        Self { name, hosts: &["localhost", "127.0.0.1"], uri: None, days: (-1, 2) }
    }

    /// Of a client that a policy knows by a URI.
    pub fn client(name: &'a str, uri: &'a str) -> Self {
        Self { name, hosts: &[], uri: Some(uri), days: (-1, 2) }
    }
}

impl Pki {
    /// An empty folder.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self { folder: tempfile::tempdir().context("make a folder")?, serial: AtomicU64::new(100) })
    }

    /// The path of a file in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Puts a file in the place of another, as tools that rotate certificates do.
    pub fn put(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let (new, path) = (self.path(&format!("{name}.new")), self.path(name));
        std::fs::write(&new, text)?;
        std::fs::set_permissions(&new, PermissionsExt::from_mode(0o600))?;
        std::fs::rename(new, &path)?;
        Ok(path)
    }

    /// A new authority, which no file has yet.
    pub fn authority(name: &str) -> anyhow::Result<Authority> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Authority { issuer: Issuer::new(params, key), pem })
    }

    /// Writes a certificate that an authority signs, or that signs itself without one; returns its files
    /// beside `ca.pem`, and its serial number.
    pub fn issue(&self, leaf: Leaf<'_>, by: Option<&Authority>) -> anyhow::Result<(TlsFiles, u64)> {
        let mut params =
            CertificateParams::new(leaf.hosts.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>())?;
        params.distinguished_name.push(DnType::CommonName, leaf.name);
        if let Some(uri) = leaf.uri {
            params.subject_alt_names.push(SanType::URI(uri.try_into()?));
        }
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        params.serial_number = Some(SerialNumber::from(serial));
        let now = OffsetDateTime::now_utc();
        (params.not_before, params.not_after) =
            (now + Duration::days(leaf.days.0), now + Duration::days(leaf.days.1));
        let key = KeyPair::generate()?;
        let certificate = match by {
            Some(authority) => params.signed_by(&key, &authority.issuer)?,
            None => params.self_signed(&key)?,
        };
        let cert = self.put(&format!("{}.pem", leaf.name), &certificate.pem())?;
        let key = self.put(&format!("{}-key.pem", leaf.name), &key.serialize_pem())?;
        Ok((TlsFiles { cert: Some(cert), key: Some(key), ca: Some(self.path("ca.pem")), crl: None }, serial))
    }

    /// Writes `crl.pem`: the certificates that an authority revokes.
    pub fn revoke(&self, serials: &[u64], by: &Authority) -> anyhow::Result<PathBuf> {
        let now = OffsetDateTime::now_utc();
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: now,
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: now - Duration::days(1),
            next_update: now + Duration::days(2),
            crl_number: SerialNumber::from(self.serial.fetch_add(1, Ordering::Relaxed)),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        self.put("crl.pem", &list.signed_by(&by.issuer)?.pem()?)
    }
}

/// The flags of a node for its files.
pub fn node_flags(files: &TlsFiles) -> Vec<String> {
    flags(files, ["--tls-cert", "--tls-key", "--tls-ca", "--tls-crl"])
}

/// The flags of a command for its files.
pub fn client_flags(files: &TlsFiles) -> Vec<String> {
    flags(files, ["--cert", "--key", "--ca", ""])
}

fn flags(files: &TlsFiles, names: [&str; 4]) -> Vec<String> {
    let all = [&files.cert, &files.key, &files.ca, &files.crl].into_iter().zip(names);
    let text = |path: &Path| path.display().to_string();
    all.filter_map(|(path, flag)| Some([flag.to_owned(), text(path.as_deref()?)])).flatten().collect()
}
