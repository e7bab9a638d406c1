//! What becomes of segments for which neither the disk cache nor memory has much room.

use super::super::*;
use super::world::{Dataset, Run, SEGMENT_BYTES, World};
use crate::read::memory::MemoryBudget;
use arrow::array::{Array, ArrayRef, FixedSizeListArray, ListArray, RecordBatch};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field};
use forebay_dataset::Urgency;
use std::iter::repeat_n;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio::time::sleep;

const RUN: Run = Run { seed: 3, window: 4, world: 1, epochs: 4 };

async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        sleep(Duration::from_millis(10)).await;
    }
}

fn prefetch(tier: Option<MemoryPermit>) -> Ahead {
    Ahead { urgency: Urgency::prefetch(), tier, run: None }
}

#[tokio::test]
async fn nothing_is_prefetched_that_no_directory_could_hold() {
    let dataset = Dataset::new(12).await;
    // Each of four directories has less room than a segment takes, all of them together have more.
    let empty = World::with_dirs(&dataset, 4, 1 << 30, 1 << 26).cache.disk.used_bytes();
    let limit = empty + 2 * SEGMENT_BYTES;
    let world = World::with_dirs(&dataset, 4, limit, 4 * 3 * SEGMENT_BYTES);
    let stream = world.announce(&dataset, &RUN, 0, 0);
    let prefetching = tokio::spawn(crate::read::prefetch::run(world.cache.clone()));
    until("nothing is fetched", || world.events.misses.load(Relaxed) > 0).await;
    // Time for more of them than there may be.
    sleep(Duration::from_millis(500)).await;
    prefetching.abort();
    let fetched = world.events.misses.load(Relaxed);
    assert!(fetched <= 3, "{fetched} segments were fetched, the memory tier has room for three");
    drop(stream);
}

/// 2,000 lists of one list of 200 numbers that is null: its place takes as much as its numbers would, and the
/// footer counts none.
fn larger_than_said() -> RecordBatch {
    let item = |data_type| Arc::new(Field::new("item", data_type, true));
    let nulls = FixedSizeListArray::new_null(item(DataType::Int64), 200, 2000);
    let offsets = OffsetBuffer::from_lengths(repeat_n(1, 2000));
    let lists = ListArray::new(item(nulls.data_type().clone()), offsets, Arc::new(nulls), None);
    RecordBatch::try_from_iter([("lists", Arc::new(lists) as ArrayRef)]).unwrap()
}

#[tokio::test]
async fn memory_that_a_footer_did_not_announce_is_counted() {
    let dataset = Dataset::of([larger_than_said()]).await;
    let (said, is) = (dataset.reading.manifest.segment(0).unwrap().decoded_bytes, 2000 * 200 * 8);
    assert!(said < is / 4, "{said} of {is} bytes were announced: this tests nothing");
    // The disk cache has no room for it at all.
    let world = World::new(&dataset, 1 << 20, 1 << 26);
    let stream = world.announce(&dataset, &RUN, 0, 0);
    let memory = &world.cache.memory;
    let room = world.cache.memory_tier.permit(said);
    assert!(world.cache.prefetch(&dataset.reading, 0, prefetch(room)).await, "memory has it");
    let in_tier = memory.tier.used();
    assert!(in_tier >= is, "{in_tier} of {is} bytes are counted");
    assert_eq!((memory.fills_used(), memory.prefetch_used()), (0, 0));
    drop(stream);
}

#[tokio::test]
async fn what_is_freed_leaves_memory_too() {
    let dataset = Dataset::of([larger_than_said()]).await;
    let world = World::new(&dataset, 1 << 20, 1 << 26);
    let stream = world.announce(&dataset, &RUN, 0, 0);
    let (cache, memory) = (&world.cache, &world.cache.memory);
    let id = dataset.reading.manifest.segment_id(0).unwrap();
    let room = cache.memory_tier.permit(1);
    assert!(cache.prefetch(&dataset.reading, 0, prefetch(room)).await, "memory has it");
    let object = cache.memory_tier.origin(id).unwrap().object;
    cache.free("file:///elsewhere");
    assert!(cache.has(&dataset.reading, id));
    cache.free(&object);
    assert!(!cache.has(&dataset.reading, id));
    assert_eq!(memory.tier.used(), 0);
    drop(stream);
}

/// What a fill waits for.
#[derive(Debug, Clone, Copy)]
enum WaitsFor {
    Fetching,
    Decoding,
}

impl WaitsFor {
    const BOTH: [Self; 2] = [Self::Fetching, Self::Decoding];

    fn budget(self, memory: &Memory) -> &Arc<MemoryBudget> {
        match self {
            Self::Fetching => &memory.fetches,
            Self::Decoding => &memory.fills.prefetch,
        }
    }
}

/// A world in which `N` prefetches of the only segment wait: of all memory that they may use `other` leaves
/// less than one costs.
async fn waiting_prefetches<const N: usize>(
    dataset: &Dataset,
    what: WaitsFor,
) -> (World, MemoryPermit, [JoinHandle<bool>; N]) {
    // The disk cache has no room for the segment.
    let world = World::new(dataset, 1 << 20, 1 << 26);
    let (memory, demand) = (&world.cache.memory, Urgency::demand());
    let manifest = &dataset.reading.manifest;
    let cost = world.cache.source.segment_cost(manifest, 0, &[0], &demand).await.unwrap();
    let budget = what.budget(memory);
    let bytes = match what {
        WaitsFor::Fetching => cost.fetching(),
        WaitsFor::Decoding => cost.total(),
    };
    let other = budget.try_acquire(budget.limit() - bytes + 1).unwrap();
    let prefetches = [(); N].map(|()| {
        let (cache, reading) = (world.cache.clone(), dataset.reading.clone());
        let room = cache.memory_tier.permit(1);
        tokio::spawn(async move { cache.prefetch(&reading, 0, prefetch(room)).await })
    });
    until("none of them waits", || budget.is_short()).await;
    (world, other, prefetches)
}

#[tokio::test]
async fn a_prefetch_waits_until_there_is_what_it_really_costs() {
    let dataset = Dataset::of([larger_than_said()]).await;
    for what in WaitsFor::BOTH {
        let (world, other, prefetches) = waiting_prefetches::<2>(&dataset, what).await;
        let stream = world.announce(&dataset, &RUN, 0, 0);
        let memory = &world.cache.memory;
        assert!(prefetches.iter().all(|prefetch| !prefetch.is_finished()));
        assert_eq!((what.budget(memory).used(), memory.fills.all.used()), (other.weight(), 0), "{what:?}");
        drop(other);
        for prefetch in prefetches {
            assert!(prefetch.await.unwrap());
        }
        assert_eq!((memory.fills_used(), memory.prefetch_used()), (0, 0));
        drop(stream);
    }
}

#[tokio::test]
async fn once_somebody_waits_for_a_segment_its_prefetch_waits_for_no_others() {
    let dataset = Dataset::of([larger_than_said()]).await;
    for what in WaitsFor::BOTH {
        let (world, other, [prefetch]) = waiting_prefetches(&dataset, what).await;
        let stream = world.announce(&dataset, &RUN, 0, 0);
        let read = world.cache.get(&dataset.reading, 0);
        let ready = tokio::time::timeout(Duration::from_secs(30), read).await;
        assert_eq!(ready.expect("it waits for the others").unwrap().batch.num_rows(), 2000);
        prefetch.await.unwrap();
        assert_eq!(world.cache.memory.prefetch_used(), other.weight());
        drop(stream);
    }
}

#[tokio::test]
async fn segments_are_fetched_in_less_memory_than_decoding_them_takes() {
    let dataset = Dataset::new(8).await;
    let world = World::new(&dataset, 1 << 30, 1 << 26);
    let (memory, counters) = (&world.cache.memory, world.cache.source.counters());
    let all = memory.fills.prefetch.try_acquire(memory.fills.prefetch.limit()).unwrap();
    let before = counters.s3_bytes.load(Relaxed);
    let (cache, reading) = (&world.cache, &dataset.reading);
    let reads = (0..8).map(|segment| cache.prefetch(reading, segment, prefetch(None)));
    let mut bytes = 0;
    for segment in 0..8 {
        bytes += cache.fetch_bytes(reading, segment).await.unwrap();
    }
    let fetched = || counters.s3_bytes.load(Relaxed) - before;
    let all_fetched = async {
        until("all of them are fetched while none may be decoded", || fetched() >= bytes).await;
        assert_eq!(counters.arrow_bytes_decoded.load(Relaxed), 0);
        assert!(memory.fetches.used() >= bytes && memory.is_short());
        drop(all);
    };
    let (held, ()) = tokio::join!(futures::future::join_all(reads), all_fetched);
    assert!(held.into_iter().all(|is_held| is_held));
    assert_eq!((memory.fills_used(), memory.prefetch_used()), (0, 0));
}
