//! An object store that lies: each lie ends as the table says, by `forebay get` and by the endpoint, and the
//! node stays up and small.

use super::bad_input::resident_mb;
use super::*;
use crate::commands::cached;
use crate::refused::{check, refused};
use forebay_tests::harness::liar::{LiarReply, LiarRequest, LyingStore};
use forebay_tests::harness::process::Run;

/// Some blocks of 64 KiB.
const SIZE: u64 = 200_000;

/// How the reads of an object end.
#[derive(Debug, Clone, Copy)]
enum Ends {
    /// With its bytes.
    Bytes,
    /// With none, as it has none.
    Empty,
    /// With an error that says so, and a status of the endpoint.
    Error(&'static str, u16),
    /// With an error that says so. Some bytes may have come: then the endpoint cuts the connection.
    Cut(&'static str),
}
use Ends::{Bytes, Cut, Empty, Error};

type Lie = fn(&LiarRequest, &mut LiarReply);

/// Keys of objects, a lie about each, and how that ends.
const LIES: [(&str, Lie, Ends); 17] = [
    ("honest", |_, _| (), Bytes),
    ("no-bytes", |asked, reply| of_head(asked, reply, "Content-Length", "0"), Empty),
    ("five-tib", five_tib, Cut("sent 1024 bytes for a range of")),
    ("no-etag", |_, reply| reply.remove("ETag"), Error("gives no ETag", 400)),
    ("weak-etag", |_, reply| reply.set("ETag", "W/\"v1\""), Error("its ETag is a weak one", 400)),
    ("long-etag", |_, reply| reply.set("ETag", "e".repeat(10_000)), Error("longer than 1024 bytes", 400)),
    ("quoted-etag", |_, reply| reply.set("ETag", "\"a\"b\""), Error("its ETag has quotes", 400)),
    ("no-length", |_, reply| reply.remove("Content-Length"), Error("no-length", 400)),
    ("whole-for-a-range", whole_for_a_range, Error("does not answer like S3", 400)),
    ("no-range", |_, reply| reply.remove("Content-Range"), Error("does not answer like S3", 400)),
    ("another-range", another_range, Error("does not answer like S3", 400)),
    ("fewer", fewer, Cut("sent 65535 bytes for a range of 65536")),
    ("more", more, Bytes),
    ("another-size", another_size, Error("was overwritten while it was read", 503)),
    ("another-version", another_version, Error("was overwritten while it was read", 503)),
    ("gzip", |_, reply| reply.set("Content-Encoding", "gzip"), Bytes),
    ("checksum", |_, reply| with_checksum(reply, "IO76AQ=="), Bytes),
];

fn of_head(asked: &LiarRequest, reply: &mut LiarReply, name: &'static str, value: &str) {
    if asked.method == "HEAD" {
        reply.set(name, value);
    }
}

fn five_tib(asked: &LiarRequest, reply: &mut LiarReply) {
    let size = 5_u64 << 40;
    of_head(asked, reply, "Content-Length", &size.to_string());
    if let Some(range) = &asked.range {
        reply.set("Content-Range", format!("bytes {}-{}/{size}", range.start, range.end - 1));
        reply.set("Content-Length", 1024);
        reply.body = vec![0; 1024];
    }
}

fn whole_for_a_range(asked: &LiarRequest, reply: &mut LiarReply) {
    if asked.range.is_some() {
        let body = bytes();
        *reply = LiarReply { status: "200 OK", body, ..reply.clone() };
        reply.remove("Content-Range");
        reply.set("Content-Length", SIZE);
    }
}

fn another_range(asked: &LiarRequest, reply: &mut LiarReply) {
    if asked.range.is_some() {
        reply.set("Content-Range", format!("bytes 0-9/{SIZE}"));
        reply.set("Content-Length", 10);
        reply.body.truncate(10);
    }
}

fn fewer(asked: &LiarRequest, reply: &mut LiarReply) {
    if asked.range.is_some() {
        reply.body.pop();
        reply.set("Content-Length", reply.body.len());
    }
}

fn more(asked: &LiarRequest, reply: &mut LiarReply) {
    if asked.range.is_some() {
        reply.body.extend([7; 100]);
        reply.set("Content-Length", reply.body.len());
    }
}

fn another_size(asked: &LiarRequest, reply: &mut LiarReply) {
    if let Some(range) = &asked.range {
        reply.set("Content-Range", format!("bytes {}-{}/{}", range.start, range.end - 1, SIZE + 1));
    }
}

/// As of an object store that knows no `If-Match`.
fn another_version(asked: &LiarRequest, reply: &mut LiarReply) {
    if asked.method == "GET" {
        reply.set("ETag", "\"v2\"");
    }
}

fn with_checksum(reply: &mut LiarReply, crc32: &str) {
    reply.set("x-amz-checksum-type", "FULL_OBJECT");
    reply.set("x-amz-checksum-crc32", crc32);
}

fn bytes() -> Vec<u8> {
    (0..SIZE).map(|at| (at * 7 % 251) as u8).collect()
}

/// What an honest object store says.
fn honest(asked: &LiarRequest) -> LiarReply {
    let mut reply = LiarReply { status: "200 OK", headers: Vec::new(), body: bytes() };
    reply.set("ETag", "\"v1\"");
    reply.set("Last-Modified", "Tue, 14 Nov 2023 22:13:20 GMT");
    reply.set("Content-Length", SIZE);
    if let Some(range) = &asked.range {
        let range = range.start..range.end.min(SIZE);
        reply.status = "206 Partial Content";
        reply.body = reply.body[range.start.min(range.end) as usize..range.end as usize].to_vec();
        reply.set("Content-Range", format!("bytes {}-{}/{SIZE}", range.start, range.end.saturating_sub(1)));
        reply.set("Content-Length", reply.body.len());
    }
    if asked.method == "HEAD" {
        reply.body = Vec::new();
    }
    reply
}

/// A page of one key, behind which the same page comes again.
fn endless_listing() -> LiarReply {
    let body = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult><Name>forebay</Name><Prefix>loop/</Prefix>\
                <KeyCount>1</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>true</IsTruncated>\
                <NextContinuationToken>again</NextContinuationToken><Contents><Key>loop/a.parquet</Key>\
                <LastModified>2023-11-14T22:13:20.000Z</LastModified><ETag>\"v1\"</ETag><Size>200000</Size>\
                </Contents></ListBucketResult>";
    let mut reply = LiarReply { status: "200 OK", headers: Vec::new(), body: body.into() };
    reply.set("Content-Length", body.len());
    reply
}

/// A node before an object store that lies, whose bucket anybody may read.
fn node() -> (LyingStore, Server, S3Server) {
    let store = LyingStore::start(|asked| {
        if asked.target.contains("list-type=2") {
            return endless_listing();
        }
        let (path, mut reply) = (asked.target.split('?').next().unwrap_or_default(), honest(asked));
        let key = path.rsplit('/').next().unwrap_or_default();
        if let Some((_, lie, _)) = LIES.iter().find(|(name, ..)| *name == key) {
            lie(asked, &mut reply);
        }
        if key == "wrong-checksum" {
            with_checksum(&mut reply, "AAAAAA==");
        }
        reply
    });
    // Nobody asks this one: it lends its bucket and its key.
    let s3 = S3Server::start();
    let options = ServerOptions::for_endpoint(&s3, &store.endpoint)
        .args(["--patience-s", "1", "--s3-listen", "127.0.0.1:0", "--s3-public", &s3.uri("")])
        .env("FOREBAY_OBJECTS__BLOCK_BYTES", "65536")
        .allow_log("an object cannot be served to an S3 client");
    let node = options.start();
    (store, node, s3)
}

/// The endpoint's answer; an error if it breaks off.
fn ask(runtime: &tokio::runtime::Runtime, node: &Server, target: String) -> anyhow::Result<S3Reply> {
    let endpoint = node.s3.clone().expect("it serves S3");
    let client = S3Client { endpoint, key_id: String::new(), secret: String::new() };
    runtime.block_on(client.send_unsigned(&S3Ask::new("GET", target)))
}

#[test]
fn each_lie_of_the_store_ends_as_it_should() {
    let (_store, node, s3) = node();
    let runtime = tokio::runtime::Runtime::new().expect("start a runtime");
    let before = resident_mb(node.pid());
    for (key, _, ends) in LIES {
        let uri = s3.uri(key);
        let get = cached(&node, &["get", &uri]);
        let reply = ask(&runtime, &node, format!("/{}/{key}", s3.bucket));
        match ends {
            Bytes | Empty => {
                let wanted = if matches!(ends, Bytes) { bytes() } else { Vec::new() };
                assert!(get.end().expect_success() == wanted, "{key}");
                let reply = reply.unwrap_or_else(|e| panic!("{key}: {e:#}"));
                assert!(reply.status == 200 && reply.body == wanted, "{key}: {reply:?}");
            }
            Error(says, status) => {
                refused(get, &[&uri, says]);
                let reply = reply.unwrap_or_else(|e| panic!("{key}: {e:#}"));
                assert_eq!(reply.status, status, "{key}: {reply:?}");
            }
            Cut(says) => {
                refused(get, &[&uri, says]);
                assert!(reply.as_ref().map_or(true, |reply| reply.status == 500), "{key}: {reply:?}");
            }
        }
    }
    let grown = resident_mb(node.pid()).saturating_sub(before);
    assert!(grown < 100, "{grown} MB more");
    node.stop();
}

#[test]
fn what_is_read_whole_is_held_against_the_stores_checksum() {
    let (store, node, s3) = node();
    let uri = s3.uri("wrong-checksum");
    let says = [&*uri, "do not match the CRC32 that the object store keeps of it", "forebay free"];
    let folder = tempfile::tempdir().expect("make a folder");
    let file = folder.path().join("got");
    let line = ["get", &uri, "-o", file.to_str().expect("a path of text")];
    for run in [cached(&node, &line), cached(&node, &line)] {
        check(run.end(), &says);
    }
    // Without a cache it is one block, which is checked before its bytes are handed out.
    let direct = Run::new("forebay").args(line).args(["--direct", "--s3-endpoint", &store.endpoint]);
    check(direct.envs(s3.credentials()).end(), &[&uri, "does not match the CRC32"]);
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
    // A part of it tells nothing of the whole.
    assert!(cached(&node, &["get", &uri, "-r", "0-99"]).end().expect_success() == bytes()[..100]);
    node.stop();
}

#[test]
fn a_listing_without_end_is_given_up() {
    let (_store, node, s3) = node();
    let uri = s3.uri("loop");
    for line in [&["ls", "-r", &uri][..], &["load", "--raw", &uri], &["cat", &uri], &["inspect", &uri]] {
        let why = cached(&node, line).end().expect_failure();
        assert!(why.contains(&uri) && why.contains("its listing has no end"), "{line:?}: {why}");
    }
    // The endpoint passes a page on as it is: what comes next is the client's question.
    let runtime = tokio::runtime::Runtime::new().expect("start a runtime");
    let page = ask(&runtime, &node, format!("/{}?list-type=2&prefix=loop/", s3.bucket)).expect("a page");
    assert!(page.status == 200 && String::from_utf8_lossy(&page.body).contains("loop/a.parquet"), "{page:?}");
    node.stop();
}
