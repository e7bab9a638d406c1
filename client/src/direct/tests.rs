use super::*;
use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use forebay_dataset::stream::BatchStream;
use forebay_proto::{Kind, v1};
use futures::future::join_all;
use parking_lot::Mutex;
use parquet::arrow::ArrowWriter;
use std::path::{Path, PathBuf};
use std::sync::Weak;

/// Bytes of a segment of [`dataset`], decoded.
const SEGMENT: u64 = 8 * 1000;

/// A dataset of three objects, each a segment of 1000 numbers.
async fn dataset(memory_bytes: u64) -> (tempfile::TempDir, Direct, Arc<Manifest>) {
    let folder = tempfile::tempdir().unwrap();
    for i in 0..3 {
        write(&object(folder.path(), i), i * 1000);
    }
    let direct = Direct::new(SourceSettings::default(), memory_bytes).unwrap();
    let uri = format!("file://{}", folder.path().display());
    let manifest = Arc::new(direct.source().freeze(&uri, 0).await.unwrap().manifest.clone());
    assert_eq!(manifest.segments().len(), 3);
    (folder, direct, manifest)
}

fn object(folder: &Path, i: i64) -> PathBuf {
    folder.join(format!("{i}.parquet"))
}

fn write(path: &Path, first: i64) {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + 1000));
    let batch = RecordBatch::try_from_iter([("id", ids)]).unwrap();
    let mut writer =
        ArrowWriter::try_new(std::fs::File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn many_readers_are_one_read() {
    let (_folder, direct, manifest) = dataset(MEMORY_BYTES).await;
    let all = join_all((0..20).map(|_| direct.read(&manifest, 1, &[0]))).await;
    for batch in all {
        assert_eq!(batch.unwrap().num_rows(), 1000);
    }
    let c = direct.counters();
    assert_eq!((c.misses, c.hits + c.joins, c.s3_requests), (1, 19, 1));
}

#[tokio::test]
async fn memory_is_bounded_and_the_oldest_goes() {
    // Room for two, with some to spare for what arrays take beside their values.
    let (_folder, direct, manifest) = dataset(2 * SEGMENT + SEGMENT / 2).await;
    for segment in [0, 1, 0, 2] {
        direct.read(&manifest, segment, &[0]).await.unwrap();
        assert!(direct.0.segments.weight() <= direct.0.segments.capacity());
    }
    let c = direct.counters();
    assert_eq!((c.misses, c.hits, c.evictions), (3, 1, 1));
    direct.read(&manifest, 0, &[0]).await.unwrap();
    assert_eq!(direct.counters().misses, 3, "0 was used after 1");
    direct.read(&manifest, 1, &[0]).await.unwrap();
    assert_eq!(direct.counters().misses, 4, "1 was not");
}

/// Knows how many segments were alive at once.
struct Alive {
    direct: Direct,
    given: Mutex<Vec<Weak<SegmentBatch>>>,
    most: AtomicU64,
}

impl SegmentSource for Alive {
    fn get<'a>(&'a self, reading: &'a Reading, segment: u32) -> BoxFuture<'a, Result<ReadySegment>> {
        async move {
            let ready = self.direct.get(reading, segment).await?;
            let mut given = self.given.lock();
            given.push(Arc::downgrade(&ready.batch));
            given.retain(|batch| batch.strong_count() > 0);
            self.most.fetch_max(given.len() as u64, Relaxed);
            Ok(ready)
        }
        .boxed()
    }
}

#[tokio::test]
async fn a_stream_of_rows_from_everywhere_holds_a_window_of_segments_at_once() {
    const SEGMENTS: i64 = 120;
    let folder = tempfile::tempdir().unwrap();
    (0..SEGMENTS).for_each(|i| write(&folder.path().join(format!("{i:03}.parquet")), i * 1000));
    let direct = Direct::new(SourceSettings::default(), 4 * SEGMENT).unwrap();
    let uri = format!("file://{}", folder.path().display());
    let manifest = Arc::new(direct.source().freeze(&uri, 0).await.unwrap().manifest.clone());
    let schema = forebay_dataset::schema::from_ipc(manifest.schema()).unwrap();
    let reading = Reading::new(manifest, &schema, &["id".into()]).unwrap();
    let (given, most) = Default::default();
    let alive = Arc::new(Alive { direct: direct.clone(), given, most });
    let setup = StreamSetup { segments: alive.clone(), ..direct.stream(reading) };
    // Some rows of each, in turns.
    let segment: Vec<u32> = (0..10 * SEGMENTS as u32).map(|n| n * 7 % SEGMENTS as u32).collect();
    let row: Vec<u64> = (0..10 * SEGMENTS as u64).map(|n| n % 1000).collect();
    let ticket = v1::RowsTicket { segment: segment.clone(), row: row.clone(), ..Default::default() };
    let BatchStream { schema, mut messages } = BatchStream::rows(setup, &ticket).unwrap();
    let mut ids = Vec::new();
    while let Some(message) = messages.recv().await {
        let batch = message.unwrap().to_record_batch(&schema).unwrap();
        ids.extend_from_slice(batch.column(0).as_primitive::<Int64Type>().values());
    }
    let wanted = segment.iter().zip(&row).map(|(segment, row)| i64::from(*segment) * 1000 + *row as i64);
    assert_eq!(ids, wanted.collect::<Vec<_>>());
    let most = alive.most.load(Relaxed);
    let held = WINDOW_SEGMENTS + 4;
    assert!(most <= held + 8, "{most} of {SEGMENTS} segments at once, where {held} are held or kept");
}

#[tokio::test]
async fn what_does_not_fit_at_all_is_served_all_the_same() {
    let (_folder, direct, manifest) = dataset(1).await;
    for _ in 0..2 {
        assert_eq!(direct.read(&manifest, 0, &[0]).await.unwrap().num_rows(), 1000);
    }
    assert_eq!((direct.counters().misses, direct.0.segments.weight()), (2, 0));
}

#[tokio::test]
async fn failures_are_not_remembered_and_changes_are_noticed() {
    let (folder, direct, manifest) = dataset(MEMORY_BYTES).await;
    let (there, away) = (object(folder.path(), 2), folder.path().join("away"));
    std::fs::rename(&there, &away).unwrap();
    let e = direct.read(&manifest, 2, &[0]).await.unwrap_err();
    assert!(e.message.contains("2.parquet"), "{e}");
    assert!(direct.0.segments.is_empty());
    std::fs::rename(&away, &there).unwrap();
    assert_eq!(direct.read(&manifest, 2, &[0]).await.unwrap().num_rows(), 1000);
    std::fs::remove_file(object(folder.path(), 1)).unwrap();
    write(&object(folder.path(), 1), 5);
    let e = direct.read(&manifest, 1, &[0]).await.unwrap_err();
    assert_eq!(e.kind, Kind::Changed, "{e}");
}
