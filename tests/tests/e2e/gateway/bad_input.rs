//! Requests that make no sense, or mean harm: each has its status, none harms the node.

use super::*;
use forebay_tests::harness::fault::Fault;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sends bytes and returns all that comes back until the server closes or is silent for some time.
fn raw(gateway: &Gateway, bytes: &[u8]) -> String {
    let mut stream = connect(gateway);
    // The server may well refuse and close before it has read all.
    let _ = stream.write_all(bytes);
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    String::from_utf8_lossy(&reply).into_owned()
}

fn connect(gateway: &Gateway) -> TcpStream {
    let address = gateway.server.s3.as_deref().expect("it serves S3").trim_start_matches("http://");
    let stream = TcpStream::connect(address).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("set a timeout");
    stream
}

/// A request whose connection ends after it.
fn get(target: &str, headers: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{headers}\r\n")
}

fn status(reply: &str) -> u16 {
    reply.get(9..12).and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Requests without a signature, for public objects, and their statuses.
fn cases(bucket: &str) -> Vec<(String, u16)> {
    [of_keys(bucket), of_parameters(bucket), of_heads(bucket)].concat()
}

/// Keys, buckets, hosts and ranges.
fn of_keys(bucket: &str) -> Vec<(String, u16)> {
    let object = format!("/{bucket}/public/a");
    let of = |key: &str| get(&format!("/{bucket}/public/{key}"), "");
    let ranges = (0..10_000).map(|n| format!("{}-{}", n % 7, n % 7)).collect::<Vec<_>>().join(",");
    let long = "k".repeat(1018);
    vec![
        (get(&object, ""), 200),
        // 100 headers in all.
        (get(&object, &"X-Many: 1\r\n".repeat(98)), 200),
        (get(&object, &format!("Range: bytes={ranges}\r\n")), 200),
        (get(&object, "Range: bytes=-0\r\n"), 416),
        (get(&object, "Range: bytes=99999999999999999999-\r\n"), 416),
        (get(&object, "Range: bytes=--5\r\n"), 200),
        (of(&long), 400),
        (of("../a"), 400),
        (of("%2e%2e%2fa"), 400),
        (of("./a"), 400),
        (of("%00"), 400),
        (of("%ff%fe"), 400),
        (of("%"), 400),
        (of("%F0%9F%98%80"), 404),
        (of("/a"), 404),
        (get(&format!("/{bucket}//public/a"), ""), 403),
        (of("a%20b"), 404),
        (of("a+b"), 404),
        (of(&"/".repeat(1000)), 404),
        (of("none"), 404),
        (get("/UPPER/k", ""), 400),
        (get("/a..b/k", ""), 400),
        (get("/127.0.0.1/k", ""), 400),
        (get("/no/k", ""), 400),
        (get("/another-bucket/k", ""), 403),
        (get(&format!("/{bucket}/private"), ""), 403),
        (get("/", ""), 403),
        (get("*", ""), 400),
        (format!("GET {object} HTTP/1.1\r\nConnection: close\r\n\r\n"), 400),
        (get(&object, "Host: i\r\n"), 400),
        (get(&object, "").replace("Host: h", "Host: u@h"), 400),
        (get(&object, "").replace("Host: h", "Host: h:7072"), 200),
        (get(&object, "").replace("Host: h", "Host: elsewhere.example"), 200),
        (get(&format!("http://other{object}"), ""), 400),
        (get(&format!("http://h{object}"), ""), 200),
        (get(&object, "").replace("HTTP/1.1", "HTTP/1.0"), 200),
        (get(&object, "").replace("HTTP/1.1", "HTTP/3.0"), 400),
    ]
}

/// Parameters of listings and objects.
fn of_parameters(bucket: &str) -> Vec<(String, u16)> {
    let object = format!("/{bucket}/public/a");
    let list = |query: &str| get(&format!("/{bucket}?prefix=public/&{query}"), "");
    vec![
        (list(""), 200),
        (list("max-keys=-1"), 400),
        (list("max-keys=0"), 200),
        (list("max-keys=1001"), 200),
        (list("max-keys=many"), 400),
        (list("max-keys=99999999999"), 400),
        (list("max-keys=1&max-keys=2"), 400),
        (list("prefix=public/b"), 400),
        (list("list-type=3"), 400),
        (list("list-type=2&continuation-token=forged"), 400),
        (list(&format!("list-type=2&continuation-token={}", "t".repeat(10_000))), 400),
        (list("encoding-type=base64"), 400),
        (get(&format!("/{bucket}?prefix="), ""), 403),
        (get(&format!("/{bucket}?prefix=public"), ""), 403),
        (get(&format!("/{bucket}?prefix=public/&versions"), ""), 501),
        (get(&format!("/{bucket}?acl"), ""), 501),
        (get(&format!("/{bucket}?policyStatus"), ""), 501),
        (get(&format!("{object}?tagging"), ""), 501),
        (get(&format!("{object}?torrent"), ""), 501),
        (get(&format!("{object}?versionId=abc"), ""), 501),
        (get(&format!("{object}?versionId=null"), ""), 200),
        (get(&format!("{object}?partNumber=0"), ""), 400),
        (get(&format!("{object}?partNumber=1"), ""), 206),
        (get(&format!("{object}?partNumber=2"), ""), 416),
        (get(&format!("{object}?partNumber=10001"), ""), 400),
        (get(&format!("{object}?partNumber=1"), "Range: bytes=0-0\r\n"), 400),
        (get(&format!("{object}?response-content-type=x"), ""), 400),
    ]
}

/// Conditions, bodies, signatures, methods, and heads that are none.
fn of_heads(bucket: &str) -> Vec<(String, u16)> {
    let object = format!("/{bucket}/public/a");
    vec![
        (get(&object, "If-Match: a, b\r\n"), 412),
        (get(&object, "If-Match: *\r\n"), 200),
        (get(&object, "If-None-Match: *\r\n"), 304),
        (get(&object, "If-Modified-Since: yesterday\r\n"), 200),
        (get(&object, "If-Unmodified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n"), 412),
        (get(&object, "If-Unmodified-Since: Sunday, 06-Nov-94 08:49:37 GMT\r\n"), 412),
        (get(&object, "If-Unmodified-Since: Sun Nov  6 08:49:37 1994\r\n"), 412),
        (get(&object, "x-amz-server-side-encryption-customer-algorithm: AES256\r\n"), 400),
        (get(&object, "x-amz-expected-bucket-owner: 1\r\n"), 501),
        (get(&object, "Content-Length: 3\r\n") + "abc", 400),
        (get(&object, "Transfer-Encoding: chunked\r\n") + "0\r\n\r\n", 400),
        (get(&object, "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n") + "0\r\n\r\n", 400),
        (get(&object, "Authorization: AWS id:signature\r\n"), 400),
        (get(&object, "Authorization: Bearer token\r\n"), 400),
        (get(&object, "Authorization: AWS4-HMAC-SHA256 nonsense\r\n"), 400),
        (get(&object, "Authorization: AWS4-HMAC-SHA256 a\r\nAuthorization: AWS4-HMAC-SHA256 b\r\n"), 400),
        (get(&format!("{object}?AWSAccessKeyId=a&Signature=b&Expires=1"), ""), 400),
        (get(&format!("{object}?X-Amz-Signature=b"), ""), 400),
        (get(&object, &format!("X-Long: {}\r\n", "x".repeat(1 << 20))), 431),
        (get(&object, &"X-Many: 1\r\n".repeat(99)), 431),
        (get(&object, &"X-Many: 1\r\n".repeat(200)), 431),
        (get(&object, "").replace("GET", "PUT"), 403),
        (get(&object, "").replace("GET", "DELETE"), 403),
        (get(&format!("/{bucket}?delete"), "").replace("GET", "POST"), 403),
        (get(&object, "").replace("GET", "OPTIONS"), 405),
        (get(&object, "").replace("GET", "BREW"), 405),
        ("nonsense\r\n\r\n".into(), 400),
        ("GET / HTTP/2.0\r\nHost: h\r\n\r\n".into(), 400),
        // The first words of HTTP/2: closed without an answer.
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(), 0),
    ]
}

pub fn resident_mb(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the node lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") / 1024
}

#[test]
fn each_has_its_status() {
    let gateway = Gateway::start();
    gateway.s3.put("public/a", "some bytes");
    gateway.s3.put("private", "others");
    let before = resident_mb(gateway.server.pid());
    for (request, wanted) in cases(&gateway.s3.bucket) {
        let reply = raw(&gateway, request.as_bytes());
        let shown: String = request.chars().take(200).collect();
        // A head that hyper gives up may end the connection before it was read.
        let is_cut = wanted == 431 && reply.is_empty();
        assert!(is_cut || status(&reply) == wanted, "{wanted} expected: {shown}\n{reply}");
        assert!(!reply.contains("private") || wanted == 403, "{shown}\n{reply}");
    }
    let long =
        raw(&gateway, get(&format!("/{}/public/{}", gateway.s3.bucket, "k".repeat(1018)), "").as_bytes());
    assert!(long.contains("<Code>KeyTooLongError</Code>"), "{long}");
    let grown = resident_mb(gateway.server.pid()).saturating_sub(before);
    assert!(grown < 100, "{grown} MB more");
    let pipelined = get("/x", "").replace("Connection: close\r\n", "") + &get("/another-bucket/k", "");
    assert_eq!(
        raw(&gateway, pipelined.as_bytes()).matches("HTTP/1.1 40").count(),
        2,
        "two answers, in order"
    );
    gateway.server.stop();
}

#[test]
fn signatures_are_held_against_what_was_sent() {
    let gateway = Gateway::start();
    gateway.s3.put("private", "bytes");
    let ask = S3Ask::new("GET", format!("/{}/private", gateway.s3.bucket));
    assert_eq!(gateway.ask(&ask).body, "bytes");
    let refused = |client: S3Client, ask: &S3Ask| {
        let reply = gateway.runtime.block_on(client.send(ask)).expect("an answer");
        (reply.status, reply.code().unwrap_or_default())
    };
    let client = gateway.client();
    let with =
        |key: &str, secret: &str| S3Client { key_id: key.into(), secret: secret.into(), ..client.clone() };
    assert_eq!(refused(with(KEY.0, "guess"), &ask), (403, "SignatureDoesNotMatch".into()));
    assert_eq!(refused(with("nobody", KEY.1), &ask), (403, "InvalidAccessKeyId".into()));
    // The node's own key to the store is none here.
    assert_eq!(refused(gateway_key(&gateway), &ask), (403, "InvalidAccessKeyId".into()));
    let moved = ask.clone().header("host", "elsewhere");
    assert_eq!(refused(client.clone(), &moved), (403, "SignatureDoesNotMatch".into()));
    gateway.server.stop();
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

fn gateway_key(gateway: &Gateway) -> S3Client {
    S3Client { endpoint: gateway.client().endpoint, ..gateway.store() }
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
