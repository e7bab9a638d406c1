//! Segments that are read in one request.

use super::{parquet, settings};
use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use forebay_dataset::{SegmentReader, SegmentRun, SourceSettings, Urgency};
use forebay_proto::Kind;
use forebay_tests::harness::fault::{self, Fault};
use forebay_tests::harness::s3::S3Server;
use forebay_tests::harness::slow::{SlowProxy, Slowness};
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// With one request at a time, segments that follow each other are read in one, even if the answer breaks
/// off.
#[tokio::test]
async fn a_run_of_segments_is_read_in_one_request() {
    let s3 = S3Server::start();
    s3.put("a.parquet", parquet(0..500_000, 10_000));
    let narrow = SourceSettings { s3_max_requests: 1, ..settings(&s3) };
    let source = SegmentReader::new(narrow).unwrap();
    assert!(source.prefers_runs());
    let manifest = Arc::new(source.freeze("s3://forebay", 1).await.unwrap().manifest.clone());
    let bytes_of_all = source.freeze("s3://forebay", 1).await.unwrap().projected_bytes(&[0]);
    let demand = Urgency::demand();
    for faults in [0, 3] {
        let before = source.counters().s3_bytes.load(Relaxed);
        s3.inject(fault::first(faults, Fault::Cut));
        s3.take_log();
        let run = SegmentRun::new(source.clone(), manifest.clone(), 0..50, vec![0]).unwrap();
        let reads = (0..50).map(|i| run.read(i, &demand, || ready(())));
        let read = futures::future::try_join_all(reads).await.unwrap();
        let values =
            read.iter().flat_map(|(b, ())| b.column(0).as_primitive::<Int64Type>().values().to_vec());
        assert!(values.eq(0..500_000), "{faults} faults");
        assert_eq!(s3.take_log().len(), 1 + faults, "requests for 50 segments");
        let bytes = source.counters().s3_bytes.load(Relaxed) - before;
        assert_eq!(bytes, bytes_of_all, "what came before a break is kept");
    }
    // One of them is damaged: it alone is fetched again.
    s3.inject(fault::first(1, Fault::Garble));
    let run = SegmentRun::new(source.clone(), manifest.clone(), 7..9, vec![0]).unwrap();
    assert_eq!(run.read(8, &demand, || ready(())).await.unwrap().0.num_rows(), 10_000);
    assert_eq!(source.counters().damaged.load(Relaxed), 1);
    assert_eq!(run.read(9, &demand, || ready(())).await.unwrap_err().kind, Kind::Invalid);
    assert!(SegmentRun::new(source.clone(), manifest, 49..51, vec![0]).is_err());
}

/// Two megabytes a second, of which the first segment needs 80 KB.
#[tokio::test]
async fn a_segment_of_a_run_waits_for_its_own_bytes_alone() {
    let s3 = S3Server::start();
    s3.put("a.parquet", parquet(0..500_000, 10_000));
    let slow = SlowProxy::start(&s3.endpoint, Slowness { connection_mb_s: 2.0, ..Slowness::none() });
    let settings =
        SourceSettings { s3_endpoint: Some(slow.endpoint.clone()), s3_max_requests: 1, ..settings(&s3) };
    let source = SegmentReader::new(settings).unwrap();
    let frozen = source.freeze("s3://forebay", 1).await.unwrap();
    let (manifest, bytes_of_all) = (Arc::new(frozen.manifest.clone()), frozen.projected_bytes(&[0]));
    let fetched = || source.counters().s3_bytes.load(Relaxed);
    let (run, demand) =
        (SegmentRun::new(source.clone(), manifest, 0..50, vec![0]).unwrap(), Urgency::demand());
    let (first, memory) = run.read(0, &demand, || ready("memory")).await.unwrap();
    let values = first.column(0).as_primitive::<Int64Type>().values();
    assert!(values.iter().copied().eq(0..10_000) && memory == "memory");
    assert!(fetched() < bytes_of_all / 2, "{} of {bytes_of_all} bytes came before it", fetched());
    // Again: its bytes were taken, so it is fetched by itself, behind the others.
    let (again, ()) = run.read(0, &demand, || ready(())).await.unwrap();
    assert_eq!((again, source.counters().s3_requests.load(Relaxed)), (first, 2));
    // Nobody wants the others any more.
    let run = SegmentRun::new(source.clone(), Arc::new(frozen.manifest.clone()), 0..50, vec![0]).unwrap();
    run.read(0, &demand, || ready(())).await.unwrap();
    drop(run);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let before = fetched();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(fetched(), before, "the rest is fetched though the run is gone");
}
