//! Loaders that come after each other: what the last one leaves, and that it changes no value.

use super::*;

const BYTES: usize = 100_000;

/// Where a buffer of the loader's pool lies, which nobody has from then on.
fn idle_buffer(loader: &Loader) -> *const u8 {
    let pool = loader.context.buffer.pool();
    pool.share(pool.take(BYTES), BYTES).as_ptr()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_loader_has_the_memory_of_the_last_one() {
    let world = World::new(&[90, 100]);
    let direct = world.open().await;
    let all = all_rows(&direct).await;
    let fleet = Fleet::start(&world, 2, None).await;
    let dataset = fleet.open(&world).await;
    let settings = settings(10);
    let start = |settings: &LoaderSettings| Loader::start(&dataset, settings.clone()).unwrap();
    let first = start(&settings);
    let memory = idle_buffer(&first);
    let beside = start(&settings);
    assert!(idle_buffer(&beside) != memory, "it is in use");
    drop(beside);
    check(first, &direct, &all, &settings, "the first").await;
    for turn in 0..3 {
        let next = start(&settings);
        assert_eq!(idle_buffer(&next), memory, "{turn}");
        check(next, &direct, &all, &settings, "one after it").await;
    }
    let other = start(&LoaderSettings { prefetch_bytes: 1 << 20, ..settings.clone() });
    assert!(idle_buffer(&other) != memory, "it may keep less");
    assert_eq!(other.context.buffer.pool().limit(), 65 << 20);
}

/// A registrar that refuses.
#[derive(Debug)]
struct Refusing;

impl Registrar for Refusing {
    fn register(&self, _: &[u8]) -> Option<forebay_dataset::pool::Registration> {
        None
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registered_memory_ends_with_its_loader() {
    let dataset = World::new(&[40]).open().await;
    drop(Loader::start(&dataset, settings(10)).unwrap());
    let registered = Loader::start_registered(&dataset, settings(10), Some(Arc::new(Refusing))).unwrap();
    assert!(registered.context.buffer.pool().has_registrar());
    drop(registered);
    let kept = dataset.left.take(|_| true).expect("what the first one left");
    assert!(!kept.has_registrar());
}
