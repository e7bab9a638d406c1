//! Requests to the S3 endpoint that make no sense, or name two buckets at once: cases 38 and 40.

use super::arena::{Arena, address};
use crate::harness::check::Check;
use crate::harness::policy::S3_SECRET;
use crate::harness::process::ServerOptions;
use crate::harness::s3_client::S3Client;
use crate::harness::s3_raw::{get, say, status};
use crate::harness::s3_signer::Signer;
use anyhow::Context;

/// 38: bad input of every kind.
pub fn nonsense(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let (store, bucket) = (arena.store, arena.store.bucket.as_str());
    store.put("public/a", "some bytes");
    store.put("private", "others");
    let requests = cases(bucket);
    let mut wrong = Vec::new();
    for (request, wanted) in &requests {
        let reply = say(arena.s3, request.as_bytes())?;
        // A head that hyper gives up may end the connection before it was read.
        let is_cut = *wanted == 431 && reply.is_empty();
        let tells = *wanted != 403 && reply.contains("private");
        if !is_cut && status(&reply) != *wanted || tells {
            let shown: String = request.chars().take(100).collect();
            wrong.push(format!("{shown:?}: {} instead of {wanted}", status(&reply)));
        }
    }
    let claim = format!("{} requests that make no sense have their statuses", requests.len());
    let long = say(arena.s3, get(&format!("/{bucket}/public/{}", "k".repeat(1018)), "").as_bytes())?;
    let two = get("/x", "").replace("Connection: close\r\n", "") + &get("/another-bucket/k", "");
    let two = say(arena.s3, two.as_bytes())?.matches("HTTP/1.1 40").count();
    let checks = vec![
        Check::of(claim, wrong.join("; "), wrong.is_empty()),
        Check::of(
            "a key of 1,025 bytes is said to be too long",
            "",
            long.contains("<Code>KeyTooLongError</Code>"),
        ),
        Check::of("two requests at once have two answers", two.to_string(), two == 2),
        arena.memory_check()?,
    ];
    for key in ["public/a", "private"] {
        store.objects().delete(bucket, key);
    }
    Ok(checks)
}

/// The names of buckets below the endpoint's own.
const DOMAIN: &str = "s3.test";

/// Another bucket that the node may read, and its object's bytes.
const OTHER: &str = "other-bucket";
const MARK: &str = "zebra7 of another bucket";

/// 40: a signature for one bucket, and a request that names another one too.
pub fn two_buckets(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let (store, first) = (arena.store, arena.store.bucket.as_str());
    store.put("both", "of the first");
    store.objects().put(OTHER, "both", MARK);
    let keys = arena.policy()?.path("keys").display().to_string();
    // All that have a key may read both buckets here, so that only signatures keep them apart.
    let server = ServerOptions::for_s3(store)
        .args(["--allow", &format!("s3://{OTHER}/"), "--s3-keys", &keys])
        .args(["--s3-listen", "127.0.0.1:0", "--s3-domain", DOMAIN])
        .try_start()?;
    let at = address(server.s3.as_deref().context("an endpoint of S3")?)?;
    let client =
        S3Client { endpoint: format!("http://{at}"), key_id: "VISION".into(), secret: S3_SECRET.into() };
    let signed = |host: &str, target: &str| {
        let ask = Signer { host: host.to_owned(), ..Signer::of(&client) }.header("GET", target);
        let rest = ask.headers.iter().filter(|(name, _)| name != "host");
        rest.map(|(name, value)| format!("{name}: {value}\r\n")).collect::<String>()
    };
    let (here, there) = (format!("{first}.{DOMAIN}"), format!("{OTHER}.{DOMAIN}"));
    let ask = |target: &str, hosts: &str, headers: &str| {
        say(at, format!("GET {target} HTTP/1.1\r\n{hosts}Connection: close\r\n{headers}\r\n").as_bytes())
    };
    let host = |name: &str| format!("Host: {name}\r\n");
    let mut checks = Vec::new();
    for (name, body) in [(&here, "of the first"), (&there, MARK)] {
        let reply = ask("/both", &host(name), &signed(name, "/both"))?;
        let is_good = status(&reply) == 200 && reply.ends_with(body);
        checks.push(Check::of(format!("{name} with its own signature"), status(&reply).to_string(), is_good));
    }
    let (below, path) = (signed(&here, "/both"), format!("/{first}/both"));
    let in_path = signed(DOMAIN, &path);
    for (target, hosts, headers) in [
        ("/both", host(&there), &below),
        ("/both", host(&format!("{there}:80")), &below),
        ("/both", host(&there.to_uppercase()), &below),
        ("/both", host(&format!("{here}@{there}")), &below),
        ("/both", host(&format!("user@{here}")), &below),
        ("/both", host(&format!("user:password@{there}")), &below),
        ("/both", host(&format!("{there}/{here}")), &below),
        ("/both", host(&here) + &host(&there), &below),
        ("/both", host(&there) + &host(&here), &below),
        ("/both", String::new(), &below),
        (&format!("http://{there}/both"), host(&here), &below),
        (&format!("http://{there}/both"), host(&there), &below),
        (&format!("http://user@{here}/both"), host(&here), &below),
        (&format!("//{there}/both"), host(&here), &below),
        (&format!("/../{OTHER}/both"), host(DOMAIN), &in_path),
        (&format!("/{OTHER}/both"), host(DOMAIN), &in_path),
        (&path, host(&there), &in_path),
    ] {
        let reply = ask(target, &hosts, headers)?;
        let is_refused = matches!(status(&reply), 400 | 403) && !reply.contains(MARK);
        let claim = format!("{target} at {:?} by a signature for another: refused", hosts.trim_end());
        checks.push(Check::of(claim, status(&reply).to_string(), is_refused));
    }
    let forwarded =
        ask("/both", &host(&here), &(below.clone() + "X-Forwarded-Host: other-bucket.s3.test\r\n"))?;
    let is_first = status(&forwarded) == 200 && forwarded.ends_with("of the first");
    checks.push(Check::of("X-Forwarded-Host names no bucket", status(&forwarded).to_string(), is_first));
    server.try_stop()?;
    store.objects().delete(first, "both");
    store.objects().delete(OTHER, "both");
    Ok(checks)
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
