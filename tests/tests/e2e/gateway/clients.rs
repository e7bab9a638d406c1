//! `make bench-raw` at a small size, and clients of S3 that only have another endpoint: Rust's
//! `object_store`; those of Python are in `tests/clients`.

use super::*;
use forebay_tests::harness::process::Run;
use futures::TryStreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::signer::Signer;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt};
use std::time::Duration;

#[test]
fn the_endpoint_is_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = Run::new("forebay-bench-raw").args(["--short", "--only", "amplification,warm", "--folder"]);
    // Figures of a test are judged by nobody: all that counts is that they are there.
    let _ = run.arg(folder.path()).end();
    let report = std::fs::read(folder.path().join("raw.json")).expect("a report");
    let report: serde_json::Value = serde_json::from_slice(&report).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    for name in ["raw_s3_amplification", "raw_vs_tcp", "raw_ranges_vs_hyper", "raw_cpu_s_per_gb"] {
        let row = rows.iter().find(|row| row["name"] == name);
        let value = row.and_then(|row| row["value"].as_f64());
        assert!(value.is_some_and(|value| value > 0.0), "{name}: {rows:?}");
    }
}

#[test]
fn object_store_reads_and_lists() {
    let gateway = Gateway::start();
    let wanted: Vec<(String, Vec<u8>)> =
        (0..5).map(|n| (format!("set/{n}"), bytes_of(n, 40_000 * n as usize))).collect();
    for (key, bytes) in &wanted {
        gateway.s3.put(key, bytes.clone());
    }
    let endpoint = gateway.server.s3.clone().expect("it serves S3");
    let store = AmazonS3Builder::new()
        .with_endpoint(&endpoint)
        .with_allow_http(true)
        .with_region(forebay_tests::harness::s3::REGION)
        .with_bucket_name(&gateway.s3.bucket)
        .with_access_key_id(KEY.0)
        .with_secret_access_key(KEY.1)
        .build()
        .expect("a client");
    gateway.runtime.block_on(async {
        let listed: Vec<_> = store.list(Some(&Path::from("set"))).try_collect().await.expect("list");
        assert_eq!(listed.len(), wanted.len());
        for (key, bytes) in &wanted {
            let path = Path::from(key.as_str());
            let got = store.get(&path).await.expect("get").bytes().await.expect("its bytes");
            assert!(got == *bytes, "{key}");
            let meta = store.head(&path).await.expect("head");
            let listed = listed.iter().find(|other| other.location == path).expect("it is listed");
            assert_eq!((meta.size, &meta.e_tag), (bytes.len() as u64, &listed.e_tag));
        }
        let path = Path::from("set/4");
        let ranges = store.get_ranges(&path, &[10..20, 100_000..100_001]).await.expect("ranges");
        assert!(ranges[0] == wanted[4].1[10..20] && ranges[1] == wanted[4].1[100_000..100_001]);
        let options = GetOptions { if_match: Some("\"other\"".into()), ..Default::default() };
        let e = store.get_opts(&path, options).await.expect_err("another version");
        assert!(matches!(e, object_store::Error::Precondition { .. }), "{e}");
        let e = store.get(&Path::from("none")).await.expect_err("nothing is there");
        assert!(matches!(e, object_store::Error::NotFound { .. }), "{e}");
        let e = store.put(&path, "x".into()).await.expect_err("it only reads");
        assert!(matches!(e, object_store::Error::PermissionDenied { .. }), "{e}");
        signed_urls(&gateway, &store, &path).await;
    });
    gateway.server.stop();
}

/// A signed URL is good for its method, its key and its time.
async fn signed_urls(gateway: &Gateway, store: &object_store::aws::AmazonS3, path: &Path) {
    let sign = |s| store.signed_url("GET".parse().expect("a method"), path, Duration::from_secs(s));
    let get = async |method: &'static str, target: String| {
        gateway.client().send_unsigned(&S3Ask::new(method, target)).await.expect("an answer").status
    };
    let url = sign(600).await.expect("sign");
    let target = format!("{}?{}", url.path(), url.query().unwrap_or_default());
    assert_eq!(get("GET", target.clone()).await, 200);
    assert_eq!(get("HEAD", target.clone()).await, 403, "another method");
    assert_eq!(get("GET", target.replace("set/4", "set/3")).await, 403, "another key");
    assert_eq!(get("GET", target.clone() + "&prefix=x").await, 403, "another parameter");
    let url = sign(1).await.expect("sign");
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(
        get("GET", format!("{}?{}", url.path(), url.query().unwrap_or_default())).await,
        403,
        "expired"
    );
}
