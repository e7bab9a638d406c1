//! What a cache node tells of itself, and what it does when told: metrics, health, status, load, free.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use forebay_client::stream::Stream;
use forebay_client::{Access, Dataset, DatasetSpec};
use forebay_proto::v1;
use forebay_tests::harness::mnist;
use forebay_tests::harness::ports::free_addresses;
use forebay_tests::harness::process::{Run, Server, ServerOptions};
use forebay_tests::harness::s3::S3Server;
use prost::Message;
use rustix::process::{Pid, Signal, kill_process};

use crate::commands::{cached, counter, digests, direct, epoch, json};
use crate::fixtures;
use crate::refused::{check, server_refused, status_of};

/// The body of what an HTTP server answers; panics unless the status is 200.
pub fn get(base: &str, path: &str) -> String {
    let address = base.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).expect("connect");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").expect("ask");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("read the answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    body.to_owned()
}

/// The only metric that not every node has.
const CERTIFICATE: &str = "forebay_tls_certificate_seconds";

#[test]
fn metrics_are_those_that_are_documented() {
    let s3 = S3Server::start();
    let uri = fixtures::upload(&s3, "good/many-files");
    let server = ServerOptions::for_s3(&s3).start();
    let metrics = server.metrics.clone().expect("an address of metrics");
    assert_eq!(get(&metrics, "/health"), "ok\n");
    json(cached(&server, &["epoch", &uri, "--batch", "100"]));
    let text = get(&metrics, "/metrics");
    let mut served: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|l| l.split([' ', '{']).next())
        .collect();
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let page = std::fs::read_to_string(page).expect("read docs/metrics.md");
    let named = |line: &'_ str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    let mut documented: Vec<String> = page.lines().filter_map(named).collect();
    served.sort_unstable();
    // One of several directories, say, has a line of its own.
    served.dedup();
    documented.sort_unstable();
    // A node without a certificate has none to tell of; `tls::refusals` asks one that has.
    documented.retain(|name| name != CERTIFICATE);
    assert_eq!(served, documented);
    for (metric, name) in [
        ("forebay_s3_bytes_total", "s3_bytes"),
        ("forebay_rows_served_total", "rows_served"),
        ("forebay_segment_misses_total", "misses"),
    ] {
        let value = text.lines().find_map(|line| line.strip_prefix(metric)?.trim().parse::<u64>().ok());
        assert_eq!(value, Some(counter(&server, name)), "{metric}");
        assert!(value > Some(0), "{metric}");
    }
    server.stop();
}

#[test]
fn what_was_loaded_is_warm_and_what_was_freed_is_gone() {
    let s3 = S3Server::start();
    mnist::upload(&s3).expect("read MNIST");
    let server = ServerOptions::for_s3(&s3).start();
    let uri = s3.uri("mnist/test");
    let held = || {
        let status = json(cached(&server, &["status"]));
        let field = |name: &str| status[name].as_u64().unwrap_or_else(|| panic!("no {name} in {status}"));
        (field("segments_held"), field("cache_bytes_used"))
    };
    // Folders take some bytes.
    let empty = held();
    assert_eq!(empty.0, 0);
    cached(&server, &["load", &uri]).end().expect_success();
    let (segments, bytes) = held();
    assert!(segments > 0 && bytes > 7_840_000, "{segments} segments, {bytes} bytes");
    let warm = json(cached(&server, &["epoch", &uri]));
    assert_eq!((epoch(&warm, 0, "source"), epoch(&warm, 0, "s3_requests")), (&"cache".into(), &0.into()));

    let other = s3.uri("mnist/train");
    cached(&server, &["load", &other, "--columns", "label"]).end().expect_success();
    cached(&server, &["free", &uri]).end().expect_success();
    let (left, _) = held();
    assert!(left > 0, "the other dataset stays");
    cached(&server, &["free", &s3.uri("mnist")]).end().expect_success();
    let (left, bytes) = held();
    assert_eq!(left, 0);
    assert!(
        bytes <= empty.1 + (32 << 10),
        "{bytes} bytes, of which the descriptions of two datasets take a few KiB"
    );
    let cold = json(cached(&server, &["epoch", &uri]));
    assert_eq!(epoch(&cold, 0, "source"), "s3");
    server.stop();
}

#[test]
fn a_load_is_complete_though_a_node_is_dead() {
    let s3 = S3Server::start();
    mnist::upload(&s3).expect("read MNIST");
    let uri = s3.uri("mnist/test");
    // Nodes by name stay in the topology, whatever becomes of them.
    let addresses = free_addresses(3).expect("free ports");
    let all: Vec<String> =
        addresses.iter().flat_map(|a| ["--cluster-node".to_owned(), format!("http://{a}")]).collect();
    let start = |a: &String| ServerOptions::for_s3(&s3).args(["--listen", a.as_str()]).args(&all).start();
    let mut nodes: Vec<Server> = addresses.iter().map(start).collect();
    nodes[1].kill();
    let began = std::time::Instant::now();
    let loaded = json(cached(&nodes[0], &["load", &uri, "--segment-bytes", "262144"]));
    assert_eq!(loaded["failed"], serde_json::json!([]), "{loaded}");
    assert!(loaded["segments_total"].as_u64().is_some_and(|total| total >= 6), "{loaded}");
    assert_eq!(loaded["segments_held"], loaded["segments_total"], "{loaded}");
    // A dead node is noticed within 3 s.
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    let warm = json(cached(&nodes[2], &["epoch", "--verify", &uri, "--segment-bytes", "262144"]));
    assert_eq!(epoch(&warm, 0, "s3_bytes"), 0, "both hold all that the dead one would own");
    let plain = json(direct(&s3, &["epoch", "--verify", &uri, "--segment-bytes", "262144"]));
    assert_eq!(digests(&warm, 0), digests(&plain, 0));
}

#[test]
fn what_does_not_fit_is_not_said_to_be_held() {
    let s3 = S3Server::start();
    mnist::upload(&s3).expect("read MNIST");
    let server = ServerOptions::for_s3(&s3).args(["--cache-bytes", "20MB"]).start();
    let uri = s3.uri("mnist/train");
    let why = cached(&server, &["load", &uri, "--segment-bytes", "8MiB"]).end().expect_failure();
    assert!(why.contains("the cache holds") && why.contains("more room (--cache-bytes)"), "{why}");
    cached(&server, &["load", &uri, "--segment-bytes", "8MiB", "--columns", "label"]).end().expect_success();
    server.stop();
}

#[test]
fn the_endpoint_may_come_from_the_environment() {
    let s3 = S3Server::start();
    let uri = fixtures::upload(&s3, "good/one-row");
    let server = ServerOptions::for_s3(&s3).start();
    for endpoint in [server.endpoint.as_str(), server.endpoint.trim_start_matches("http://")] {
        let run = Run::new("forebay").args(["cat", &uri, "--columns", "id"]);
        let rows = run.envs([("FOREBAY_ENDPOINT", endpoint)]).end().expect_success();
        assert_eq!(rows, b"{\"id\":0}\n");
    }
    server.stop();
}

#[test]
fn a_reader_that_stands_still_does_not_keep_the_node_from_stopping() {
    let s3 = S3Server::start();
    mnist::upload(&s3).expect("read MNIST");
    let server = ServerOptions::for_s3(&s3).env("FOREBAY_DRAIN_S", "0.2").start();
    let runtime = tokio::runtime::Runtime::new().expect("start a runtime");
    let stream = runtime.block_on(async {
        let access = Access::endpoint(&server.endpoint).expect("an endpoint");
        let spec = DatasetSpec { uri: s3.uri("mnist/test"), ..Default::default() };
        let dataset = Dataset::open(&access, &spec).await.expect("open");
        let manifest = dataset.manifest.digest().to_bytes().to_vec().into();
        let scan = v1::ScanTicket { manifest, ..Default::default() };
        let ticket =
            v1::Ticket { kind: Some(v1::ticket::Kind::Scan(scan)), ..Default::default() }.encode_to_vec();
        let mut stream = Stream::open(&server.endpoint, &ticket, 64 << 10).await.expect("a stream");
        stream.next().await.expect("the schema");
        // Its window fills up while pings are still answered.
        tokio::time::sleep(Duration::from_millis(500)).await;
        stream
    });
    server.stop();
    drop(stream);
}

#[test]
fn a_variable_that_looks_like_a_number_is_text_where_text_is_wanted() {
    let server = ServerOptions::bare()
        .args(["--allow", "s3://bucket"])
        .env("FOREBAY_NODE", "007")
        .env("FOREBAY_SOURCE__S3_ACCESS_KEY_ID", "12")
        .env("FOREBAY_SOURCE__S3_SECRET_ACCESS_KEY", "0123456789")
        .start();
    assert_eq!(json(cached(&server, &["status"]))["node"], "007");
    server.stop();
}

#[test]
fn what_is_pinned_stays_also_after_a_restart() {
    let s3 = S3Server::start();
    mnist::upload(&s3).expect("read MNIST");
    let folder = tempfile::tempdir().expect("make a folder");
    // Room for the small dataset and a part of the large one.
    let options = || ServerOptions::for_s3(&s3).folder(folder.path()).args(["--cache-bytes", "20MB"]);
    let server = options().start();
    let (pinned, other) = (s3.uri("mnist/test"), s3.uri("mnist/train"));
    let pin = json(cached(&server, &["pin", &pinned]));
    assert_eq!((pin["uri"].as_str(), pin["files"].as_u64()), (Some(pinned.as_str()), Some(0)));
    cached(&server, &["load", &pinned]).end().expect_success();
    let fills_up = |server: &Server| {
        cached(server, &["epoch", &other, "--segment-bytes", "2000000"]).end().expect_success();
        let status = json(cached(server, &["status"]));
        assert_eq!(status["pins"], serde_json::json!([pinned]));
        assert!(status["pinned_bytes"].as_u64() > Some(7_840_000), "{status}");
        let warm = json(cached(server, &["epoch", &pinned]));
        assert_eq!(epoch(&warm, 0, "source"), "cache");
    };
    fills_up(&server);
    server.stop();
    let server = options().start();
    fills_up(&server);
    let text = cached(&server, &["unpin", &pinned]).end().expect_success();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(text.contains("no longer pinned"), "{text}");
    check(cached(&server, &["unpin", &pinned]).end(), &[&pinned, "not pinned"]);
    server.stop();
}

#[test]
fn what_is_pinned_is_there_or_meant_to_come() {
    let s3 = S3Server::start();
    mnist::upload(&s3).expect("read MNIST");
    let server = ServerOptions::for_s3(&s3).start();
    let nothing = s3.uri("mnist/tset");
    let pins = || json(cached(&server, &["status"]))["pins"].clone();
    let says = [nothing.as_str(), "nothing lies there", "--ahead"];
    check(cached(&server, &["pin", &nothing]).end(), &says);
    assert_eq!(pins(), serde_json::json!([]));
    json(cached(&server, &["pin", &nothing, "--ahead"]));
    assert_eq!(pins(), serde_json::json!([nothing]));
    // Objects that lie there need not be held, and those that are held need not lie there any more.
    let (test, object) = (s3.uri("mnist/test"), s3.uri("mnist/train/part-00000.parquet"));
    cached(&server, &["load", &test]).end().expect_success();
    for part in ["part-00000", "part-00001"] {
        s3.objects().delete(&s3.bucket, &format!("mnist/test/{part}.parquet"));
    }
    for uri in [&test, &object] {
        json(cached(&server, &["pin", uri]));
    }
    server.stop();
}

#[test]
fn status_sorts_datasets_and_shows_as_many_as_are_wanted() {
    let s3 = S3Server::start();
    mnist::upload(&s3).expect("read MNIST");
    let server = ServerOptions::for_s3(&s3).start();
    let [test, train, one] =
        ["mnist/test", "mnist/train", "mnist/train/part-00000.parquet"].map(|name| s3.uri(name));
    cached(&server, &["load", &test]).end().expect_success();
    for uri in [&one, &train] {
        cached(&server, &["inspect", uri]).end().expect_success();
    }
    let shown = |more: &[&str]| {
        let text = cached(&server, &[&["status"], more].concat()).end().expect_success();
        let text = String::from_utf8(text).expect("text");
        let uris = text.lines().filter_map(|line| line.split_whitespace().next());
        let uris: Vec<String> = uris.filter(|word| word.starts_with("s3://")).map(Into::into).collect();
        (uris, text)
    };
    for (more, wanted) in [
        (&[][..], vec![&test, &train, &one]),
        (&["--sort", "rows"], vec![&train, &test, &one]),
        (&["--sort", "held", "--limit", "1"], vec![&test]),
        (&["--sort", "segments", "--limit", "1"], vec![&train]),
        (&[&train, "--limit", "2"], vec![&train, &one]),
    ] {
        let (uris, text) = shown(more);
        assert_eq!(uris.iter().collect::<Vec<_>>(), wanted, "{more:?}: {text}");
        assert_eq!(text.contains("and 2 further datasets"), wanted.len() == 1, "{more:?}: {text}");
    }
    server.stop();
}

#[test]
fn status_tells_of_the_nodes_that_answer_by_whatever_name_one_was_asked() {
    let s3 = S3Server::start();
    let addresses = free_addresses(2).expect("free ports");
    let cluster = |address: &String| {
        let options = ServerOptions::for_s3(&s3).args(["--listen", address]).allow_log("does not answer");
        options
            .args(addresses.iter().flat_map(|a| ["--cluster-node".to_owned(), format!("http://{a}")]))
            .start()
    };
    let (mut first, second) = (cluster(&addresses[0]), cluster(&addresses[1]));
    first.kill();
    let by_name = second.endpoint.replace("127.0.0.1", "localhost");
    let status = || Run::new("forebay").args(["status", "--endpoint", &by_name]);
    let answer = json(status());
    let nodes = answer["nodes"].as_array().expect("nodes");
    let answering: Vec<_> = nodes.iter().filter(|n| n["answers"] == true).map(|n| &n["address"]).collect();
    assert!(nodes.len() == 2 && answering == [second.endpoint.as_str()], "{answer}");
    let text = String::from_utf8(status().end().expect_success()).expect("text");
    assert!(text.contains("does not answer") && text.contains(" up"), "{text}");
    second.stop();
}

#[test]
fn a_node_that_is_drained_by_its_url_is_asked_with_the_files_of_the_flags() {
    let ask = Run::new("forebay").args(["drain", "http://127.0.0.1:1", "--ca", "/nowhere/ca.pem"]);
    let error = ask.end().expect_failure();
    assert!(error.contains("/nowhere/ca.pem"), "{error}");
}

#[test]
fn a_hangup_does_not_end_a_node() {
    let server = ServerOptions::bare().args(["--allow", "s3://bucket/"]).start();
    let pid = i32::try_from(server.pid()).ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(pid, Signal::HUP).expect("send a signal");
    let deadline = Instant::now() + Duration::from_secs(20);
    while !server.log().contains("SIGHUP changes nothing") {
        assert!(Instant::now() < deadline, "it says nothing of the signal: {}", server.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    json(cached(&server, &["status"]));
    server.stop();
}

#[test]
fn settings_that_do_nothing_or_cannot_be_understood_are_refused() {
    let node = || ServerOptions::bare().args(["--allow", "s3://bucket/"]);
    for (flags, says) in [
        (["--s3-keys", "/nope"], "--s3-keys needs --s3-listen"),
        (["--s3-domain", "foo"], "--s3-domain needs --s3-listen"),
        (["--tls-ca", "/nope"], "--tls-ca needs --tls-cert"),
        (["--etcd-ca", "/nope"], "need --etcd"),
        (["--unix-socket-group", "nope"], "unix_socket_group `nope`"),
    ] {
        server_refused(node().args(flags), &[says]);
    }
    server_refused(node().env("FOREBAY_LOG", "forebay_server=debgu"), &["FOREBAY_LOG=forebay_server=debgu"]);
}

#[test]
fn commands_tell_a_wrong_command_line_from_a_failure_and_log_without_colours() {
    let of = |line: &[&str], log: &str| Run::new("forebay").args(line).envs([("RUST_LOG", log)]);
    status_of(of(&["status", "--endpoint", "127.0.0.1"], "off"), 2, &["127.0.0.1", "http://host:port"]);
    let epoch = ["epoch", "s3://b/d", "--direct", "--rank", "4", "--world", "2"];
    status_of(of(&epoch, "off"), 2, &["rank 4 of 2"]);
    status_of(of(&["status", "--endpoint", "127.0.0.1:1"], "off"), 1, &["cannot reach the cache"]);
    status_of(of(&["status", "--endpoint", "127.0.0.1:1"], "forebay=debgu"), 1, &["RUST_LOG=forebay=debgu"]);
    // A warning, as everybody may read it.
    let token = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(token.path(), "token").expect("write it");
    std::fs::set_permissions(token.path(), PermissionsExt::from_mode(0o644)).expect("change its mode");
    let line = ["status", "--endpoint", "127.0.0.1:1", "--token-file", &token.path().display().to_string()];
    let logged = of(&line, "warn").envs([("NO_COLOR", "")]).end().stderr;
    assert!(logged.contains(" WARN ") && !logged.contains('\x1b'), "{logged:?}");
}
