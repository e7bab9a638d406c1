//! The S3 endpoint of a node: what it answers is what the object store behind it answers.

mod bad_input;
mod clients;
mod differential;
mod lending;
mod lies;

use forebay_tests::harness::differential::{Twins, bytes_of};
use forebay_tests::harness::process::{Server, ServerOptions};
use forebay_tests::harness::s3::S3Server;
use forebay_tests::harness::s3_client::{S3Ask, S3Client, S3Reply};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

/// The key that the endpoint knows.
const KEY: (&str, &str) = ("reader", "secret/of+the/reader");

const DOMAIN: &str = "s3.test";

/// An object store, and a node whose endpoint serves it.
struct Gateway {
    s3: S3Server,
    server: Server,
    runtime: tokio::runtime::Runtime,
    _folder: tempfile::TempDir,
}

impl Gateway {
    /// With small blocks, so that objects of some kilobytes have many.
    fn start() -> Self {
        Self::with(|options| options)
    }

    fn with(change: impl FnOnce(ServerOptions) -> ServerOptions) -> Self {
        let (s3, folder) = (S3Server::start(), tempfile::tempdir().expect("make a folder"));
        let keys = write_keys(folder.path().join("keys"));
        let options = ServerOptions::for_s3(&s3)
            .args(["--s3-listen", "127.0.0.1:0", "--s3-domain", DOMAIN, "--s3-keys"])
            .arg(keys.to_str().expect("a path of text"))
            .args(["--s3-public", &s3.uri("public/")])
            .env("FOREBAY_OBJECTS__BLOCK_BYTES", "65536");
        let server = change(options).start();
        let runtime = tokio::runtime::Runtime::new().expect("start a runtime");
        Self { s3, server, runtime, _folder: folder }
    }

    /// A client of the object store.
    fn store(&self) -> S3Client {
        S3Client {
            endpoint: self.s3.endpoint.clone(),
            key_id: self.s3.access_key.clone(),
            secret: self.s3.secret_key.clone(),
        }
    }

    /// A client of the endpoint.
    fn client(&self) -> S3Client {
        let endpoint = self.server.s3.clone().expect("it serves S3");
        S3Client { endpoint, key_id: KEY.0.into(), secret: KEY.1.into() }
    }

    /// The endpoint's answer.
    fn ask(&self, ask: &S3Ask) -> S3Reply {
        self.runtime.block_on(self.client().send(ask)).unwrap_or_else(|e| panic!("{ask:?}: {e:#}"))
    }

    fn ask_unsigned(&self, ask: &S3Ask) -> S3Reply {
        self.runtime.block_on(self.client().send_unsigned(ask)).unwrap_or_else(|e| panic!("{ask:?}: {e:#}"))
    }

    /// Both, to be compared.
    fn twins(&self) -> Twins {
        Twins { store: self.store(), node: self.client(), bucket: self.s3.bucket.clone() }
    }
}

fn write_keys(path: PathBuf) -> PathBuf {
    use std::io::Write as _;
    let mut file = std::fs::File::options()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(&path)
        .expect("open");
    writeln!(file, "# for tests\n{} {}", KEY.0, KEY.1).expect("write keys");
    path
}
