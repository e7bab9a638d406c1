//! Keys that others give: a program, a role, an instance. They expire every few seconds while a node reads,
//! and no read fails.

use super::{DATASET, same_as_pyarrow};
use crate::commands::{cached, rows};
use crate::fixtures;
use forebay_tests::harness::cloud::{CloudServer, KEYS, SOURCE_KEY, TemporaryKeys};
use forebay_tests::harness::pki::{Leaf, Pki};
use forebay_tests::harness::process::{Server, ServerOptions};
use forebay_tests::harness::s3::{ConnectProxy, REGION, S3Server};
use forebay_tests::harness::seen::{AWS_DOMAIN, SeenRequest};
use forebay_tests::harness::tap::TlsFront;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long keys are valid.
const LIFETIME: Duration = Duration::from_secs(4);

/// Those that are given during a test: they are renewed at least twice.
const ISSUED: usize = 3;

/// How long that may take.
const LIMIT: Duration = Duration::from_secs(120);

/// S3, who gives keys to it, and the home of a node that has none.
struct Stage {
    s3: S3Server,
    uri: String,
    cloud: CloudServer,
    issued: Arc<AtomicUsize>,
    home: tempfile::TempDir,
}

impl Stage {
    fn start() -> Self {
        let s3 = S3Server::start();
        let uri = fixtures::upload(&s3, DATASET);
        let (keys, issued) = (s3.keys(), Arc::new(AtomicUsize::new(0)));
        let count = issued.clone();
        let cloud = CloudServer::start(move || {
            let id = format!("TEMPORARY{}", count.fetch_add(1, Relaxed));
            keys.add(&id, "temporary-secret", Some(LIFETIME));
            TemporaryKeys { id, secret: "temporary-secret".into(), lifetime: LIFETIME }
        });
        Self { s3, uri, cloud, issued, home: tempfile::tempdir().expect("make a folder") }
    }

    /// Writes a file in the home that only its owner may read, and run.
    fn put(&self, name: &str, text: &str) -> PathBuf {
        let path = self.home.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("make it");
        std::fs::write(&path, text).expect("write");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).expect("change the mode");
        path
    }

    /// A node without keys of its own.
    fn node(&self) -> ServerOptions {
        let options = ServerOptions::bare().args(["--allow", "s3://forebay/", "--s3-region", REGION]);
        options.env("HOME", &self.home.path().to_string_lossy())
    }

    /// The same, to which S3 is the server of this stage.
    fn near(&self) -> ServerOptions {
        self.node().args(["--s3-endpoint", &self.s3.endpoint])
    }

    /// Has a node read the dataset from S3 again and again, until its keys were renewed.
    fn reads_while_keys_expire(&self, server: Server) {
        let first = rows(&server, &self.uri);
        same_as_pyarrow(&first);
        let began = Instant::now();
        while self.issued.load(Relaxed) < ISSUED {
            assert!(
                began.elapsed() < LIMIT,
                "{} keys in {LIMIT:?}: {}",
                self.issued.load(Relaxed),
                server.log()
            );
            cached(&server, &["free", &self.uri]).end().expect_success();
            self.s3.take_log();
            assert!(rows(&server, &self.uri) == first, "other rows, with other keys");
            let is_data = |seen: &SeenRequest| seen.is_object_get() && seen.status == 206;
            assert!(self.s3.log().iter().any(is_data), "it was not read from S3");
        }
        server.stop();
    }
}

#[test]
fn keys_that_a_program_prints_are_renewed_without_a_failed_read() {
    let stage = Stage::start();
    let ask = format!("#!/bin/sh\nexec curl -sSf --max-time 20 {}/{KEYS}\n", stage.cloud.endpoint);
    let program = stage.put("print-keys", &ask);
    stage.put(".aws/config", &format!("[default]\ncredential_process = {}\n", program.display()));
    stage.reads_while_keys_expire(stage.near().start());
}

#[test]
fn a_role_that_is_assumed_is_renewed_without_a_failed_read() {
    let stage = Stage::start();
    let role = "[profile reader]\nrole_arn = arn:aws:iam::1:role/reader\nsource_profile = base\n";
    stage.put(".aws/config", role);
    let base = format!("[base]\naws_access_key_id = {SOURCE_KEY}\naws_secret_access_key = of-the-source\n");
    stage.put(".aws/credentials", &base);
    let node = stage.near().args(["--s3-profile", "reader"]);
    let server = node.env("AWS_ENDPOINT_URL_STS", &stage.cloud.endpoint).start();
    stage.reads_while_keys_expire(server);
}

/// As on an instance of AWS: no settings but the region, S3 by its own name and TLS, keys from the metadata
/// service.
#[test]
fn an_instances_role_is_renewed_without_a_failed_read() {
    let stage = Stage::start();
    let pki = Pki::new().expect("a folder");
    let authority = Pki::authority("aws").expect("an authority");
    let ca = pki.put("ca.pem", &authority.pem).expect("write it");
    let host = format!("*.{AWS_DOMAIN}");
    let leaf = Leaf { hosts: &[&host], ..Leaf::node("s3") };
    let (files, _) = pki.issue(leaf, Some(&authority)).expect("a certificate");
    let front = TlsFront::start(files, stage.s3.address).expect("S3 by TLS");
    let proxy = ConnectProxy::start(front.address).expect("a proxy");
    let node = stage.node().args(["--s3-ca", &ca.to_string_lossy()]).env("https_proxy", &proxy.endpoint);
    let server = node
        .env("AWS_EC2_METADATA_DISABLED", "false")
        .env("AWS_EC2_METADATA_SERVICE_ENDPOINT", &stage.cloud.endpoint)
        .start();
    stage.reads_while_keys_expire(server);
    let host = format!("{}.{AWS_DOMAIN}", stage.s3.bucket);
    assert!(stage.s3.log().iter().all(|seen| seen.host == host), "{:?}", stage.s3.log());
    let asked = proxy.asked();
    assert!(!asked.is_empty() && asked.iter().all(|name| *name == format!("{host}:443")), "{asked:?}");
}
