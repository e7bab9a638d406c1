//! Datasets on `gs://` and `az://`, and credentials that are renewed: read by a child process, as such things
//! are named by variables of the environment.

#[path = "clouds/commands.rs"]
mod commands;
#[path = "clouds/nodes.rs"]
mod nodes;

use std::ops::Range;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use arrow::array::{AsArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use forebay_dataset::{SegmentReader, SourceSettings, Urgency};
use forebay_proto::manifest::{Object, Segment, SegmentSize};
use forebay_proto::{Kind, Manifest};
use forebay_tests::harness::cloud::{CloudServer, KEYS, TemporaryKeys};
use forebay_tests::harness::s3::S3Server;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

/// The scheme and bucket that a child reads.
const URI: &str = "FOREBAY_TEST_URI";
/// The S3 endpoint that a child reads.
const S3: &str = "FOREBAY_TEST_S3";

fn parquet(range: Range<i64>) -> Vec<u8> {
    let ids = Arc::new(Int64Array::from_iter_values(range)) as _;
    let batch = RecordBatch::try_from_iter([("id", ids)]).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(100)).build();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes
}

/// Runs the ignored test `name` of this file in a process of its own.
fn child(name: &str, variables: &[(&str, &str)]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--ignored", "--nocapture"]).envs(variables.iter().copied());
    for unset in
        ["AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "GOOGLE_APPLICATION_CREDENTIALS"]
    {
        command.env_remove(unset);
    }
    let output = command.output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn no_keys() -> TemporaryKeys {
    panic!("nobody asks for keys")
}

#[test]
fn datasets_on_google_and_azure() {
    let cloud = CloudServer::start(no_keys);
    for (path, rows) in
        [("b/train/a.parquet", 0..250), ("b/train/x/b.parquet", 250..300), ("b/else.parquet", 0..1)]
    {
        cloud.put(path, parquet(rows));
    }
    cloud.put("b/train/readme.txt", "no Parquet");
    cloud.put("b/changed/a.parquet", parquet(0..10));
    let endpoint = cloud.endpoint.as_str();
    child(
        "reads_a_bucket",
        &[(URI, "gs://b"), ("GOOGLE_BASE_URL", endpoint), ("GOOGLE_SKIP_SIGNATURE", "true")],
    );
    child(
        "reads_a_bucket",
        &[
            (URI, "az://b"),
            ("AZURE_STORAGE_ENDPOINT", endpoint),
            ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
            ("AZURE_SKIP_SIGNATURE", "true"),
        ],
    );
}

#[tokio::test]
#[ignore = "the child of datasets_on_google_and_azure"]
async fn reads_a_bucket() {
    let bucket = std::env::var(URI).unwrap();
    let source = SegmentReader::new(SourceSettings { patience_s: 1.0, ..Default::default() }).unwrap();
    let frozen = source.freeze(&format!("{bucket}/train/"), 1).await.unwrap();
    assert_eq!(frozen.manifest.uri(), format!("{bucket}/train"));
    let keys: Vec<_> = frozen.manifest.objects().iter().map(|o| o.key.as_str()).collect();
    assert_eq!(keys, ["a.parquet", "x/b.parquet"]);
    let mut values = Vec::new();
    for segment in 0..frozen.manifest.segments().len() as u32 {
        let batch = source.read_segment(&frozen.manifest, segment, &[0], &Urgency::demand()).await.unwrap();
        values.extend_from_slice(batch.column(0).as_primitive::<Int64Type>().values());
    }
    assert_eq!(values, (0..300).collect::<Vec<_>>());
    assert_eq!(source.counters().s3_requests.load(Relaxed), 4, "one ranged request a segment");

    let kind = async |uri: String| source.freeze(&uri, 0).await.unwrap_err().kind;
    assert_eq!(kind(format!("{bucket}/none.parquet")).await, Kind::NotFound);
    let scheme = bucket.split("://").next().unwrap();
    let e = source.freeze(&format!("{scheme}://nowhere/x"), 0).await.unwrap_err();
    assert!(e.kind == Kind::NotFound && e.message.contains("no such bucket 'nowhere'"), "{e}");

    // Another version than the one that was frozen is refused by If-Match.
    let old = source.freeze(&format!("{bucket}/train/a.parquet"), 0).await.unwrap();
    let m = &old.manifest;
    let objects = vec![Object { etag: "another".into(), ..m.objects()[0].clone() }];
    let size = |s: &Segment| SegmentSize {
        object: s.object,
        row_groups: s.row_groups,
        rows: s.rows,
        decoded_bytes: s.decoded_bytes,
    };
    let sizes: Vec<_> = m.segments().iter().map(size).collect();
    let other =
        Manifest::new(m.uri().to_owned(), m.segment_bytes(), m.schema().to_vec(), objects, &sizes).unwrap();
    let e = source.read_segment(&other, 0, &[0], &Urgency::demand()).await.unwrap_err();
    assert_eq!(e.kind, Kind::Changed, "{e}");
}

/// The temporary keys of a container expire every two seconds while a child reads for five: no read fails.
#[test]
fn credentials_that_expire_are_renewed_without_a_failed_read() {
    reads_with_temporary_keys(|cloud, token| {
        vec![
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("{}/{KEYS}", cloud.endpoint)),
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token.to_owned()),
        ]
    });
}

/// The same with keys that STS gives for a web identity.
#[test]
fn a_web_identity_is_renewed_without_a_failed_read() {
    reads_with_temporary_keys(|cloud, token| {
        vec![
            ("AWS_ENDPOINT_URL_STS", cloud.endpoint.clone()),
            ("AWS_WEB_IDENTITY_TOKEN_FILE", token.to_owned()),
            ("AWS_ROLE_ARN", "arn:aws:iam::1:role/reader".to_owned()),
            ("AWS_ROLE_SESSION_NAME", "test".to_owned()),
        ]
    });
}

fn reads_with_temporary_keys(variables: impl Fn(&CloudServer, &str) -> Vec<(&'static str, String)>) {
    let s3 = S3Server::start();
    s3.put("a.parquet", parquet(0..1000));
    let (keys, issued) = (s3.keys(), Arc::new(AtomicUsize::new(0)));
    let count = issued.clone();
    let cloud = CloudServer::start(move || {
        let id = format!("TEMPORARY{}", count.fetch_add(1, Relaxed));
        let lifetime = Duration::from_secs(2);
        keys.add(&id, "temporary-secret", Some(lifetime));
        TemporaryKeys { id, secret: "temporary-secret".into(), lifetime }
    });
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), "identity").unwrap();
    let named = variables(&cloud, token.path().to_str().unwrap());
    let mut all: Vec<_> = named.iter().map(|(name, value)| (*name, value.as_str())).collect();
    all.extend([
        (S3, s3.endpoint.as_str()),
        ("AWS_REGION", "us-east-1"),
        ("AWS_CONFIG_FILE", "/nonexistent"),
        ("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent"),
    ]);
    child("reads_for_a_while", &all);
    assert!(issued.load(Relaxed) >= 3, "{} keys were issued", issued.load(Relaxed));
}

#[tokio::test]
#[ignore = "the child of credentials_that_expire_are_renewed_without_a_failed_read"]
async fn reads_for_a_while() {
    let settings = SourceSettings {
        s3_endpoint: Some(std::env::var(S3).unwrap()),
        patience_s: 5.0,
        ..Default::default()
    };
    let source = SegmentReader::new(settings).unwrap();
    let manifest = source.freeze("s3://forebay/a.parquet", 1).await.unwrap().manifest.clone();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(5) {
        for segment in 0..manifest.segments().len() as u32 {
            let read = source.read_segment(&manifest, segment, &[0], &Urgency::demand()).await;
            assert_eq!(read.unwrap().num_rows(), 100);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
