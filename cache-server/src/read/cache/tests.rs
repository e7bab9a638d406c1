//! The read path: its parts, its policy as a trace of events (`trace`), what that is worth (`hits`), and what
//! it does when there is no place for a segment (`memory`).

mod hits;
mod memory;
mod trace;
mod world;

use super::*;
use crate::disk::DiskCacheSettings;
use crate::disk::policy::Role;
use crate::read::copies::SegmentExchange;
use arrow::array::{ArrayRef, ListArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type};
use forebay_dataset::schema;
use forebay_proto::Error;
use std::time::Duration;
use tokio::sync::Notify;
use world::{Dataset, World};

#[test]
fn columns_stored_for_another_dataset_fit_whatever_it_called_their_parts() {
    let rows = [Some(vec![Some(1), Some(2)]), None, Some(vec![])];
    let list = |name: &str| -> ArrayRef {
        let lists = ListArray::from_iter_primitive::<Int64Type, _, _>(rows.clone());
        let (_, offsets, values, nulls) = lists.into_parts();
        let item = Arc::new(Field::new(name, DataType::Int64, true));
        Arc::new(ListArray::new(item, offsets, values, nulls))
    };
    let batch = |name| RecordBatch::try_from_iter([("ids", list(name))]).unwrap();
    let (stored, wanted) = (batch("element"), batch("item"));
    let composed = compose(&wanted.schema(), &[Arc::new(SegmentBatch::from(stored)).into()], 3).unwrap();
    assert_eq!(composed.batch.columns().unwrap(), wanted);
}

/// What happens when a flight lands between a reader's look into the disk cache and its own take-off.
#[tokio::test]
async fn a_fill_that_comes_too_late_fetches_nothing() {
    use forebay_proto::manifest::{Manifest, Object, SegmentSize};
    let dir = tempfile::tempdir().unwrap();
    let batch = RecordBatch::try_from_iter([(
        "id",
        Arc::new(arrow::array::Int64Array::from_iter_values(0..5)) as ArrayRef,
    )])
    .unwrap();
    // The object does not exist: a fetch of it fails.
    let object = Object { key: "gone.parquet".into(), etag: "e".into(), size: 9, ..Default::default() };
    let size = SegmentSize { object: 0, row_groups: 1, rows: 5, decoded_bytes: 40 };
    let ipc = schema::to_ipc(&batch.schema()).unwrap();
    let manifest = Arc::new(Manifest::new("file:///none", 1, ipc, vec![object], &[size]).unwrap());
    let plans = Arc::new(Plans::default());
    let disk =
        Arc::new(DiskCache::open(&DiskCacheSettings::new(dir.path(), 1 << 20), plans.clone()).unwrap());
    let source = SegmentReader::new(Default::default()).unwrap();
    let cache = Cache::new(
        source,
        disk.clone(),
        Arc::default(),
        plans,
        Memory::new(1 << 23),
        Arc::new(Peers::none()),
    );
    let reading = Reading::new(manifest.clone(), &batch.schema(), &[]).unwrap();
    let fill = || cache.clone().fill(reading.clone(), 0, vec!["id".into()], Role::Primary, Ahead::demand());
    assert!(fill().await.is_err(), "nothing is stored yet");
    let id = manifest.segment_id(0).unwrap();
    let origin = Origin { id, object: "file:///none/gone.parquet".into(), etag: "e".into() };
    disk.write(&origin, &batch.clone().into(), Admit::Always, Role::Primary).unwrap();
    assert!(fill().await.unwrap().is_none(), "look again");
    assert_eq!(cache.get(&reading, 0).await.unwrap().batch.columns().unwrap(), batch);
}

/// What happens when a node becomes the owner of a segment that it is fetching as a replica.
#[tokio::test]
async fn a_segment_leaves_the_object_store_once_though_the_role_changes_meanwhile() {
    let dataset = Dataset::new(1).await;
    let world = World::new(&dataset, 1 << 30, 1 << 26);
    let (cache, counters) = (&world.cache, world.cache.source.counters());
    let memory = &world.cache.memory.fills.all;
    let fetches = || counters.s3_requests.load(Relaxed);
    // Both fetches wait for memory, unless the second one waits for the first.
    let all = memory.try_acquire(memory.limit()).unwrap();
    let read = |ahead, role| cache.read(&dataset.reading, 0, ahead, Some(role));
    let prefetch = Ahead { urgency: Urgency::prefetch(), tier: None, run: None };
    let (before, urgency) = (fetches(), prefetch.urgency.clone());
    let first = read(prefetch, Role::Replica);
    let second = async {
        while !memory.is_short() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(!urgency.is_demand());
        read(Ahead::demand(), Role::Primary).await
    };
    let release = async {
        let hurried = tokio::time::timeout(Duration::from_secs(10), urgency.raised()).await;
        drop(all);
        hurried.is_ok()
    };
    let (first, second, is_hurried) = tokio::join!(first, second, release);
    assert_eq!(first.unwrap().batch.columns().unwrap(), second.unwrap().batch.columns().unwrap());
    assert_eq!((fetches() - before, is_hurried), (1, true), "who waits for it makes it urgent");
}

/// What happens when another node becomes the owner of a segment that this one is fetching.
#[tokio::test]
async fn who_asks_for_a_copy_of_what_is_being_fetched_waits_a_moment() {
    let dataset = Dataset::new(1).await;
    let world = World::new(&dataset, 1 << 30, 1 << 26);
    let (cache, id, memory) = (&world.cache, dataset.ids()[0], &world.cache.memory.fills.all);
    let (exchange, columns) = (SegmentExchange(cache.clone()), ["id".to_owned()]);
    let all = memory.try_acquire(memory.limit()).unwrap();
    let read = cache.get(&dataset.reading, 0);
    let asks = async {
        while !memory.is_short() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(!exchange.offers_soon(id, &columns).await, "a fetch that does not end is not waited for");
        let release = async { drop(all) };
        tokio::join!(exchange.offers_soon(id, &columns), release).0
    };
    let (read, is_held) = tokio::join!(read, asks);
    assert_eq!((read.is_ok(), is_held), (true, true));
    assert!(!exchange.offers_soon(id, &["other".to_owned()]).await);
}

#[tokio::test]
async fn columns_that_fail_for_one_reader_do_not_fail_for_another() {
    let dataset = Dataset::new(1).await;
    let world = World::new(&dataset, 1 << 30, 1 << 26);
    let (cache, id) = (&world.cache, dataset.ids()[0]);
    for (failed, succeeds) in [(["other"].as_slice(), true), (&["id", "other"], true), (&["id"], false)] {
        cache.disk.free("file:///");
        let (columns, land) = (failed.iter().map(|c| c.to_string()).collect(), Arc::new(Notify::new()));
        let landed = land.clone();
        let fails = || async move {
            landed.notified().await;
            Ok(FillOutcome::Failed(Error::corrupt("it does not decode"), columns))
        };
        let (_, flight) = cache.fills.join_or_lead((id, Role::Primary), Urgency::demand().into(), fails);
        let joined = async {
            // The table holds it, this test does, and the reader that is aboard.
            while flight.value.strong_count() != Some(3) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            land.notify_one();
        };
        let (read, ()) = tokio::join!(cache.get(&dataset.reading, 0), joined);
        assert_eq!(read.is_ok(), succeeds, "{failed:?}");
    }
}
