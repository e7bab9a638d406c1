use std::time::Instant;

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use super::*;
use crate::harness::s3::S3Server;
use crate::harness::s3::tests::client;

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

/// Nothing may come sooner than in `least` seconds; of five tries one must not come much later either.
async fn takes(what: &str, least: f64, get: impl AsyncFn()) {
    for _ in 0..5 {
        let start = Instant::now();
        get().await;
        let took = start.elapsed().as_secs_f64();
        assert!(took >= least, "{what} took {took} s");
        if took < 3.0 {
            return;
        }
    }
    panic!("{what} took 3 s and more, five times");
}

#[tokio::test]
async fn first_byte_and_rates_are_as_set() {
    let (server, proxy) = behind(Slowness { first_byte: Duration::from_millis(30), ..Slowness::none() });
    server.put("k", vec![1u8; 8 << 20]);
    let store = client(&server, &proxy.endpoint, &server.secret_key, 0);
    let path = Path::from("k");
    takes("the first byte", 0.03, async || {
        store.get_range(&path, 0..10).await.expect("range");
    })
    .await;

    proxy.set(Slowness { connection_mb_s: 40.0, ..Slowness::none() });
    takes("8.4 MB at 40 MB/s", 0.18, async || {
        store.get_range(&path, 0..8 << 20).await.expect("whole");
    })
    .await;

    proxy.set(Slowness { total_mb_s: 40.0, ..Slowness::none() });
    let half = |from: u64| store.get_range(&path, from..from + (4 << 20));
    takes("8.4 MB at 40 MB/s in all", 0.18, async || {
        futures::try_join!(half(0), half(4 << 20)).expect("both halves");
    })
    .await;
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
