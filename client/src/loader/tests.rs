mod changes;
mod fake;
mod no_nodes;
mod packing;
mod same_host;
mod successors;
mod versions;
mod world;

use super::*;
use crate::loader::driver::watched;
use crate::loader::position::Committed;
use fake::Fleet;
use forebay_proto::{Error, Kind};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use world::{Random, World, all_rows, check, check_first, reference, same};

const SHUFFLES: [Shuffle; 4] = [Shuffle::None, Shuffle::Window(1), Shuffle::Window(3), Shuffle::Full];

fn settings(global_batch: u64) -> LoaderSettings {
    LoaderSettings {
        seed: 11,
        global_batch,
        epochs: Some(2),
        patience: Duration::from_secs(20),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn direct_reads_equal_the_reference() {
    let world = World::new(&[130, 40, 75]);
    let dataset = world.open().await;
    let all = all_rows(&dataset).await;
    assert_eq!(all.num_rows(), 245);
    assert!(dataset.manifest.segments().len() > 5);
    for (i, ending) in [Ending::Drop, Ending::Pad, Ending::Exact].into_iter().enumerate() {
        for (j, layout) in [Layout::Segment, Layout::Position].into_iter().enumerate() {
            let shuffle = SHUFFLES[(i + 2 * j) % 4];
            for ranks in [1, 2, 4] {
                for rank in 0..ranks {
                    let settings =
                        LoaderSettings { ending, layout, shuffle, rank, world: ranks, ..settings(32) };
                    let what = format!("{ending:?} {layout:?} {shuffle} rank {rank} of {ranks}");
                    let loader = Loader::start(&dataset, settings.clone()).unwrap();
                    check(loader, &dataset, &all, &settings, &what).await;
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_panics_is_an_error_to_the_reader() {
    let world = World::new(&[130]);
    let dataset = world.open().await;
    let mut loader = Loader::start(&dataset, LoaderSettings { epochs: None, ..settings(10) }).unwrap();
    loader._driver.abort();
    let driver = tokio::spawn(watched(loader.context.clone(), async { panic!("as a test") }));
    loader._driver = AbortOnDropHandle::new(driver);
    let fails = async {
        loop {
            if let Err(error) = loader.next().await {
                return error;
            }
        }
    };
    let error = tokio::time::timeout(Duration::from_secs(20), fails).await.expect("it waits for ever");
    assert!(error.to_string().contains("the loader panicked"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_nodes_and_any_budget_equal_the_reference() {
    let world = World::new(&[90, 100, 33]);
    let direct = world.open().await;
    let all = all_rows(&direct).await;
    let mut random = Random(5);
    for nodes in [1, 3] {
        let fleet = Fleet::start(&world, nodes, None).await;
        let dataset = fleet.open(&world).await;
        assert_eq!(dataset.manifest.digest(), direct.manifest.digest());
        for case in 0..12 {
            let mut pick = |of: u64| random.next() % of;
            let prefetch_bytes = [0, 3000, 20_000, 1 << 20][pick(4) as usize];
            for node in &fleet.nodes {
                node.conduct.message_bytes.store([50, 800, 5000, 1 << 20][pick(4) as usize], SeqCst);
            }
            let settings = LoaderSettings {
                shuffle: SHUFFLES[pick(4) as usize],
                layout: [Layout::Segment, Layout::Position][pick(2) as usize],
                global_batch: [4, 16, 60, 400][pick(4) as usize],
                world: 2,
                rank: pick(2) as u32,
                ending: [Ending::Pad, Ending::Exact][pick(2) as usize],
                prefetch_bytes,
                ..settings(0)
            };
            let what = format!("{nodes} nodes, case {case}: {settings:?}");
            let loader = Loader::start(&dataset, settings.clone()).unwrap();
            check(loader, &direct, &all, &settings, &what).await;
        }
        assert!(fleet.nodes.iter().all(|n| n.conduct.streams.load(SeqCst) > 0), "all nodes were asked");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_streams_lose_and_repeat_nothing() {
    let world = World::new(&[90, 100, 33]);
    let direct = world.open().await;
    let all = all_rows(&direct).await;
    let mut cut = 0;
    for seed in 0..8 {
        let nodes = 1 + (seed as usize % 3);
        // A step must be brought at one go, so a cut after 0 to 40 KB leaves room for the largest.
        let fleet = Fleet::start(&world, nodes, Some((seed, 40_000))).await;
        fleet.nodes.iter().for_each(|n| n.conduct.message_bytes.store(8000, SeqCst));
        let dataset = fleet.open(&world).await;
        let mut random = Random(seed);
        let settings = LoaderSettings {
            shuffle: SHUFFLES[(random.next() % 4) as usize],
            layout: [Layout::Segment, Layout::Position][(random.next() % 2) as usize],
            global_batch: [4, 16, 60][(random.next() % 3) as usize],
            prefetch_bytes: [0, 10_000, 1 << 20][(random.next() % 3) as usize],
            epochs: Some(3),
            ..settings(0)
        };
        let what = format!("network seed {seed}, {nodes} nodes: {settings:?}");
        let loader = Loader::start(&dataset, settings.clone()).unwrap();
        check(loader, &direct, &all, &settings, &what).await;
        let streams: u64 = fleet.nodes.iter().map(|n| n.conduct.streams.load(SeqCst)).sum();
        cut += streams.saturating_sub(3 * nodes as u64);
    }
    assert!(cut > 20, "only {cut} streams were cut");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_is_not_an_error() {
    let world = World::new(&[90, 100, 33]);
    let direct = world.open().await;
    let all = all_rows(&direct).await;
    let mut fleet = Fleet::start(&world, 3, Some((1, 1 << 40))).await;
    let dataset = fleet.open(&world).await;
    let settings = LoaderSettings { prefetch_bytes: 2000, epochs: Some(2), ..settings(10) };
    let mut loader = Loader::start(&dataset, settings.clone()).unwrap();
    let kill = async |step| {
        if step == 5 {
            // Server and network of the last node: tasks come in pairs.
            fleet.kill(4);
            fleet.kill(5);
        }
    };
    check_first(&mut loader, &direct, &all, &settings, kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resumes_exactly_with_another_world_and_batch() {
    let world = World::new(&[100, 57]);
    let dataset = world.open().await;
    let all = all_rows(&dataset).await;
    let first = settings(12);
    let mut loader = Loader::start(&dataset, first.clone()).unwrap();
    for _ in 0..7 {
        loader.next().await.unwrap();
    }
    let state = LoaderState::from_bytes(&loader.state().to_bytes()).unwrap();
    assert_eq!(state.samples_done, 84);
    for (ranks, global_batch) in [(1, 12), (2, 12), (3, 21), (2, 200)] {
        for rank in 0..ranks {
            let resume = Some(state);
            let settings = LoaderSettings { world: ranks, rank, global_batch, resume, ..first.clone() };
            let loader = Loader::start(&dataset, settings.clone()).unwrap();
            assert_eq!(loader.state(), state);
            check(
                loader,
                &dataset,
                &all,
                &settings,
                &format!("rank {rank} of {ranks}, batch {global_batch}"),
            )
            .await;
        }
    }
    let refuse = |settings: LoaderSettings| Loader::start(&dataset, settings).unwrap_err();
    let mut other = state;
    other.key.manifest = forebay_proto::manifest::Digest(7);
    let e = refuse(LoaderSettings { resume: Some(other), ..first.clone() });
    assert_eq!(e.kind, Kind::Changed);
    assert!(e.message.contains(&dataset.manifest.digest().to_string()) && e.message.contains("0007"), "{e}");
    let e = refuse(LoaderSettings { resume: Some(state), seed: 3, ..first.clone() });
    assert_eq!(e.kind, Kind::Invalid);
    assert_eq!(refuse(LoaderSettings { rank: 2, world: 2, ..first.clone() }).kind, Kind::Invalid);
    assert_eq!(refuse(settings(0)).kind, Kind::Invalid);
    let e = refuse(LoaderSettings { ending: Ending::Drop, ..settings(1000) });
    assert!(e.message.contains("fewer than the global batch"), "{e}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_forgot_the_dataset_is_told_again() {
    let world = World::new(&[60]);
    let direct = world.open().await;
    let all = all_rows(&direct).await;
    let fleet = Fleet::start(&world, 1, None).await;
    let dataset = fleet.open(&world).await;
    let conduct = &fleet.nodes[0].conduct;
    let settings = settings(10);
    // Three times: somebody frees the dataset again and again, and no row comes in between.
    for forgets in [1, 3] {
        let opens = conduct.opens.load(SeqCst);
        conduct.forgets.store(forgets, SeqCst);
        let loader = Loader::start(&dataset, settings.clone()).unwrap();
        check(loader, &direct, &all, &settings, "forgetful").await;
        // Once more if an answer was late.
        assert!((forgets..=2 * forgets).contains(&(conduct.opens.load(SeqCst) - opens)));
    }
    // Objects that were added since do not belong to the run.
    conduct.forgets.store(1, SeqCst);
    world.add();
    let loader = Loader::start(&dataset, settings.clone()).unwrap();
    check(loader, &direct, &all, &settings, "with an object more").await;
    assert_ne!(fleet.open(&world).await.manifest.digest(), dataset.manifest.digest());
    // One that was overwritten is an error that names the version.
    conduct.forgets.store(1, SeqCst);
    world.overwrite();
    let mut loader = Loader::start(&dataset, settings).unwrap();
    let e = loader.next().await.unwrap_err();
    assert_eq!(e.kind, Kind::Changed, "{e}");
    assert!(e.message.contains(&dataset.manifest.digest().to_string()), "{e}");
    assert!(e.message.contains("part-000.parquet: was overwritten"), "{e}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_on_the_way_is_repaired_and_wrong_rows_are_an_error() {
    let world = World::new(&[60]);
    let direct = world.open().await;
    let all = all_rows(&direct).await;
    let fleet = Fleet::start(&world, 1, None).await;
    let dataset = fleet.open(&world).await;
    let conduct = &fleet.nodes[0].conduct;
    let settings = settings(10);
    for at in 0..32 {
        let flip = fake::Flip { header: at % 4 != 0, at: f64::from(at) / 32.0 };
        *conduct.flips.lock() = Some(flip);
        let streams = conduct.streams.load(SeqCst);
        let loader = Loader::start(&dataset, settings.clone()).unwrap();
        check(loader, &direct, &all, &settings, &format!("flipped at {at}")).await;
        assert!(
            conduct.streams.load(SeqCst) > streams + settings.epochs.unwrap_or(1),
            "{at}: it was read again"
        );
    }
    conduct.skips.store(true, SeqCst);
    let mut loader = Loader::start(&dataset, settings.clone()).unwrap();
    let e = loader.next().await.unwrap_err();
    assert_eq!(e.kind, Kind::Corrupt, "{e}");
    assert!(e.message.contains("the plan has"), "{e}");
    for kind in [Kind::Denied, Kind::Invalid, Kind::Changed, Kind::Corrupt] {
        *conduct.fails.lock() = Some(Error::new(kind, "s3://b/k: 100% bad \u{fc}"));
        let mut loader = Loader::start(&dataset, settings.clone()).unwrap();
        let e = loader.next().await.unwrap_err();
        assert_eq!(e.kind, kind);
        assert!(e.message.contains("s3://b/k: 100% bad \u{fc}"), "{e}");
    }
    *conduct.fails.lock() = Some(Error::retry("busy"));
    let mut loader =
        Loader::start(&dataset, LoaderSettings { patience: Duration::from_secs(1), ..settings }).unwrap();
    let e = loader.next().await.unwrap_err();
    // Why: it is busy, or silent where the machine stands still.
    assert_eq!((e.kind, e.message.contains("gave up after 1 s: ")), (Kind::Retry, true), "{e}");
    assert!(loader.next().await.is_err(), "an error is final");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_bring_what_a_slow_node_is_late_with() {
    let world = World::new(&[90, 100, 33]);
    let direct = world.open().await;
    let all = all_rows(&direct).await;
    let fleet = Fleet::start(&world, 3, None).await;
    let dataset = fleet.open(&world).await;
    fleet.nodes.iter().for_each(|n| n.conduct.message_bytes.store(4000, SeqCst));
    fleet.nodes[1].conduct.delay_ms.store(2500, SeqCst);
    let settings = LoaderSettings { prefetch_bytes: 2000, epochs: Some(1), ..settings(20) };
    let loader = Loader::start(&dataset, settings.clone()).unwrap();
    check(loader, &direct, &all, &settings, "one slow node").await;
    // The slow one may have been asked as well: others are late too when the machine stands still.
    let hedges = |node: usize| fleet.nodes[node].conduct.hedges.load(SeqCst);
    assert!(hedges(0) + hedges(2) > 0, "nobody stepped in for the slow node");
}

/// A node that lives, as its pings say, but does not answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_does_not_answer_tries_patience_and_no_more() {
    let world = World::new(&[60]);
    let fleet = Fleet::start(&world, 1, None).await;
    let dataset = fleet.open(&world).await;
    fleet.nodes[0].conduct.stalls.store(true, SeqCst);
    let settings = LoaderSettings { patience: Duration::from_millis(300), ..settings(10) };
    let mut errors = Vec::new();
    // A ping that comes late, on a machine that stands still for a moment, means a dead node: then once more.
    for _ in 0..5 {
        let mut loader = Loader::start(&dataset, settings.clone()).unwrap();
        let next = tokio::time::timeout(Duration::from_secs(30), loader.next());
        let e = next.await.expect("no hang").unwrap_err();
        assert_eq!(e.kind, Kind::Retry, "{e}");
        if e.message.contains("no data for 0.3 s") {
            return;
        }
        errors.push(e);
    }
    panic!("{errors:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_waits_holds_everything_back() {
    let world = World::new(&[400]);
    let fleet = Fleet::start(&world, 1, None).await;
    let dataset = fleet.open(&world).await;
    let settings = LoaderSettings { prefetch_bytes: 6000, epochs: None, ..settings(8) };
    let mut loader = Loader::start(&dataset, settings).unwrap();
    for _ in 0..300 {
        assert!(loader.next().await.unwrap().is_some());
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(loader.context.buffer.bytes() < 9000, "{}", loader.context.buffer.bytes());
}

#[test]
fn steps_before_rows() {
    assert!(Committed { step: 1, row: 0 } > Committed { step: 0, row: 9 });
}

/// A checkpoint is often taken with the last batch in hand, before the loader says that the epoch is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_of_an_epochs_last_batch_resumes_into_the_next_epoch() {
    let world = World::new(&[100, 57]);
    let dataset = world.open().await;
    let all = all_rows(&dataset).await;
    for ending in [Ending::Drop, Ending::Pad, Ending::Exact] {
        let first = LoaderSettings { ending, ..settings(12) };
        let mut loader = Loader::start(&dataset, first.clone()).unwrap();
        for _ in 0..loader.steps(0) {
            assert!(matches!(loader.next().await.unwrap(), Some(Event::Batch(_))));
        }
        let resume = Some(loader.state());
        let mut loader = Loader::start(&dataset, LoaderSettings { resume, ..first.clone() }).unwrap();
        assert_eq!((loader.state().key.epoch, loader.state().samples_done), (1, 0));
        let (want, digest) = reference(&dataset, &all, &first, 1, 0);
        assert_eq!(loader.steps(1), want.len() as u64);
        for (step, want) in want.iter().enumerate() {
            match loader.next().await.unwrap() {
                Some(Event::Batch(batch)) => same(&batch, want, &format!("{ending:?}, step {step}")),
                other => panic!("{other:?}"),
            }
        }
        match loader.next().await.unwrap() {
            Some(Event::EpochEnd(end)) => assert_eq!((end.epoch, end.digest), (1, digest)),
            other => panic!("{other:?}"),
        }
        // Both epochs are read: nothing is left after the last batch of the second.
        let resume =
            Some(LoaderState { key: loader.plan.key(&dataset, 1), samples_done: 157, tokens_done: None });
        let resume = Some(resume.filter(|_| ending != Ending::Drop).unwrap_or_else(|| loader.state()));
        let mut loader = Loader::start(&dataset, LoaderSettings { resume, ..first }).unwrap();
        assert!(loader.next().await.unwrap().is_none(), "{ending:?}");
    }
}

/// When a cache dies, its readers do not all come to the object store at once.
#[tokio::test]
async fn the_last_resort_comes_at_different_times() {
    let world = World::new(&[60]);
    let fleet = Fleet::start(&world, 1, None).await;
    let dataset = fleet.open(&world).await;
    let after = Duration::from_secs(4);
    let start = || Loader::start(&dataset, LoaderSettings { fallback_after: after, ..settings(10) }).unwrap();
    let mut all: Vec<_> = (0..20).map(|_| start().context.policy.fallback_after).collect();
    assert!(all.iter().all(|wait| (after..=after.mul_f64(1.5)).contains(wait)), "{all:?}");
    all.sort();
    all.dedup();
    assert!(all.len() > 10 && *all.last().unwrap() - all[0] > after / 8, "{all:?}");
}
