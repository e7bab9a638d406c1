//! A world of TLS: an authority, certificates, a policy that knows them, and programs that use them.

use super::pki::{Authority, Leaf, Pki, client_flags, node_flags};
use super::process::{Run, ServerOptions};
use super::s3::S3Server;
use forebay_client::TlsFiles;
use parking_lot::Mutex;
use std::sync::Arc;

/// What the policy knows a reader by.
pub const VISION: &str = "spiffe://test/vision";

/// What it knows an operator by.
pub const ROOT: &str = "spiffe://test/root";

/// Who may what: the nodes are known by their host name.
const POLICY: &str = "
[[principal]]
name = 'vision'
roles = ['reader', 'loader']
prefixes = ['s3://forebay/PREFIX']
cert = ['spiffe://test/vision']
[[principal]]
name = 'root'
roles = ['operator', 'reader', 'metrics']
prefixes = ['s3://forebay/']
cert = ['spiffe://test/root']
[[principal]]
name = 'nodes'
roles = ['peer']
prefixes = []
cert = ['localhost']
";

/// A folder of certificates with one authority, in `ca.pem`, and a policy.
pub struct TlsWorld {
    /// The folder.
    pub pki: Pki,
    authority: Mutex<Arc<Authority>>,
}

impl TlsWorld {
    /// A new one. The reader may read under `prefix` of the bucket.
    pub fn new(prefix: &str) -> Self {
        let pki = Pki::new().expect("a folder");
        let authority = Pki::authority("ours").expect("an authority");
        pki.put("ca.pem", &authority.pem).expect("write it");
        pki.put("policy.toml", &POLICY.replace("PREFIX", prefix)).expect("write a policy");
        Self { pki, authority: Mutex::new(Arc::new(authority)) }
    }

    /// Who signs certificates now.
    pub fn authority(&self) -> Arc<Authority> {
        self.authority.lock().clone()
    }

    /// Has another one sign from now on. Who believes whom is for the caller to see to.
    pub fn replace_authority(&self, authority: Authority) {
        *self.authority.lock() = Arc::new(authority);
    }

    /// A certificate by the authority.
    pub fn issue(&self, leaf: Leaf<'_>) -> TlsFiles {
        self.pki.issue(leaf, Some(&self.authority())).expect("a certificate").0
    }

    /// A node that reads from an object store, with the certificate of these files and the policy.
    pub fn node(&self, s3: &S3Server, files: &TlsFiles) -> ServerOptions {
        self.node_of(s3, &s3.endpoint, files)
    }

    /// The same, by another way to the object store.
    pub fn node_of(&self, s3: &S3Server, endpoint: &str, files: &TlsFiles) -> ServerOptions {
        let policy = self.pki.path("policy.toml").display().to_string();
        let options = ServerOptions::for_endpoint(s3, endpoint);
        options.args(node_flags(files)).args(["--auth-policy", &policy])
    }
}

/// `forebay ARGUMENTS` at a node, with a certificate.
pub fn forebay(files: &TlsFiles, endpoint: &str, arguments: &[&str]) -> Run {
    Run::new("forebay").args(arguments).args(client_flags(files)).args(["--endpoint", endpoint])
}

/// `curl ARGUMENTS`, with a certificate.
pub fn curl(files: &TlsFiles, arguments: &[&str]) -> Run {
    let flags =
        client_flags(files).into_iter().map(|word| if word == "--ca" { "--cacert".into() } else { word });
    Run::program("curl", "curl").args(["-sS", "--max-time", "20"]).args(flags).args(arguments)
}
