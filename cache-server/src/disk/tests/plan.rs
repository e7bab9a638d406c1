//! Eviction and admission against a reference model: Belady's rule with bypass, on random plans.

use super::*;
use policy::{NextUse, Refusal};

/// A plan: segments in the order in which they will be read, and how far it has come.
#[derive(Debug, Default)]
struct Plan {
    order: Mutex<Vec<u128>>,
    at: AtomicU64,
}

impl Plan {
    fn new(order: &[u128]) -> Arc<Self> {
        Arc::new(Self { order: Mutex::new(order.to_vec()), at: AtomicU64::new(0) })
    }

    /// The next place of a segment after the one that is being read now.
    fn next(&self, n: u128) -> NextUse {
        let at = self.at.load(Ordering::Relaxed) as usize;
        let order = self.order.lock();
        let place = order.iter().skip(at + 1).position(|&m| m == n);
        place.map_or(NextUse::Unplanned, |p| NextUse::Planned(p as u64))
    }
}

impl Forecast for Plan {
    fn next_uses(&self, ids: &[SegmentId]) -> Vec<NextUse> {
        ids.iter().map(|id| self.next(id.0.0 & 0xffff_ffff)).collect()
    }
}

fn planned(dir: &Path, files: u64, plan: &Arc<Plan>) -> DiskCache {
    let limit = limit_for(files, file_bytes(50, &["a"]));
    DiskCache::open(&DiskCacheSettings::new(dir, limit), plan.clone()).unwrap()
}

fn held(cache: &DiskCache) -> Vec<u128> {
    (0..64).filter(|&n| cache.holds(origin(n).id, &[])).collect()
}

/// Reads a plan through a disk cache; returns the hits.
fn replay(cache: &DiskCache, plan: &Plan) -> usize {
    let order = plan.order.lock().clone();
    let mut hits = 0;
    for (at, n) in order.into_iter().enumerate() {
        plan.at.store(at as u64, Ordering::Relaxed);
        match cache.find(origin(n).id, &names(&["a"])).missing.is_empty() {
            true => hits += 1,
            false => drop(
                cache
                    .write(&origin(n), &batch(n, 50, &["a"]).into(), Admit::IfWorthIt, Role::Primary)
                    .unwrap(),
            ),
        }
    }
    hits
}

/// Belady with bypass: keeps the segments read soonest, and does not take in the one read last.
fn belady(order: &[u128], files: usize) -> usize {
    let (mut cache, mut hits) = (Vec::new(), 0);
    for (at, n) in order.iter().enumerate() {
        if cache.contains(n) {
            hits += 1;
            continue;
        }
        cache.push(*n);
        let next = |m: &u128| order[at + 1..].iter().position(|o| o == m).unwrap_or(usize::MAX);
        if cache.len() > files {
            let last = (0..cache.len()).max_by_key(|&i| next(&cache[i])).unwrap();
            cache.swap_remove(last);
        }
    }
    hits
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    /// On any plan the disk cache hits as often as the optimum.
    #[test]
    fn hits_as_often_as_the_optimum(order in prop::collection::vec(0u128..12, 1..80), files in 1u64..8) {
        let dir = tempfile::tempdir().unwrap();
        let plan = Plan::new(&order);
        let cache = planned(dir.path(), files, &plan);
        prop_assert_eq!(replay(&cache, &plan), belady(&order, files as usize));
    }

    /// Whatever happens, a segment that is pinned or held by a reader is not evicted, and the limit holds.
    #[test]
    fn the_pinned_and_the_read_stay(
        order in prop::collection::vec(0u128..20, 1..60),
        pinned in 0u128..20,
        read in prop::collection::vec(0u128..20, 1..4),
        always in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let plan = Plan::new(&order);
        let cache = planned(dir.path(), 6, &plan);
        cache.pin(&origin(pinned).object).unwrap();
        let mut kept = Vec::new();
        let mut pinned_held = false;
        for (at, n) in order.iter().copied().enumerate() {
            plan.at.store(at as u64, Ordering::Relaxed);
            let admit = if always { Admit::Always } else { Admit::IfWorthIt };
            let written = cache.write(&origin(n), &batch(n, 50, &["a"]).into(), admit, Role::Primary).unwrap();
            if let Written::Stored(map) = written {
                pinned_held |= n == pinned;
                if read.contains(&n) {
                    kept.push((n, map));
                }
            }
            for (n, map) in &kept {
                prop_assert!(cache.holds(origin(*n).id, &[]));
                prop_assert_eq!(&map.batch.columns().unwrap(), &batch(*n, 50, &["a"]));
            }
            prop_assert!(!pinned_held || cache.holds(origin(pinned).id, &[]));
            prop_assert!(disk_bytes(dir.path()) <= cache.limit_bytes());
        }
    }
}

#[test]
fn half_the_data_cached_gives_half_the_hits() {
    let dir = tempfile::tempdir().unwrap();
    // Epochs in an order that changes: 16 segments, of which 8 fit.
    let epoch = |e: u128| (0..16u128).map(move |i| (i * 5 + e * 7) % 16);
    let order: Vec<u128> = (0..8).flat_map(epoch).collect();
    let plan = Plan::new(&order);
    let cache = planned(dir.path(), 8, &plan);
    let hits = replay(&cache, &plan);
    assert!(hits >= 7 * 8, "{hits} hits in 7 warm epochs of 16 reads");
}

#[test]
fn unplanned_data_goes_first_by_recency_and_pushes_out_nothing_planned() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan::new(&[63, 1, 2]);
    let cache = planned(dir.path(), 4, &plan);
    for n in [10, 1, 11, 2] {
        put(&cache, n, 50, &["a"]).unwrap();
    }
    cache.find(origin(10).id, &names(&["a"]));
    put(&cache, 12, 50, &["a"]).unwrap();
    assert_eq!(held(&cache), [1, 2, 10, 12], "11 was used longest ago");
    // Unplanned data replaces unplanned data only.
    for n in [13, 14, 15] {
        assert!(put(&cache, n, 50, &["a"]).is_some());
    }
    assert_eq!(held(&cache), [1, 2, 14, 15]);
    *plan.order.lock() = vec![63, 14, 15, 1, 2];
    let written =
        cache.write(&origin(16), &batch(16, 50, &["a"]).into(), Admit::IfWorthIt, Role::Primary).unwrap();
    assert!(matches!(written, Written::Refused(Refusal::NotWorthIt)));
    assert_eq!(cache.counters().not_stored.load(Ordering::Relaxed), 0);
    // Who reads it now and cannot keep it elsewhere gets it whatever is planned.
    let written =
        cache.write(&origin(16), &batch(16, 50, &["a"]).into(), Admit::Always, Role::Primary).unwrap();
    assert!(matches!(written, Written::Stored(_)));
    assert_eq!(held(&cache), [1, 14, 15, 16], "2 is read last");
}

/// A pass over all its bytes would cost many times what it costs to find out that they will not be written.
#[test]
fn a_segment_that_is_not_worth_writing_is_not_hashed() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan::new(&[63, 1, 2, 3]);
    let cache = planned(dir.path(), 2, &plan);
    let write =
        |n| cache.write(&origin(n), &batch(n, 50, &["a"]).into(), Admit::IfWorthIt, Role::Primary).unwrap();
    (1..=2).for_each(|n| assert!(matches!(write(n), Written::Stored(_))));
    let before = file::SEALED.get();
    assert!(matches!(write(3), Written::Refused(Refusal::NotWorthIt)));
    assert_eq!(file::SEALED.get(), before);
}

#[test]
fn a_victim_that_draws_near_is_spared() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan::new(&[]);
    let cache = planned(dir.path(), 300, &plan);
    let evictions = || cache.counters().evictions.load(Ordering::Relaxed);
    let mut new = 0;
    while evictions() == 0 {
        put(&cache, new, 50, &["a"]).unwrap();
        new += 1;
    }
    let gone = (0..new).take_while(|&n| !cache.holds(origin(n).id, &[])).count() as u128;
    // The queue of victims goes on with the next ones. Now two of them get planned.
    *plan.order.lock() = vec![999, gone, gone + 1];
    put(&cache, new, 50, &["a"]).unwrap();
    let missing: Vec<u128> = (0..new).filter(|&n| !cache.holds(origin(n).id, &[])).collect();
    assert_eq!(missing, (0..gone).chain([gone + 2]).collect::<Vec<_>>());
    let scans = cache.counters().scans.load(Ordering::Relaxed);
    assert!(scans <= 2, "one scan, and one more for the new plan: {scans}");
}

#[test]
fn pins_survive_a_restart_and_cover_what_comes() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan::new(&[]);
    // One of the five is the list of pins.
    let cache = planned(dir.path(), 5, &plan);
    put(&cache, 1, 50, &["a"]).unwrap();
    assert_eq!(cache.pin("s3://b/d1").unwrap(), (1, file_bytes(50, &["a"])));
    drop(cache);
    let cache = planned(dir.path(), 5, &plan);
    assert_eq!(cache.pinned().0, ["s3://b/d1"]);
    // Odd numbers lie under d1: they stay, as many as fit.
    for n in 2..20 {
        drop(put(&cache, n, 50, &["a"]));
    }
    assert_eq!(held(&cache), [1, 3, 5, 7]);
    assert_eq!(cache.pinned().1, 4 * file_bytes(50, &["a"]));
    assert!(cache.unpin("s3://b/d0").unwrap_err().message.contains("not pinned"));
    cache.unpin("s3://b/d1").unwrap();
    put(&cache, 20, 50, &["a"]).unwrap();
    assert_eq!((held(&cache), cache.pinned()), (vec![3, 5, 7, 20], (vec![], 0)));
    drop(cache);
    assert_eq!(planned(dir.path(), 4, &plan).pinned().0, [] as [&str; 0]);
}

#[test]
fn pins_made_at_once_all_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let uris: Vec<String> = (0..64).map(|n| format!("s3://b/d{n:02}")).collect();
    let cache = open(dir.path(), 1 << 20).unwrap();
    std::thread::scope(|scope| {
        for some in uris.chunks(8) {
            let cache = &cache;
            scope.spawn(move || {
                for uri in some {
                    cache.pin(uri).unwrap();
                }
            });
        }
    });
    assert_eq!(cache.pinned().0, uris);
    drop(cache);
    assert_eq!(open(dir.path(), 1 << 20).unwrap().pinned().0, uris);
}

#[test]
fn reading_the_same_files_again_and_again_makes_no_scan() {
    let dir = tempfile::tempdir().unwrap();
    let files = 640;
    let cache = open(dir.path(), limit_for(files, file_bytes(5, &["a"]))).unwrap();
    (0..u128::from(files) + 20).for_each(|n| drop(put(&cache, n, 5, &["a"])));
    let scans = || cache.counters().scans.load(Ordering::Relaxed);
    let before = scans();
    for n in 0..8 {
        for _ in 0..100 {
            drop(cache.find(origin(600).id, &names(&["a"])));
        }
        put(&cache, 1000 + n, 5, &["a"]).unwrap();
    }
    assert!(scans() <= before + 1, "{} scans for 8 evictions", scans() - before);
}
