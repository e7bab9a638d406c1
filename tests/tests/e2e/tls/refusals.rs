//! Nodes whose certificates are not good, and files that make no sense. What becomes of clients is in
//! [`attacks`](crate::attacks).

use super::upload;
use crate::refused::{refused, server_refused};
use forebay_client::TlsFiles;
use forebay_tests::harness::pki::{Leaf, Pki};
use forebay_tests::harness::process::{Server, ServerOptions};
use forebay_tests::harness::s3::S3Server;
use forebay_tests::harness::tls_world::{ROOT, TlsWorld, VISION, curl, forebay};
use std::os::unix::fs::PermissionsExt;

fn metric(server: &Server, root: &TlsFiles, name: &str) -> u64 {
    let metrics = server.metrics.as_ref().expect("metrics");
    let text = String::from_utf8(curl(root, &[&format!("{metrics}/metrics")]).end().expect_success());
    let text = text.expect("text");
    let line = text.lines().find_map(|line| {
        let (of, value) = line.split_once(' ')?;
        // Without the labels.
        (of.split('{').next()?.strip_prefix("forebay_")? == name).then_some(value)
    });
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().expect("a number")
}

#[test]
fn nodes_with_certificates_that_are_not_good_are_not_believed() {
    let (world, s3) = (TlsWorld::new("hidden/"), S3Server::start());
    let server = world.node(&s3, &world.issue(Leaf::node("node"))).start();
    let good = world.issue(Leaf::client("good", VISION));
    forebay(&good, &server.endpoint, &["status"]).end().expect_success();
    let other = Pki::authority("other").expect("an authority");
    let other_ca = world.pki.put("other.pem", &other.pem).expect("write it");
    let misled = TlsFiles { ca: Some(other_ca), ..good.clone() };
    refused(forebay(&misled, &server.endpoint, &["status"]), &["authority that is not known here"]);
    let elsewhere = world.issue(Leaf { hosts: &["cache-9"], ..Leaf::node("elsewhere") });
    let second = world.node(&s3, &elsewhere).args(["--advertise", "https://127.0.0.1:1"]);
    let second = second.allow_log("--tls-cert is not for the host").start();
    refused(forebay(&good, &second.endpoint, &["status"]), &["not for 127.0.0.1: it is for cache-9"]);
    let log = second.log();
    let told = log.lines().find(|line| line.contains(" WARN ")).expect("a warning");
    assert!(told.contains("host=\"127.0.0.1\"") && told.contains("certificate_for=\"cache-9\""), "{told}");
    // The other way round, as a command says it.
    let (foreign, _) = world.pki.issue(Leaf::client("foreign", VISION), Some(&other)).expect("a certificate");
    let says = ["does not know the authority", &server.endpoint];
    refused(forebay(&foreign, &server.endpoint, &["status"]), &says);
    let stranger = world.issue(Leaf::client("stranger", "spiffe://test/stranger"));
    refused(forebay(&stranger, &server.endpoint, &["status"]), &["does not know you"]);
    let root = world.issue(Leaf::client("root", ROOT));
    assert!(metric(&server, &root, "tls_certificate_seconds") > 0);
}

#[test]
fn nodes_with_files_that_make_no_sense_do_not_start() {
    let (world, s3) = (TlsWorld::new("hidden/"), S3Server::start());
    let files = world.issue(Leaf::node("node"));
    let key = files.key.clone().expect("a key");
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o644)).expect("change the mode");
    server_refused(world.node(&s3, &files), &["node-key.pem", "mode is 0644"]);
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).expect("change the mode");
    let advertise = world.node(&s3, &files).args(["--advertise", "http://127.0.0.1:7"]);
    server_refused(advertise, &["http://127.0.0.1:7", "either all nodes of a cluster speak TLS"]);
    let lonely = TlsFiles { key: None, ..files.clone() };
    server_refused(world.node(&s3, &lonely), &["--tls-cert needs --tls-key"]);
    let open = ServerOptions::for_s3(&s3).args(["--listen", "0.0.0.0:0"]);
    server_refused(open.clone(), &["0.0.0.0:0", "--auth-policy", "--tls-cert", "--insecure"]);
    let told = open.arg("--insecure").allow_log("--insecure").start();
    assert_eq!(told.log().matches("WARN").count(), 1, "{}", told.log());
    told.stop();
}

#[test]
fn clients_of_s3_need_no_certificate() {
    let (world, s3) = (TlsWorld::new("hidden/"), S3Server::start());
    let uri = upload(&s3);
    let files = world.issue(Leaf::node("node"));
    let server = world.node(&s3, &files).args(["--s3-listen", "127.0.0.1:0", "--s3-public", &uri]).start();
    let none = TlsFiles { ca: files.ca.clone(), ..TlsFiles::default() };
    let at = server.s3.as_ref().expect("an address of S3");
    let read = curl(&none, &[&format!("{at}/forebay/hidden/0.parquet")]).end().expect_success();
    assert!(read.starts_with(b"PAR1") && read.ends_with(b"PAR1"), "{} bytes", read.len());
    let metrics = server.metrics.as_ref().expect("metrics");
    assert_ne!(curl(&none, &[&format!("{metrics}/health")]).end().code, Some(0), "others do");
}
