//! Buckets in the names of hosts. What AWS calls its own hosts is in [`credentials`](super::credentials).

use super::{DATASET, PATIENCE, same_as_pyarrow, straight};
use crate::commands::{cached, rows};
use crate::fixtures;
use crate::refused::{SECRET, refused};
use forebay_tests::harness::process::ServerOptions;
use forebay_tests::harness::s3::S3Server;
use forebay_tests::harness::seen::{DOMAIN, SeenRequest};

/// All requests since the last look went to the bucket's own host.
fn by_host(s3: &S3Server) {
    let log = s3.take_log();
    assert!(log.iter().any(SeenRequest::is_object_get), "nothing was read");
    for seen in log {
        assert_eq!(seen.host, format!("{}.{DOMAIN}", s3.bucket), "{seen:?}");
        assert!(!format!("/{}", seen.key).contains("/forebay/"), "the path has the bucket: {seen:?}");
    }
}

#[test]
fn a_bucket_in_the_hosts_name_is_read_whole() {
    let s3 = S3Server::start();
    let uri = fixtures::upload(&s3, DATASET);
    let endpoint = format!("http://{DOMAIN}");
    // No resolver knows the name: requests for it go by a proxy, which is S3 itself.
    let node = |secret: &str| {
        let options = ServerOptions::for_endpoint(&s3, &endpoint);
        let options = options.args(["--s3-path-style", "false", "--patience-s", PATIENCE]);
        options.env("http_proxy", &s3.endpoint).env("AWS_SECRET_ACCESS_KEY", secret).start()
    };
    let server = node(&s3.secret_key);
    same_as_pyarrow(&rows(&server, &uri));
    by_host(&s3);
    server.stop();

    let settings = ["--s3-endpoint", &endpoint, "--s3-path-style", "false"];
    let read = straight(&s3, &uri, &settings).envs([("http_proxy", &s3.endpoint)]);
    same_as_pyarrow(&read.end().expect_success());
    by_host(&s3);

    // The signature is looked at here too.
    let server = node(SECRET);
    refused(cached(&server, &["cat", &uri]), &[&uri, &endpoint, "SignatureDoesNotMatch"]);
    server.stop();
}
