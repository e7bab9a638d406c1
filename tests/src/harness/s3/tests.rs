//! The server against the client that Forebay uses.

use std::time::{Duration, Instant};

use futures::TryStreamExt;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use object_store::aws::{AmazonS3, AmazonS3Builder, S3ConditionalPut};
use object_store::path::Path;
use object_store::{
    ClientOptions, Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    RetryConfig, WriteMultipart,
};

use super::*;
use crate::harness::fault;
use crate::harness::s3_client::{S3Ask, S3Client};
use crate::harness::seen::DOMAIN;

/// A client of `server` that tries each request `retries` more times.
pub(crate) fn client(server: &S3Server, endpoint: &str, secret: &str, retries: usize) -> AmazonS3 {
    builder(server, endpoint, secret, retries).build().expect("build the client")
}

fn builder(server: &S3Server, endpoint: &str, secret: &str, retries: usize) -> AmazonS3Builder {
    let retry = RetryConfig { max_retries: retries, ..Default::default() };
    AmazonS3Builder::new()
        .with_endpoint(endpoint)
        .with_allow_http(true)
        .with_region(REGION)
        .with_bucket_name(&server.bucket)
        .with_access_key_id(&server.access_key)
        .with_secret_access_key(secret)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_retry(retry)
}

fn connect(server: &S3Server) -> AmazonS3 {
    client(server, &server.endpoint, &server.secret_key, 3)
}

fn numbered(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 31 % 251) as u8).collect()
}

#[tokio::test]
async fn a_header_that_is_not_signed_is_refused() {
    let server = S3Server::start();
    let name = HeaderName::from_static("x-amz-checksum-mode");
    let headers = HeaderMap::from_iter([(name, HeaderValue::from_static("ENABLED"))]);
    let options = ClientOptions::new().with_allow_http(true).with_default_headers(headers);
    let client = builder(&server, &server.endpoint, &server.secret_key, 0).with_client_options(options);
    let store = client.build().expect("build the client");
    // object_store signs it in requests for objects, and does not in listings.
    let path = Path::from("a");
    store.put(&path, numbered(10).into()).await.expect("put");
    store.get(&path).await.expect("get");
    let error = store.list(None).try_collect::<Vec<_>>().await.expect_err("a listing").to_string();
    assert!(error.contains("not signed: x-amz-checksum-mode"), "{error}");
}

#[tokio::test]
async fn the_log_says_who_signed_a_request() {
    let server = S3Server::start();
    server.put("k", "bytes");
    server.keys().add("another", &server.secret_key, None);
    for key in ["another", &server.access_key] {
        let client = builder(&server, &server.endpoint, &server.secret_key, 0).with_access_key_id(key);
        let began = Instant::now();
        client.build().expect("build the client").get(&Path::from("k")).await.expect("get");
        let log = server.take_log();
        assert_eq!(log.iter().map(|seen| &*seen.signed_by).collect::<Vec<_>>(), [key]);
        assert!(log[0].at >= began);
    }
}

#[tokio::test]
async fn a_host_that_names_the_bucket_is_signed() {
    let server = S3Server::start();
    server.put("k", "bytes");
    server.objects().create_bucket("other");
    server.objects().put("other", "k", "others");
    let ours = format!("{}.{DOMAIN}", server.bucket);
    let key = |endpoint: String| S3Client {
        endpoint,
        key_id: server.access_key.clone(),
        secret: server.secret_key.clone(),
    };
    let signed = key(format!("http://{ours}")).sign(&S3Ask::new("GET", "/k")).expect("sign");
    let client = key(server.endpoint.clone());
    let say = async |host: &str| client.send_unsigned(&signed.clone().header("host", host)).await;
    let answer = say(&ours).await.expect("an answer");
    assert_eq!((answer.status, &answer.body[..]), (200, &b"bytes"[..]));
    let log = server.take_log();
    assert_eq!((log[0].bucket.as_str(), log[0].key.as_str()), ("forebay", "k"));
    let answer = say(&format!("other.{DOMAIN}")).await.expect("an answer");
    assert_eq!((answer.status, answer.code().as_deref()), (403, Some("SignatureDoesNotMatch")));
}

#[tokio::test]
async fn put_get_head_and_delete() {
    let server = S3Server::start();
    let store = connect(&server);
    let path = Path::from("folder/a b+c.bin");
    let data = numbered(700_000);
    store.put(&path, data.clone().into()).await.expect("put");
    assert!(store.get(&path).await.expect("get").bytes().await.expect("body") == data);
    assert_eq!(store.head(&path).await.expect("head").size, 700_000);
    assert!(server.objects().get(&server.bucket, "folder/a b+c.bin").is_some_and(|stored| stored == data));
    store.delete(&path).await.expect("delete");
    assert!(matches!(store.get(&path).await, Err(Error::NotFound { .. })));
    let methods: Vec<_> =
        server.take_log().iter().map(|seen| (seen.method.to_string(), seen.status)).collect();
    let expected = [("PUT", 200), ("GET", 200), ("HEAD", 200), ("POST", 200), ("GET", 404)];
    assert_eq!(methods, expected.map(|(method, status)| (method.to_owned(), status)));
    assert!(server.log().is_empty());
}

#[tokio::test]
async fn ranges_come_back_and_are_logged() {
    let server = S3Server::start();
    let store = connect(&server);
    let data = numbered(1 << 20);
    server.put("k", data.clone());
    let path = Path::from("k");
    assert!(store.get_range(&path, 300_000..900_000).await.expect("range") == data[300_000..900_000]);
    let options = GetOptions { range: Some(GetRange::Suffix(10)), ..Default::default() };
    let tail = store.get_opts(&path, options).await.expect("suffix");
    assert_eq!(tail.range, (1 << 20) - 10..1 << 20);
    assert!(tail.bytes().await.expect("body") == data[data.len() - 10..]);
    assert!(store.get_range(&path, 2 << 20..3 << 20).await.is_err(), "past the end");
    let log = server.log();
    assert_eq!(log[0].range_bytes(), Some(300_000..900_000));
    assert_eq!((log[0].status, log[0].bytes), (206, 600_000));
    assert_eq!(log[1].range.as_deref(), Some("bytes=-10"));
    assert_eq!(log.last().map(|seen| seen.status), Some(416));
}

#[tokio::test]
async fn conditions_are_honoured() {
    let server = S3Server::start();
    let store = connect(&server);
    let path = Path::from("k");
    let first = store.put(&path, "one".into()).await.expect("put");
    let matching = |etag: &str| GetOptions { if_match: Some(etag.to_owned()), ..Default::default() };
    let etag = first.e_tag.clone().expect("etag");
    store.get_opts(&path, matching(&etag)).await.expect("unchanged");
    let create = PutOptions { mode: PutMode::Create, ..Default::default() };
    assert!(matches!(store.put_opts(&path, "two".into(), create).await, Err(Error::AlreadyExists { .. })));
    let update = || PutOptions { mode: PutMode::Update(first.clone().into()), ..Default::default() };
    store.put_opts(&path, "two".into(), update()).await.expect("update of the version that is there");
    assert!(matches!(store.put_opts(&path, "three".into(), update()).await, Err(Error::Precondition { .. })));
    assert!(matches!(store.get_opts(&path, matching(&etag)).await, Err(Error::Precondition { .. })));
    let fresh = store.head(&path).await.expect("head").e_tag;
    let options = GetOptions { if_none_match: fresh, ..Default::default() };
    assert!(matches!(store.get_opts(&path, options).await, Err(Error::NotModified { .. })));
    assert!(server.log().iter().any(|seen| seen.if_match.as_deref() == Some(&etag) && seen.status == 412));
}

#[tokio::test]
async fn listings_have_pages_and_folders() {
    let server = S3Server::start();
    let store = connect(&server);
    for i in 0..2500 {
        server.put(&format!("many/{i:04}"), "x");
    }
    for key in ["a/1", "a/2", "b/1", "c"] {
        server.put(&format!("tree/{key}"), "x");
    }
    let many: Vec<_> = store.list(Some(&Path::from("many"))).try_collect().await.expect("list");
    assert_eq!(many.len(), 2500);
    assert!(many.windows(2).all(|pair| pair[0].location < pair[1].location));
    assert_eq!(server.take_log().len(), 3, "three pages");
    let tree = store.list_with_delimiter(Some(&Path::from("tree"))).await.expect("list");
    let prefixes: Vec<_> = tree.common_prefixes.iter().map(Path::to_string).collect();
    assert_eq!(
        (prefixes.as_slice(), tree.objects.len()),
        (&["tree/a".to_owned(), "tree/b".to_owned()][..], 1)
    );
    let none: Vec<_> = store.list(Some(&Path::from("nothing"))).try_collect().await.expect("list");
    assert!(none.is_empty());
}

#[tokio::test]
async fn multipart_uploads_join_their_parts() {
    let server = S3Server::start();
    let store = connect(&server);
    let path = Path::from("big");
    let data = numbered(12 << 20);
    let upload = store.put_multipart(&path).await.expect("begin");
    let mut writer = WriteMultipart::new_with_chunk_size(upload, 5 << 20);
    writer.write(&data);
    writer.finish().await.expect("complete");
    assert!(store.get(&path).await.expect("get").bytes().await.expect("body") == data);
    assert!(store.head(&path).await.expect("head").e_tag.is_some_and(|etag| etag.contains("-3")));
    let mut abandoned = store.put_multipart(&Path::from("never")).await.expect("begin");
    abandoned.put_part(PutPayload::from_static(b"x")).await.expect("part");
    abandoned.abort().await.expect("abort");
    assert!(server.objects().get(&server.bucket, "never").is_none());
}

#[tokio::test]
async fn strangers_and_wrong_regions_are_refused() {
    let server = S3Server::start();
    server.put("k", "x");
    let path = Path::from("k");
    let stranger = client(&server, &server.endpoint, "wrong-secret", 0);
    assert!(matches!(stranger.get(&path).await, Err(Error::PermissionDenied { .. })));
    assert_eq!(server.take_log()[0].status, 403);
    let abroad = builder(&server, &server.endpoint, &server.secret_key, 0).with_region("eu-west-9");
    let error = abroad.build().expect("build").get(&path).await.expect_err("wrong region").to_string();
    assert!(error.contains("expecting 'us-east-1'"), "{error}");
    let elsewhere =
        builder(&server, &server.endpoint, &server.secret_key, 0).with_bucket_name("no-such-bucket");
    let error = elsewhere.build().expect("build").list(None).try_next().await.expect_err("no bucket");
    assert!(format!("{error:?}").contains("NoSuchBucket"), "{error:?}");
}

#[tokio::test]
async fn faults_strike_as_planned_and_heal() {
    let server = S3Server::start();
    let data = numbered(1 << 20);
    server.put("k", data.clone());
    let path = Path::from("k");
    let (patient, hasty) = (connect(&server), client(&server, &server.endpoint, &server.secret_key, 0));

    let (start, burst) = (Instant::now(), Duration::from_secs(3));
    server.inject(fault::lasting(burst, Fault::SlowDown));
    assert!(hasty.get(&path).await.is_err());
    client(&server, &server.endpoint, &server.secret_key, 30)
        .get(&path)
        .await
        .expect("rides through the burst");
    assert!(start.elapsed() >= burst);

    server.inject(fault::first(1, Fault::Deny));
    assert!(matches!(patient.get(&path).await, Err(Error::PermissionDenied { .. })));

    server.inject(fault::first(1, Fault::Delay(Duration::from_millis(120))));
    let start = Instant::now();
    patient.get(&path).await.expect("late");
    assert!(start.elapsed() >= Duration::from_millis(120));

    server.inject(fault::first(1, Fault::Cut));
    assert!(hasty.get(&path).await.expect("headers").bytes().await.is_err(), "the body is cut");
    server.inject(fault::first(1, Fault::Cut));
    server.take_log();
    assert!(patient.get(&path).await.expect("headers").bytes().await.expect("resumed") == data);
    let resumed = server.take_log();
    assert_eq!(resumed.len(), 2);
    assert!(resumed[1].range.is_some(), "goes on where it was cut: {resumed:?}");

    server.inject(fault::share(1.0, 7, Fault::SlowDown));
    assert!(hasty.get(&path).await.is_err());
    server.heal();
    hasty.get(&path).await.expect("healed");
}

#[tokio::test]
async fn an_object_can_change_between_two_ranges() {
    let server = S3Server::start();
    server.put("k", "old old old");
    server.overwrite_before_get(2, "k", "new new new");
    let store = connect(&server);
    let path = Path::from("k");
    assert_eq!(store.get_range(&path, 0..3).await.expect("first"), "old");
    assert_eq!(store.get_range(&path, 0..3).await.expect("second"), "new");
}

#[test]
fn dropping_the_server_closes_its_port() {
    let server = S3Server::start();
    let address = server.endpoint.trim_start_matches("http://").to_owned();
    std::net::TcpStream::connect(&address).expect("up");
    drop(server);
    // A child of another test's that has not begun yet may hold it for a moment.
    let began = std::time::Instant::now();
    while std::net::TcpStream::connect(&address).is_ok() {
        assert!(began.elapsed() < std::time::Duration::from_secs(30), "down");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
