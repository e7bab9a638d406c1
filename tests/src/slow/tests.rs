use std::time::Instant;

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use super::*;
use crate::s3::S3Server;
use crate::s3::tests::client;

fn behind(slowness: Slowness) -> (S3Server, SlowProxy) {
    let server = S3Server::start();
    let proxy = SlowProxy::start(&server.endpoint, slowness);
    (server, proxy)
}

#[tokio::test]
async fn signatures_hold_and_everything_is_counted() {
    let (server, proxy) = behind(Slowness::none());
    let store = client(&server, &proxy.endpoint, &server.secret_key, 0);
    let path = Path::from("k");
    store.put(&path, vec![7u8; 100_000].into()).await.expect("put");
    assert_eq!(store.get_range(&path, 0..60_000).await.expect("range").len(), 60_000);
    assert_eq!(store.head(&path).await.expect("head").size, 100_000);
    let listed = store.list_with_delimiter(None).await.expect("list");
    assert_eq!(listed.objects.len(), 1);
    let passed = proxy.passed();
    assert_eq!((passed.requests, passed.object_gets, passed.object_bytes), (4, 1, 60_000));
    assert!(passed.other_bytes > 100);
    let stranger = client(&server, &proxy.endpoint, "wrong-secret", 0);
    assert!(stranger.get(&path).await.is_err(), "signatures are still checked");
}

#[tokio::test]
async fn first_byte_and_rates_are_as_set() {
    let (server, proxy) = behind(Slowness { first_byte: Duration::from_millis(30), ..Slowness::none() });
    server.put("k", vec![1u8; 8 << 20]);
    let store = client(&server, &proxy.endpoint, &server.secret_key, 0);
    let path = Path::from("k");
    let start = Instant::now();
    store.get_range(&path, 0..10).await.expect("range");
    assert!(start.elapsed() >= Duration::from_millis(30));

    proxy.set(Slowness { connection_mb_s: 40.0, ..Slowness::none() });
    let start = Instant::now();
    store.get_range(&path, 0..8 << 20).await.expect("whole");
    let alone = start.elapsed().as_secs_f64();
    assert!((0.18..0.6).contains(&alone), "8.4 MB at 40 MB/s took {alone} s");

    proxy.set(Slowness { total_mb_s: 40.0, ..Slowness::none() });
    let start = Instant::now();
    let half = |from: u64| store.get_range(&path, from..from + (4 << 20));
    futures::try_join!(half(0), half(4 << 20)).map(|_| ()).expect("both halves");
    let shared = start.elapsed().as_secs_f64();
    assert!((0.18..0.6).contains(&shared), "8.4 MB at 40 MB/s in all took {shared} s");
}

#[tokio::test]
async fn injected_faults_are_ridden_through_by_retries() {
    let (server, proxy) = behind(Slowness { slow_down: 0.2, cut: 0.2, ..Slowness::none() });
    server.put("k", vec![3u8; 1 << 20]);
    let store = client(&server, &proxy.endpoint, &server.secret_key, 10);
    for _ in 0..20 {
        assert_eq!(store.get_range(&Path::from("k"), 0..1 << 20).await.expect("range").len(), 1 << 20);
    }
    let passed = proxy.passed();
    assert!(passed.slow_downs > 0 && passed.cuts > 0 && passed.requests > 20, "{passed:?}");
    assert_eq!(passed.since(&passed), Passed::default());
}

#[tokio::test]
async fn a_dead_upstream_is_a_bad_gateway() {
    let (server, proxy) = behind(Slowness::none());
    let store = client(&server, &proxy.endpoint, &server.secret_key, 0);
    drop(server);
    let error = store.get(&Path::from("k")).await.expect_err("no upstream");
    assert!(format!("{error:?}").contains("502"), "{error:?}");
}
