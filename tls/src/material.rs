//! What the files hold, checked: the own identity, and whom to believe.

use crate::certificate::{CertificateNames, check_order, check_strength};
use crate::files::{TlsFiles, read, read_key};
use crate::provider::PROVIDER;
use forebay_proto::{Error, Result};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What all files hold.
pub(crate) struct Material {
    /// The own certificate with its chain and key.
    pub identity: Option<Arc<CertifiedKey>>,
    /// What the own certificate says.
    pub names: CertificateNames,
    /// `None`: no file names any.
    pub authorities: Option<Arc<RootCertStore>>,
    pub revoked: Vec<CertificateRevocationListDer<'static>>,
}

impl Material {
    /// Reads the files. `Invalid` names the one that is wrong. Not for an async thread.
    pub fn read(files: &TlsFiles) -> Result<Self> {
        let TlsFiles { cert, key, ca, crl } = files;
        let (mut identity, mut names) = (None, CertificateNames::default());
        if let (Some(cert), Some(key)) = (cert, key) {
            let (certified, of) = read_identity(cert, key)?;
            (identity, names) = (Some(Arc::new(certified)), of);
        }
        let authorities = ca.as_deref().map(read_authorities).transpose()?.map(Arc::new);
        let revoked = crl.as_deref().map(read_revoked).transpose()?.unwrap_or_default();
        Ok(Self { identity, names, authorities, revoked })
    }
}

/// What [`TlsFiles`] hold, as far as they are named.
#[derive(Clone)]
#[expect(missing_docs, reason = "documented at `TlsFiles`")]
pub struct PemFiles {
    pub cert: Option<Vec<u8>>,
    pub key: Option<Vec<u8>>,
    pub ca: Option<Vec<u8>>,
}

impl TlsFiles {
    /// What the files hold, checked as for a connection of this crate: for libraries that set up TLS by
    /// themselves. `Invalid` names the file that is wrong. Not for an async thread.
    pub fn pem(&self) -> Result<PemFiles> {
        Material::read(self)?;
        let of = |path: &Option<PathBuf>| path.as_deref().map(read).transpose();
        Ok(PemFiles { cert: of(&self.cert)?, key: of(&self.key)?, ca: of(&self.ca)? })
    }
}

/// Gives an error the name of its file.
fn in_file(path: &Path) -> impl Fn(Error) -> Error {
    move |e| e.context(path.display().to_string())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let bytes = read(path)?;
    let all: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let all = all.map_err(|e| wrong(path, &format!("is not whole: {e}")))?;
    match all.is_empty() {
        true => Err(wrong(path, "has no certificate in PEM in it")),
        false => Ok(all),
    }
}

/// What both forms of an encrypted key say.
const LOCKED: &[u8] = b"ENCRYPTED";

fn read_identity(cert: &Path, key: &Path) -> Result<(CertifiedKey, CertificateNames)> {
    let chain = certificates(cert)?;
    let names = CertificateNames::read(&chain[0]).map_err(in_file(cert))?;
    chain.iter().try_for_each(|one| check_strength(one)).map_err(in_file(cert))?;
    let pem = read_key(key)?;
    // Of an older form it may look like a key.
    let is_locked = pem.windows(LOCKED.len()).any(|part| part == LOCKED);
    let locked = "its private key is encrypted: write it without a passphrase, as `openssl pkey` does";
    let none = if is_locked { locked } else { "has no private key in PEM in it" };
    let der = PrivateKeyDer::from_pem_slice(&pem).map_err(|_| wrong(key, none))?;
    let load = |e: rustls::Error| match is_locked {
        true => wrong(key, locked),
        false => wrong(key, &format!("its private key cannot be used: {e}")),
    };
    let signing = PROVIDER.key_provider.load_private_key(der).map_err(load)?;
    let matches = |one: &CertificateDer<'static>| {
        CertifiedKey::new(vec![one.clone()], signing.clone()).keys_match().is_ok()
    };
    if !matches(&chain[0]) {
        return Err(match chain[1..].iter().any(matches) {
            true => wrong(cert, "the chain is in the wrong order: the own certificate must be the first"),
            false => wrong(key, &format!("is not the key of the certificate in {}", cert.display())),
        });
    }
    check_order(chain.iter().map(|one| &**one)).map_err(in_file(cert))?;
    Ok((CertifiedKey::new(chain, signing), names))
}

fn read_authorities(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(path)? {
        check_strength(&authority).map_err(in_file(path))?;
        roots
            .add(authority)
            .map_err(|e| wrong(path, &format!("has a certificate of no authority in it: {e}")))?;
    }
    Ok(roots)
}

fn read_revoked(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>> {
    let bytes = read(path)?;
    let all: std::result::Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&bytes).collect();
    let all = all.map_err(|e| wrong(path, &format!("is not whole: {e}")))?;
    match all.is_empty() {
        true => Err(wrong(path, "has no list of revoked certificates in PEM (X509 CRL) in it")),
        false => Ok(all),
    }
}

fn wrong(path: &Path, why: &str) -> Error {
    Error::invalid(format!("{}: {why}", path.display()))
}
