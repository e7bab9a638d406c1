//! Requests that mean harm: none harms the node. Those that make no sense are case 38 of `make attack`.

use super::*;
use forebay_tests::harness::fault::Fault;
use forebay_tests::harness::s3_raw::{self, PATIENCE, get, say, status};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

fn raw(gateway: &Gateway, bytes: &[u8]) -> String {
    say(address(gateway), bytes).expect("connect")
}

fn connect(gateway: &Gateway) -> TcpStream {
    s3_raw::connect(address(gateway)).expect("connect")
}

fn address(gateway: &Gateway) -> SocketAddr {
    let endpoint = gateway.server.s3.as_deref().expect("it serves S3");
    endpoint.trim_start_matches("http://").parse().expect("an address")
}

pub fn resident_mb(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the node lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") / 1024
}

#[test]
fn only_the_version_that_there_is_may_be_named() {
    let gateway = Gateway::start();
    gateway.s3.keep_versions();
    let target = |query: &str| format!("/{}/kept{query}", gateway.s3.bucket);
    let mut ids = Vec::new();
    for bytes in ["old", "new"] {
        gateway.s3.put("kept", bytes);
        let head = gateway.ask(&S3Ask::new("HEAD", target("")));
        let id = head.headers.get("x-amz-version-id").expect("an id");
        ids.push(id.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D"));
    }
    let ask = |id: &str| gateway.ask(&S3Ask::new("GET", target(&format!("?versionId={id}"))));
    let current = ask(&ids[1]);
    assert!(current.status == 200 && current.body == "new", "{ids:?}: {current:?}");
    for id in [&*ids[0], "null", "none", ""] {
        assert_eq!(ask(id).status, 501, "{id}");
    }
    gateway.server.stop();
}

#[test]
fn a_token_of_another_listing_shows_nothing_beyond_the_prefix() {
    let gateway = Gateway::start();
    for n in 0..3 {
        gateway.s3.put(&format!("private/{n}"), "others");
        gateway.s3.put(&format!("public/{n}"), "bytes");
        gateway.s3.objects().put("elsewhere", &format!("public/{n}"), "of another bucket");
    }
    let token_of = |bucket: &str, prefix: &str| {
        let target = format!("/{bucket}?list-type=2&max-keys=1&prefix={prefix}");
        let page =
            gateway.runtime.block_on(gateway.store().send(&S3Ask::new("GET", target))).expect("a page");
        let page = String::from_utf8_lossy(&page.body).into_owned();
        let token = page.split_once("<NextContinuationToken>").expect("a token").1;
        token.split_once('<').expect("an end").0.to_owned()
    };
    let bucket = &gateway.s3.bucket;
    for (from, prefix) in [(bucket.as_str(), "private/"), ("elsewhere", "public/")] {
        let token = token_of(from, prefix);
        let query = format!("/{bucket}?list-type=2&prefix=public/&continuation-token={token}");
        let reply = raw(&gateway, get(&query, "").as_bytes());
        assert!([200, 400].contains(&status(&reply)), "{reply}");
        assert!(!reply.contains("<Key>private") && !reply.contains("elsewhere"), "{reply}");
        assert_eq!(status(&raw(&gateway, get(&format!("{query}&prefix="), "").as_bytes())), 400);
    }
    gateway.server.stop();
}

#[test]
fn a_write_is_refused_before_its_body() {
    let gateway = Gateway::start();
    let mut stream = connect(&gateway);
    let start = Instant::now();
    let head =
        "PUT /forebay/k HTTP/1.1\r\nHost: h\r\nContent-Length: 5368709120\r\nExpect: 100-continue\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("send");
    let mut reply = String::new();
    let _ = stream.read_to_string(&mut reply);
    assert!(
        reply.starts_with("HTTP/1.1 403") && reply.contains("AccessDenied") && reply.contains("only reads"),
        "{reply}"
    );
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    // One who sends at once has its answer too.
    let head = head.replace("Expect: 100-continue\r\n", "");
    let mut stream = connect(&gateway);
    stream.write_all(head.as_bytes()).expect("send");
    let _ = stream.write_all(&vec![0; 100_000]);
    let mut reply = String::new();
    let _ = stream.read_to_string(&mut reply);
    assert!(reply.starts_with("HTTP/1.1 403"), "{reply}");
    gateway.server.stop();
}

#[test]
fn silent_clients_and_too_many_are_sent_away() {
    let gateway = Gateway::with(|options| {
        options.env("FOREBAY_GATEWAY__HEAD_TIMEOUT_S", "1").env("FOREBAY_GATEWAY__CONNECTIONS_MAX", "20")
    });
    gateway.s3.put("public/a", "bytes");
    let request = get("/forebay/public/a", "");
    let start = Instant::now();
    let mut silent: Vec<TcpStream> = (0..20).map(|_| connect(&gateway)).collect();
    for (n, stream) in silent.iter_mut().enumerate() {
        // Nothing, or half a head; some have given way to those that came later.
        let _ = stream.write_all(["", "GET / HT"][n % 2].as_bytes());
    }
    assert_eq!(status(&raw(&gateway, request.as_bytes())), 200, "a silent one gives way");
    // One address has half of all connections. A whole request and then nothing: these keep their places.
    // Each asks before the next one comes: until it has asked, it is a silent one that gives way too.
    let from = Instant::now();
    let hold = |_| {
        let mut stream = connect(&gateway);
        stream.write_all(b"GET /forebay/public/a HTTP/1.1\r\nHost: h\r\n\r\n").expect("send");
        stream.read_exact(&mut [0; 12]).expect("an answer");
        stream
    };
    let mut held: Vec<TcpStream> = (0..10).map(hold).collect();
    // Connections are taken in order, so this one is beyond the limit, unless those above are gone already.
    let first = status(&raw(&gateway, request.as_bytes()));
    assert!(first == 503 || first == 200 && from.elapsed() > Duration::from_secs(1), "{first}");
    for stream in silent.iter_mut().chain(&mut held) {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
    assert!(start.elapsed() < PATIENCE, "they are closed after a second or so, not {:?}", start.elapsed());
    assert_eq!(status(&raw(&gateway, request.as_bytes())), 200);
    gateway.server.stop();
}

#[test]
fn what_the_store_says_of_the_node_stays_with_the_node() {
    let gateway = Gateway::with(|options| options.args(["--patience-s", "1"]).allow_log(""));
    gateway.s3.put("public/a", "bytes");
    let (object, list) = (get("/forebay/public/a", ""), get("/forebay?prefix=public/", ""));
    for (fault, wanted) in [(Fault::Deny, 403), (Fault::SlowDown, 503)] {
        gateway.s3.inject(Box::new(move |_| Some(fault)));
        for request in [&object, &list] {
            let reply = raw(&gateway, request.as_bytes());
            assert_eq!(status(&reply), wanted, "{reply}");
            assert_eq!(reply.to_lowercase().contains("retry-after"), wanted == 503, "{reply}");
            assert!(
                !reply.contains(&gateway.s3.access_key) && !reply.contains(&gateway.s3.endpoint),
                "{reply}"
            );
        }
    }
    gateway.s3.heal();
    assert_eq!(status(&raw(&gateway, object.as_bytes())), 200);
    let log = gateway.server.log();
    assert!(!log.contains(KEY.1), "a secret is in the log");
    gateway.server.stop();
}
