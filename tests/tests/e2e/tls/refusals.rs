//! Certificates that are not good, files that make no sense, and all that speaks no TLS 1.3.

use super::upload;
use crate::refused::{refused, server_refused};
use forebay_client::TlsFiles;
use forebay_tests::harness::pki::{Leaf, Pki};
use forebay_tests::harness::process::{Server, ServerOptions};
use forebay_tests::harness::s3::S3Server;
use forebay_tests::harness::tls_world::{ROOT, TlsWorld, VISION, curl, forebay};
use forebay_tls::ClientTls;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// "At once", on a machine that is busy.
const SOON: Duration = Duration::from_secs(5);

fn port(url: &str) -> &str {
    url.rsplit("//").next().expect("an address")
}

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

fn wait(what: &str, limit: Duration, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < limit, "{what} after {limit:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn certificates_that_are_not_good_get_nowhere() {
    let (world, s3) = (TlsWorld::new("hidden/"), S3Server::start());
    let crl = |serials: &[u64]| world.pki.revoke(serials, &world.authority).expect("a list");
    let other = Pki::authority("other").expect("an authority");
    let issue = |leaf, by| world.pki.issue(leaf, by).expect("a certificate");
    let client = |name| Leaf::client(name, VISION);
    let (revoked, serial) = issue(client("revoked"), Some(&world.authority));
    let node = TlsFiles { crl: Some(crl(&[serial])), ..world.issue(Leaf::node("node")) };
    let audit = world.pki.path("audit.jsonl");
    let server = world.node(&s3, &node).args(["--audit-file", &audit.display().to_string()]).start();
    let good = world.issue(client("good"));
    forebay(&good, &server.endpoint, &["status"]).end().expect_success();
    let ours = Some(&world.authority);
    let (foreign, _) = issue(client("foreign"), Some(&other));
    let (expired, _) = issue(Leaf { days: (-9, -1), ..client("expired") }, ours);
    let (young, _) = issue(Leaf { days: (1, 9), ..client("young") }, ours);
    let (itself, _) = issue(client("itself"), None);
    let none = TlsFiles { cert: None, key: None, ..good.clone() };
    for (files, says) in [
        (foreign, "does not know the authority"),
        (expired, "has expired"),
        (young, "does not begin yet"),
        (itself, "does not know the authority"),
        (revoked, "was revoked"),
        (none, "asks for a client certificate"),
    ] {
        refused(forebay(&files, &server.endpoint, &["status"]), &[says, &server.endpoint]);
    }
    let stranger = world.issue(Leaf::client("stranger", "spiffe://test/stranger"));
    refused(forebay(&stranger, &server.endpoint, &["status"]), &["does not know you"]);
    // The other way round: the node's certificate is not one that the client believes.
    let other_ca = world.pki.put("other.pem", &other.pem).expect("write it");
    let misled = TlsFiles { ca: Some(other_ca), ..good.clone() };
    refused(forebay(&misled, &server.endpoint, &["status"]), &["authority that is not known here"]);
    let elsewhere = world.issue(Leaf { hosts: &["cache-9"], ..Leaf::node("elsewhere") });
    let second = world.node(&s3, &elsewhere).start();
    refused(forebay(&good, &second.endpoint, &["status"]), &["not for 127.0.0.1: it is for cache-9"]);
    let root = world.issue(Leaf::client("root", ROOT));
    assert!(metric(&server, &root, "tls_handshakes_failed_total") >= 6);
    assert!(metric(&server, &root, "tls_certificate_seconds") > 0);
    let audit = std::fs::read_to_string(audit).expect("the audit log");
    assert!(audit.lines().any(|line| line.contains("nobody who is known")), "{audit}");
}

#[test]
fn the_connection_of_a_revoked_certificate_is_cut_within_ten_seconds() {
    let (world, s3) = (TlsWorld::new("hidden/"), S3Server::start());
    let issue = |name| world.pki.issue(Leaf::client(name, VISION), Some(&world.authority)).expect("issue");
    let ((good, _), (bad, serial)) = (issue("good"), issue("bad"));
    let crl = world.pki.revoke(&[1], &world.authority).expect("a list");
    let node = TlsFiles { crl: Some(crl), ..world.issue(Leaf::node("node")) };
    let server = world.node(&s3, &node).env("FOREBAY_LIMITS__HANDSHAKE_S", "300").start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (host, at) = port(&server.endpoint).split_once(':').expect("a port");
    let at: u16 = at.parse().expect("a port");
    runtime.block_on(async {
        let connect = async |files: TlsFiles| {
            let mut stream = ClientTls::new(files).dial(host, at).await.expect("a handshake");
            stream
                .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
                .await
                .expect("a preface");
            let mut settings = [0; 9];
            stream.read_exact(&mut settings).await.expect("settings");
            stream
        };
        let (mut kept, mut cut) = (connect(good).await, connect(bad).await);
        world.pki.revoke(&[serial], &world.authority).expect("a list");
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(10), cut.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "it is open after ten seconds");
        let mut rest = [0; 64 << 10];
        let open = async {
            // It says what it has to say, and stays.
            while kept.read(&mut rest).await.expect("a connection") > 0 {}
        };
        assert!(
            tokio::time::timeout(Duration::from_secs(1), open).await.is_err(),
            "the other one was cut too"
        );
    });
}

#[test]
fn what_is_no_tls_of_now_is_refused_at_once() {
    let (world, s3) = (TlsWorld::new("hidden/"), S3Server::start());
    let files = world.issue(Leaf::node("node"));
    let server = world.node(&s3, &files).env("FOREBAY_LOG", "info,forebay_server=debug").start();
    let root = world.issue(Leaf::client("root", ROOT));
    for plain in
        [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"[..], b"GET /health HTTP/1.1\r\n\r\n"]
    {
        for url in [&server.endpoint, server.metrics.as_ref().expect("metrics")] {
            at_once(|| {
                let mut stream = TcpStream::connect(port(url)).expect("connect");
                stream.set_read_timeout(Some(SOON * 4)).expect("a limit");
                stream.write_all(plain).expect("write");
                let mut answer = Vec::new();
                // It may be told by an alert, or by a reset.
                stream.read_to_end(&mut answer).ok();
                assert!(!answer.starts_with(b"HTTP") && answer.len() < 100, "{answer:?}");
            });
        }
    }
    let (grpc, metrics) = (&server.endpoint, server.metrics.as_ref().expect("metrics"));
    for (url, how) in [(metrics, ["--tls-max", "1.2"]), (grpc, ["--http1.1", "-4"])] {
        at_once(|| {
            let ended = curl(&root, &[&how[..], &[&format!("{url}/health")]].concat()).end();
            assert_eq!(ended.code, Some(35), "{how:?}: no handshake: {}", ended.stderr);
        });
    }
    curl(&root, &[&format!("{metrics}/health")]).end().expect_success();
    let told = server.log().lines().filter(|line| line.contains("a TLS handshake failed")).count();
    assert_eq!(told, 6, "a line for each:\n{}", server.log());
    // TLS where none is spoken.
    let plain = ServerOptions::for_s3(&s3).env("FOREBAY_LOG", "info,forebay_server=debug").start();
    for url in [&plain.endpoint, plain.metrics.as_ref().expect("metrics")] {
        at_once(|| {
            let ended = curl(&root, &[&url.replace("http://", "https://")]).end();
            assert_eq!(ended.code, Some(35), "{}", ended.stderr);
        });
    }
    let said = |text: &str| plain.log().lines().filter(|line| line.contains(text)).count();
    wait("a line for each", SOON, || {
        said("a gRPC connection ends") == 1 && said("a connection to /metrics ends") == 1
    });
    let why = refused(forebay(&root, &plain.endpoint.replace("http://", "https://"), &["status"]), &[]);
    assert!(why.contains("no TLS is spoken there"), "{why}");
}

fn at_once(refuse: impl FnOnce()) {
    let began = Instant::now();
    refuse();
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[test]
fn new_files_that_make_no_sense_leave_those_of_before_in_force() {
    let (world, s3) = (TlsWorld::new("hidden/"), S3Server::start());
    let files = world.issue(Leaf::node("node"));
    let server = world.node(&s3, &files).allow_log("the new TLS files cannot be used").start();
    let root = world.issue(Leaf::client("root", ROOT));
    let read = |path: &Option<std::path::PathBuf>| {
        std::fs::read_to_string(path.as_ref().expect("a file")).expect("read")
    };
    let (cert, key) = (read(&files.cert), read(&files.key));
    let (others, _) = world.pki.issue(Leaf::node("others"), Some(&world.authority)).expect("issue");
    let failed = || metric(&server, &root, "tls_reloads_failed_total");
    let unreadable = world.pki.path("nowhere");
    for (number, (name, text)) in [
        ("node.pem", Some(&cert[..cert.len() / 2])),
        ("node.pem", Some("")),
        ("node-key.pem", Some(read(&others.key).as_str())),
        ("node.pem", None),
    ]
    .into_iter()
    .enumerate()
    {
        match text {
            Some(text) => drop(world.pki.put(name, text).expect("write")),
            None => {
                std::fs::remove_file(world.pki.path(name)).expect("remove");
                std::os::unix::fs::symlink(&unreadable, world.pki.path(name)).expect("a link to nothing");
            }
        }
        wait("the mistake is counted", Duration::from_secs(20), || failed() > number as u64);
        forebay(&root, &server.endpoint, &["status"]).end().expect_success();
        // Back, which is no change of the certificate in force.
        std::fs::remove_file(world.pki.path("node.pem")).ok();
        world.pki.put("node.pem", &cert).expect("write");
        world.pki.put("node-key.pem", &key).expect("write");
        std::thread::sleep(Duration::from_secs(4));
    }
    assert_eq!(failed(), 4);
    assert_eq!(server.log().matches("the new TLS files cannot be used").count(), 4, "one line for each");
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
