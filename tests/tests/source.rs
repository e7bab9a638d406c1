//! Datasets on S3: requests, versions, retries and errors.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use arrow::array::{AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use forebay_dataset::{SegmentReader, SourceSettings, Urgency};
use forebay_proto::{Kind, Manifest};
use forebay_tests::harness::fault::{self, Fault};
use forebay_tests::harness::s3::S3Server;
use forebay_tests::harness::seen::SeenRequest;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

#[path = "source/runs.rs"]
mod runs;

fn parquet(range: Range<i64>, group_rows: usize) -> Vec<u8> {
    let schema = Arc::new(Schema::new(vec![Field::new("i", DataType::Int64, false)]));
    let batch =
        RecordBatch::try_new(schema.clone(), vec![Arc::new(Int64Array::from_iter_values(range))]).unwrap();
    let plain = WriterProperties::builder().set_dictionary_enabled(false);
    let properties = plain.set_max_row_group_row_count(Some(group_rows)).build();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, schema, Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes
}

fn settings(s3: &S3Server) -> SourceSettings {
    SourceSettings {
        s3_endpoint: Some(s3.endpoint.clone()),
        s3_region: Some("us-east-1".into()),
        s3_access_key_id: Some(s3.access_key.clone()),
        s3_secret_access_key: Some(s3.secret_key.clone()),
        patience_s: 2.0,
        ..Default::default()
    }
}

fn source(s3: &S3Server) -> SegmentReader {
    SegmentReader::new(settings(s3)).unwrap()
}

async fn values(source: &SegmentReader, manifest: &Manifest) -> Vec<i64> {
    let mut values = Vec::new();
    for i in 0..manifest.segments().len() as u32 {
        let batch = source.read_segment(manifest, i, &[0], &Urgency::demand()).await.unwrap();
        values.extend_from_slice(batch.column(0).as_primitive::<Int64Type>().values());
    }
    values
}

#[tokio::test]
async fn each_byte_is_read_once_and_by_version() {
    let s3 = S3Server::start();
    s3.put("train/a.parquet", parquet(0..1000, 100));
    s3.put("train/b.parquet", parquet(1000..1500, 100));
    s3.put("train/dir.parquet/part.parquet", parquet(1500..1600, 100));
    s3.put("train/dir.parquet/", Vec::new());
    s3.put("train/", Vec::new());
    s3.put("training/c.parquet", parquet(0..10, 100));
    let source = source(&s3);
    let frozen = source.freeze(&s3.uri("train"), 1600).await.unwrap();
    let keys: Vec<_> = frozen.manifest.objects().iter().map(|o| o.key.as_str()).collect();
    assert_eq!(keys, ["a.parquet", "b.parquet", "dir.parquet/part.parquet"]);
    assert_eq!((frozen.manifest.rows(), frozen.manifest.segments().len()), (1600, 9));
    s3.take_log();

    assert_eq!(values(&source, &frozen.manifest).await, (0..1600).collect::<Vec<_>>());
    let log = s3.take_log();
    assert_eq!(log.len(), 9, "one request a segment: {log:?}");
    assert!(log.iter().all(|seen| seen.if_match.is_some() && seen.range.is_some() && seen.status == 206));
    assert_eq!(source.counters().s3_bytes.load(Relaxed), frozen.projected_bytes(&[0]));
    assert_eq!(log.iter().map(|seen| seen.bytes).sum::<u64>(), frozen.projected_bytes(&[0]));

    let one = source.freeze(&s3.uri("train/b.parquet"), 0).await.unwrap();
    assert_eq!(values(&source, &one.manifest).await, (1000..1500).collect::<Vec<_>>());
    let all = source.freeze("s3://forebay", 0).await.unwrap();
    assert_eq!(all.manifest.objects().len(), 4);
    s3.put("odd/what?%41 #.parquet", parquet(0..10, 100));
    let odd = source.freeze(&s3.uri("odd"), 0).await.unwrap();
    assert_eq!(values(&source, &odd.manifest).await, (0..10).collect::<Vec<_>>());
    let e = source.freeze(&s3.uri("odd/what?%41 #.parquet"), 0).await.unwrap_err();
    assert!(e.kind == Kind::Invalid && e.message.contains("a query (?) has no meaning here"), "{e}");
    s3.put("data/plain", parquet(0..10, 100));
    let other = source.freeze(&s3.uri("data/plain"), 0).await.unwrap();
    assert_eq!(values(&source, &other.manifest).await, (0..10).collect::<Vec<_>>());
}

#[tokio::test]
async fn an_object_overwritten_in_mid_read_is_changed() {
    let s3 = S3Server::start();
    s3.put("a.parquet", parquet(0..1000, 100));
    let source = source(&s3);
    let frozen = source.freeze("s3://forebay/", 1).await.unwrap();
    s3.overwrite_before_get(2, "a.parquet", parquet(1000..2000, 100));
    source.read_segment(&frozen.manifest, 0, &[0], &Urgency::demand()).await.unwrap();
    let e = source.read_segment(&frozen.manifest, 1, &[0], &Urgency::demand()).await.unwrap_err();
    assert!(e.kind == Kind::Changed && e.message.contains("s3://forebay/a.parquet: was overwritten"), "{e}");
    let e = SegmentReader::new(settings(&s3))
        .unwrap()
        .read_segment(&frozen.manifest, 0, &[0], &Urgency::demand())
        .await
        .unwrap_err();
    assert_eq!(e.kind, Kind::Changed, "{e}");
}

#[tokio::test]
async fn passing_faults_are_not_noticed() {
    let s3 = S3Server::start();
    s3.put("a.parquet", parquet(0..200_000, 50_000));
    let source = SegmentReader::new(SourceSettings { patience_s: 30.0, ..settings(&s3) }).unwrap();
    let frozen = source.freeze("s3://forebay", 1).await.unwrap();
    s3.inject(fault::first(3, Fault::SlowDown));
    assert_eq!(values(&source, &frozen.manifest).await.len(), 200_000);
    assert_eq!(source.counters().retries.load(Relaxed), 3);
    s3.inject(fault::first(2, Fault::Cut));
    assert_eq!(values(&source, &frozen.manifest).await, (0..200_000).collect::<Vec<_>>());
}

#[tokio::test]
async fn lasting_faults_end_in_retry_after_bounded_patience() {
    let s3 = S3Server::start();
    s3.put("a.parquet", parquet(0..10, 10));
    s3.inject(fault::lasting(Duration::from_secs(600), Fault::SlowDown));
    let start = Instant::now();
    let e = source(&s3).freeze("s3://forebay", 0).await.unwrap_err();
    assert!(e.kind == Kind::Retry && e.message.contains("503") && e.message.contains("SlowDown"), "{e}");
    assert!(start.elapsed() < Duration::from_secs(20));

    let gone = SourceSettings { s3_endpoint: Some("http://127.0.0.1:1".into()), ..settings(&s3) };
    let start = Instant::now();
    let e = SegmentReader::new(gone).unwrap().freeze("s3://forebay/x", 0).await.unwrap_err();
    assert!(e.kind == Kind::Retry && e.message.contains("cannot connect to http://127.0.0.1:1"), "{e}");
    assert!(e.message.contains("tried for"), "{e}");
    assert!(start.elapsed() < Duration::from_secs(20));
}

/// Every request of a 30 s outage is refused: nothing fails, and S3 sees few requests.
#[tokio::test]
async fn an_outage_is_survived_without_a_storm() {
    let s3 = S3Server::start();
    s3.put("a.parquet", parquet(0..64_000, 1000));
    let source = SegmentReader::new(SourceSettings { patience_s: 60.0, ..settings(&s3) }).unwrap();
    let frozen = source.freeze("s3://forebay", 1).await.unwrap();
    // A first read opens the window.
    assert_eq!(values(&source, &frozen.manifest).await.len(), 64_000);
    s3.take_log();
    let outage = Duration::from_secs(30);
    let start = Instant::now();
    s3.inject(fault::lasting(outage, Fault::SlowDown));
    let demand = Urgency::demand();
    let reads = (0..64).map(|i| source.read_segment(&frozen.manifest, i, &[0], &demand));
    for read in futures::future::join_all(reads).await {
        assert_eq!(read.unwrap().num_rows(), 1000);
    }
    assert!(start.elapsed() >= outage);
    let refused = s3.take_log().iter().filter(|seen| seen.status == 503).count();
    assert!((10..250).contains(&refused), "{refused} requests were sent into the outage");
}

/// One in ten requests is refused, connections break, answers come late: nothing fails, and little is read
/// twice.
#[tokio::test]
async fn scattered_faults_cost_little() {
    let s3 = S3Server::start();
    s3.put("a.parquet", parquet(0..2_000_000, 10_000));
    let patient = SourceSettings { request_timeout_s: 1.5, patience_s: 30.0, ..settings(&s3) };
    let source = SegmentReader::new(patient).unwrap();
    let frozen = source.freeze("s3://forebay", 1).await.unwrap();
    let demand = Urgency::demand();
    for (fault, share) in
        [(Fault::SlowDown, 0.1), (Fault::Cut, 0.1), (Fault::Delay(Duration::from_secs(3)), 0.02)]
    {
        let counters = || (source.counters().s3_bytes.load(Relaxed), source.counters().retries.load(Relaxed));
        let before = counters();
        s3.inject(fault::share(share, 7, fault));
        let reads = (0..200).map(|i| source.read_segment(&frozen.manifest, i, &[0], &demand));
        let read = futures::future::join_all(reads).await;
        assert!(read.iter().all(|batch| batch.as_ref().is_ok_and(|b| b.num_rows() == 10_000)), "{fault:?}");
        let (bytes, retries) = (counters().0 - before.0, counters().1 - before.1);
        assert!((1..100).contains(&retries), "{fault:?}: {retries} retries for 200 reads");
        assert_eq!(bytes, frozen.projected_bytes(&[0]), "{fault:?}: what came before a break is kept");
    }
}

/// An object store bears a limited number of requests at once: the source finds the limit. When the machine
/// stalls, requests come in bursts: of three runs together no more than a third is refused.
#[tokio::test]
async fn a_store_that_throttles_is_asked_less() {
    let (mut refused, mut sent) = (0, 0);
    for _ in 0..3 {
        let run = throttled().await;
        (refused, sent) = (refused + run.0, sent + run.1);
    }
    assert!(refused > 0 && refused < sent / 3, "of {sent} requests {refused} were refused");
}

/// How many requests an object store refused that bears only six at once, and how many were sent.
async fn throttled() -> (usize, usize) {
    let s3 = S3Server::start();
    s3.put("a.parquet", parquet(0..20_000, 100));
    let source = SegmentReader::new(SourceSettings { patience_s: 60.0, ..settings(&s3) }).unwrap();
    let frozen = source.freeze("s3://forebay", 1).await.unwrap();
    let (takes, mut under_way) = (Duration::from_millis(100), VecDeque::<Instant>::new());
    s3.inject(Box::new(move |_| {
        let now = Instant::now();
        under_way.retain(|began| *began + takes > now);
        if under_way.len() >= 6 {
            return Some(Fault::SlowDown);
        }
        under_way.push_back(now);
        Some(Fault::Delay(takes))
    }));
    let demand = Urgency::demand();
    let reads = (0..200).map(|i| source.read_segment(&frozen.manifest, i, &[0], &demand));
    for read in futures::future::join_all(reads).await {
        assert_eq!(read.unwrap().num_rows(), 100);
    }
    let log = s3.take_log();
    (log.iter().filter(|seen| seen.status == 503).count(), log.len())
}

#[tokio::test]
async fn a_limit_on_bytes_holds_over_all_requests() {
    let s3 = S3Server::start();
    s3.put("a.parquet", parquet(0..500_000, 50_000));
    let limited = SourceSettings { s3_max_bytes_per_s: Some(2_000_000), ..settings(&s3) };
    let source = SegmentReader::new(limited).unwrap();
    let frozen = source.freeze("s3://forebay", 1).await.unwrap();
    let start = Instant::now();
    let demand = Urgency::demand();
    let reads = (0..10).map(|i| source.read_segment(&frozen.manifest, i, &[0], &demand));
    futures::future::try_join_all(reads).await.unwrap();
    // 4 MB at 2 MB/s; the last request's time begins when it is sent.
    assert!(start.elapsed() >= Duration::from_millis(1600), "{:?}", start.elapsed());
}

#[tokio::test]
async fn what_is_damaged_on_its_way_is_fetched_anew() {
    let s3 = S3Server::start();
    s3.put("a.parquet", parquet(0..20_000, 20_000));
    let source = source(&s3);
    let manifest = source.freeze("s3://forebay/a.parquet", 0).await.unwrap().manifest.clone();
    let read = || async { source.read_segment(&manifest, 0, &[0], &Urgency::demand()).await };
    let whole = read().await.unwrap();
    let damaged = || source.counters().damaged.load(Relaxed);
    assert_eq!(damaged(), 0);
    let garbled_data = |n| {
        let mut plan = fault::first(n, Fault::Garble);
        // A footer is read from there to the object's end.
        move |seen: &SeenRequest| {
            let is_data = seen.range_bytes().is_some_and(|range| range.start < 100);
            if is_data { plan(seen) } else { None }
        }
    };
    s3.inject(Box::new(garbled_data(2)));
    assert_eq!(read().await.unwrap(), whole);
    assert_eq!(damaged(), 2);
    s3.inject(Box::new(garbled_data(3)));
    let e = read().await.unwrap_err();
    assert!(e.kind == Kind::Corrupt && e.message.contains("a.parquet"), "{e}");
}

/// A damaged byte can look like an object that the decoder cannot read: only fetching it twice tells.
#[tokio::test]
async fn damage_that_looks_unsupported_is_fetched_again() {
    let s3 = S3Server::start();
    let file = parquet(0..20_000, 20_000);
    // In the header of the first page, 16 bytes into the column: field 2 (i32) of its data page header,
    // PLAIN.
    let encoding = 16;
    assert_eq!(file[4 + encoding - 1..=4 + encoding], [0x15, 0]);
    s3.put("a.parquet", file);
    let source = source(&s3);
    let manifest = source.freeze("s3://forebay/a.parquet", 0).await.unwrap().manifest.clone();
    let read = || async { source.read_segment(&manifest, 0, &[0], &Urgency::demand()).await };
    let whole = read().await.unwrap();
    // BIT_PACKED, which is not supported for values.
    let unsupported = |n| {
        let mut plan = fault::first(n, Fault::Flip(encoding, 8));
        move |seen: &SeenRequest| {
            let is_data = seen.range_bytes().is_some_and(|range| range.start < 100);
            if is_data { plan(seen) } else { None }
        }
    };
    s3.inject(Box::new(unsupported(1)));
    assert_eq!(read().await.unwrap(), whole);
    assert_eq!(source.counters().damaged.load(Relaxed), 1);
    // Fetched twice and the same both times: the object is stored like that.
    s3.inject(Box::new(unsupported(2)));
    let e = read().await.unwrap_err();
    assert!(e.kind == Kind::Invalid && e.message.contains("not supported"), "{e}");
}

#[tokio::test]
async fn mistakes_are_named() {
    let s3 = S3Server::start();
    s3.put("a.parquet", parquet(0..10, 10));
    // More patience than the bound below: a retry is told from a delay by a stalled machine.
    let good = SourceSettings { patience_s: 30.0, ..settings(&s3) };
    let cases = [
        (SourceSettings { ..good.clone() }, "s3://nowhere/x", Kind::NotFound, "no such bucket 'nowhere'"),
        (
            SourceSettings { ..good.clone() },
            "s3://nowhere/x.parquet",
            Kind::NotFound,
            "no such bucket 'nowhere'",
        ),
        (SourceSettings { ..good.clone() }, "s3://forebay/none", Kind::NotFound, "no Parquet objects under"),
        (
            SourceSettings { ..good.clone() },
            "s3://forebay/none.parquet",
            Kind::NotFound,
            "no Parquet objects under",
        ),
        (
            SourceSettings { s3_access_key_id: Some("WRONGID".into()), ..good.clone() },
            "s3://forebay",
            Kind::Denied,
            "access key WRONGID",
        ),
        (
            SourceSettings { s3_secret_access_key: Some("hunter2".into()), ..good.clone() },
            "s3://forebay/a.parquet",
            Kind::Denied,
            "access key test-access",
        ),
        (
            SourceSettings { s3_region: Some("eu-west-1".into()), ..good.clone() },
            "s3://forebay/a.parquet",
            Kind::Invalid,
            "region 'eu-west-1'",
        ),
        (
            SourceSettings {
                s3_anonymous: true,
                s3_access_key_id: None,
                s3_secret_access_key: None,
                ..good.clone()
            },
            "s3://forebay",
            Kind::Denied,
            "the request without keys",
        ),
    ];
    for (settings, uri, kind, says) in cases {
        let start = Instant::now();
        let e = SegmentReader::new(settings).unwrap().freeze(uri, 0).await.unwrap_err();
        assert!(e.kind == kind && e.message.contains(says), "{uri}: {:?} {e}", e.kind);
        assert!(!e.message.contains("hunter2") && !e.message.contains('\n'));
        assert!(start.elapsed() < Duration::from_secs(20), "{uri}: not to be retried");
    }
    s3.put("bad/a.parquet", "<html>not Parquet, but long enough</html>");
    s3.put("bad/empty.parquet", "");
    for (uri, says) in
        [("s3://forebay/bad/a.parquet", "bad/a.parquet"), ("s3://forebay/bad/empty.parquet", "0 bytes")]
    {
        let e = source(&s3).freeze(uri, 0).await.unwrap_err();
        assert!(e.kind == Kind::Corrupt && e.message.contains(says), "{e}");
    }
}

#[test]
fn secrets_are_not_shown() {
    let s3 = S3Server::start();
    let settings = SourceSettings { s3_session_token: Some("t0ken".into()), ..settings(&s3) };
    let shown = format!("{settings:?} {}", serde_json::to_string(&settings).unwrap());
    assert!(!shown.contains(&s3.secret_key) && !shown.contains("t0ken"), "{shown}");
    assert!(serde_json::from_str::<SourceSettings>(r#"{"s3_endpoit": "x"}"#).is_err());
    let parsed: SourceSettings = serde_json::from_str(r#"{"s3_region": "x", "s3_max_requests": 3}"#).unwrap();
    assert_eq!((parsed.s3_max_requests, parsed.patience_s), (3, 60.0));
}
