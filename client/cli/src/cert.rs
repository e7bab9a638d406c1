//! `forebay cert`: an authority and certificates for a small cluster. Works on files: no node is asked.
//!
//! Certificates of nodes are good for both ends of a connection, those of clients for the client's alone, so
//! none of them can play a node.

use crate::failure::Failure;
use crate::output::Out;
use clap::{Args, Subcommand};
use forebay_proto::{Error, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType, SerialNumber,
};
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use time::{Duration, OffsetDateTime};

/// The name of the authority's files.
const CA: &str = "ca";

/// Certificates begin earlier than now by this: clocks differ.
const EARLIER: Duration = Duration::hours(1);

#[derive(Debug, Args)]
pub(crate) struct Cert {
    #[command(subcommand)]
    command: CertCommand,
}

#[derive(Debug, Subcommand)]
enum CertCommand {
    /// Make an authority: DIR/ca.pem, which all get, and DIR/ca-key.pem, which stays where it is
    Init(Init),
    /// Make a node's certificate, for its listeners and towards other nodes and etcd
    Node(NodeCert),
    /// Make the certificate of a client
    Client(ClientCert),
}

#[derive(Debug, Args)]
struct Init {
    /// Folder of the files; made if it is missing
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The authority's name
    #[arg(long, default_value = "Forebay")]
    name: String,
    /// Days until it ends
    #[arg(long, default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
}

#[derive(Debug, Args)]
struct NodeCert {
    /// The host name by which others reach the node, and the name of its files
    name: String,
    /// Folder with the authority; the node's files are put there
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Further host name or address of the node; may be repeated
    #[arg(long, value_name = "HOST")]
    host: Vec<String>,
    /// Days until it ends
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
}

#[derive(Debug, Args)]
struct ClientCert {
    /// The client's name, which a policy may know it by, and the name of its files
    name: String,
    /// Folder with the authority; the client's files are put there
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// What a policy is to know it by instead, such as spiffe://corp/train/vision
    #[arg(long, value_name = "URI")]
    spiffe: Option<String>,
    /// Days until it ends
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
}

impl Cert {
    pub(crate) fn run(self, out: Out<'_>) -> Result<(), Failure> {
        let made = match self.command {
            CertCommand::Init(init) => init.make()?,
            CertCommand::Node(node) => node.make()?,
            CertCommand::Client(client) => client.make()?,
        };
        writeln!(out, "{made}")?;
        Ok(())
    }
}

impl Init {
    fn make(self) -> Result<String> {
        std::fs::create_dir_all(&self.dir).map_err(|e| wrong(&self.dir, &format!("cannot be made: {e}")))?;
        let mut params = params(&self.name, Vec::new(), self.days)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.self_signed(&key).map_err(failed)?;
        keep(&self.dir, CA, &certificate.pem(), &key, &params)
    }
}

impl NodeCert {
    fn make(self) -> Result<String> {
        let mut hosts = vec![self.name.clone()];
        hosts.extend(self.host);
        hosts.dedup();
        let mut params = params(&self.name, hosts, self.days)?;
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        sign(&self.dir, &self.name, params)
    }
}

impl ClientCert {
    fn make(self) -> Result<String> {
        let names = if self.spiffe.is_none() { vec![self.name.clone()] } else { Vec::new() };
        let mut params = params(&self.name, names, self.days)?;
        if let Some(uri) = self.spiffe {
            let is_uri =
                uri.split_once("://").is_some_and(|(scheme, rest)| !scheme.is_empty() && !rest.is_empty());
            let no_uri =
                || Error::invalid(format!("--spiffe {uri}: give a URI, as in spiffe://corp/train/vision"));
            let name = uri.as_str().try_into().ok().filter(|_| is_uri).ok_or_else(no_uri)?;
            params.subject_alt_names.push(SanType::URI(name));
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        sign(&self.dir, &self.name, params)
    }
}

/// What a certificate says of its owner.
fn params(name: &str, hosts: Vec<String>, days: u32) -> Result<CertificateParams> {
    let is_file_name = !name.is_empty() && !name.starts_with(['.', '-']) && !name.contains(['/', '\\']);
    if !is_file_name || name.chars().any(char::is_control) {
        return Err(Error::invalid(format!("`{}` cannot be the name of a file", name.escape_debug())));
    }
    let wrong =
        |e| Error::invalid(format!("{}: no names that a certificate can be for: {e}", hosts.join(", ")));
    let mut params = CertificateParams::new(hosts.clone()).map_err(wrong)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.serial_number = Some(SerialNumber::from(random()?));
    let now = OffsetDateTime::now_utc();
    (params.not_before, params.not_after) = (now - EARLIER, now + Duration::days(days.into()));
    Ok(params)
}

/// Has the authority of a folder sign a certificate, and keeps it there.
fn sign(dir: &Path, name: &str, mut params: CertificateParams) -> Result<String> {
    if name == CA {
        return Err(Error::invalid(format!(
            "`{CA}` is the name of the authority's files: choose another one"
        )));
    }
    let read = |path: PathBuf| {
        let missing = |e| {
            wrong(
                &path,
                &format!(
                    "cannot be read: {e}: make an authority with `forebay cert init --dir {}`",
                    dir.display()
                ),
            )
        };
        std::fs::read_to_string(&path).map_err(missing)
    };
    let (ca, ca_key) = paths(dir, CA);
    let ca_text = read(ca.clone())?;
    let signing = KeyPair::from_pem(&read(ca_key.clone())?);
    let signing = signing.map_err(|e| wrong(&ca_key, &format!("has no private key: {e}")))?;
    let issuer = Issuer::from_ca_cert_pem(&ca_text, signing);
    let issuer = issuer.map_err(|e| wrong(&ca, &format!("is no certificate: {e}")))?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = params.signed_by(&key, &issuer).map_err(failed)?;
    keep(dir, name, &certificate.pem(), &key, &params)
}

/// Where the certificate of a name is, and its key.
fn paths(dir: &Path, name: &str) -> (PathBuf, PathBuf) {
    (dir.join(format!("{name}.pem")), dir.join(format!("{name}-key.pem")))
}

/// Writes both files; says where they are.
fn keep(dir: &Path, name: &str, pem: &str, key: &KeyPair, params: &CertificateParams) -> Result<String> {
    let (cert_path, key_path) = paths(dir, name);
    for path in [&cert_path, &key_path] {
        if path.symlink_metadata().is_ok() {
            return Err(wrong(
                path,
                "is there already: it is not overwritten; move it away to make a new one",
            ));
        }
    }
    // The key first: those who see the certificate find its key too.
    write(&key_path, &key.serialize_pem(), 0o600)?;
    write(&cert_path, pem, 0o644)?;
    let until = params.not_after.date();
    Ok(format!("{} and {}, good until {until}", cert_path.display(), key_path.display()))
}

fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    let written = File::options().write(true).create_new(true).mode(mode).open(path);
    let written = written.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
    written.map_err(|e| wrong(path, &format!("cannot be written: {e}")))
}

fn random() -> Result<Vec<u8>> {
    let mut random = [0; 16];
    match getrandom(&mut random[..], GetRandomFlags::empty()) {
        // A number of 127 bits, which is never negative nor zero.
        Ok(got) if got == random.len() => Ok([&[random[0] & 0x7f | 0x40], &random[1..]].concat()),
        _ => Err(Error::denied("the system has no random numbers")),
    }
}

fn failed(e: rcgen::Error) -> Error {
    Error::invalid(format!("no certificate can be made: {e}"))
}

fn wrong(path: &Path, why: &str) -> Error {
    Error::invalid(format!("{} {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use forebay_tls::{ClientCertificates, ServerTls, TlsFiles};
    use std::os::unix::fs::PermissionsExt as _;

    #[derive(Parser)]
    struct CertLine {
        #[command(flatten)]
        cert: Cert,
    }

    fn run(dir: &Path, line: &[&str]) -> Result<String, String> {
        let line =
            ["cert", line[0], "--dir", dir.to_str().unwrap()].into_iter().chain(line[1..].iter().copied());
        let line = CertLine::try_parse_from(line).map_err(|e| e.to_string())?;
        let mut out = Vec::new();
        match line.cert.run(&mut out) {
            Ok(()) => Ok(String::from_utf8(out).unwrap()),
            Err(Failure::Error(e) | Failure::Usage(e)) => Err(e.message),
            Err(Failure::ReaderGone) => Err("gone".into()),
        }
    }

    #[test]
    fn what_is_made_is_what_a_node_takes_and_nothing_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("certs");
        assert!(run(&dir, &["node", "n-1"]).unwrap_err().contains("forebay cert init"));
        run(&dir, &["init"]).unwrap();
        let said = run(&dir, &["node", "n-1", "--host", "10.0.0.1", "--host", "localhost"]).unwrap();
        assert!(said.contains("n-1.pem") && said.contains("n-1-key.pem") && said.contains("good until 20"));
        let path = |name: &str| Some(dir.join(name));
        let files =
            TlsFiles { cert: path("n-1.pem"), key: path("n-1-key.pem"), ca: path("ca.pem"), crl: None };
        ServerTls::open(files, ClientCertificates::Required).unwrap();
        run(&dir, &["client", "team", "--spiffe", "spiffe://corp/team"]).unwrap();
        run(&dir, &["client", "other", "--days", "1"]).unwrap();
        for key in ["ca-key.pem", "n-1-key.pem", "team-key.pem", "other-key.pem"] {
            let mode = std::fs::metadata(dir.join(key)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{key}");
        }
        let all = || std::fs::read_dir(&dir).unwrap().count();
        let (before, ca) = (all(), std::fs::read(dir.join("ca.pem")).unwrap());
        for (again, says) in [
            (&["init"][..], "not overwritten"),
            (&["node", "n-1"], "not overwritten"),
            (&["client", "team"], "not overwritten"),
            (&["client", "ca"], "authority's files"),
            (&["client", "../x"], "name of a file"),
            (&["client", "x", "--spiffe", "nonsense"], "give a URI"),
            (&["node", "no host name\n"], "name of a file"),
            (&["client", "x", "--days", "0"], "--days"),
        ] {
            let e = run(&dir, again).unwrap_err();
            assert!(e.contains(says), "{says}: {e}");
        }
        assert_eq!((all(), std::fs::read(dir.join("ca.pem")).unwrap()), (before, ca));
    }
}
