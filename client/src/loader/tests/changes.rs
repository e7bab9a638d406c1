//! The topology changes while a loader reads.

use super::fake::Fleet;
use super::settings;
use super::world::{Random, World, all_rows, check, check_first};
use crate::access::Access;
use crate::dataset::Dataset;
use crate::loader::worker::CALM;
use crate::loader::{Loader, LoaderSettings, Shuffle};
use crate::routing::Cluster;
use forebay_proto::v1;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// A copy of some nodes on each of `segments`.
fn heat(dataset: &Dataset, segments: impl Iterator<Item = u32>, nodes: &[&str]) -> Vec<v1::HotSegment> {
    let hot = |s| v1::HotSegment {
        segment: dataset.manifest.segment_id(s).unwrap().0.to_bytes().to_vec().into(),
        nodes: nodes.iter().map(|n| (*n).into()).collect(),
        ..Default::default()
    };
    segments.map(hot).collect()
}

/// Any topology with at least one node that takes segments.
fn any_topology(random: &mut Random, all: &[v1::Node], dataset: &Dataset, t: &mut v1::Topology) {
    let names: Vec<&str> = all.iter().map(|n| n.name.as_str()).collect();
    t.nodes = all.iter().filter(|_| !random.next().is_multiple_of(3)).cloned().collect();
    if t.nodes.is_empty() {
        t.nodes.push(all[(random.next() % all.len() as u64) as usize].clone());
    }
    // A cluster of one that etcd lists is not one that is alone.
    t.cluster = 7;
    for (i, node) in t.nodes.iter_mut().enumerate() {
        node.weight =
            [0.0f64, 0.5, 1.0, 3.0][(random.next() % 4) as usize].max(if i == 0 { 0.5 } else { 0.0 });
        node.zone = ["a", "b"][(random.next() % 2) as usize].into();
    }
    t.replicas = (random.next() % 4) as u32;
    let hot = random.next() % 4 * 10;
    let count = dataset.manifest.segments().len() as u32;
    let some: Vec<u32> = (0..count).filter(|_| random.next() % 40 < hot).collect();
    t.hot = heat(dataset, some.into_iter(), &names[(random.next() % names.len() as u64) as usize..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_changes_lose_and_repeat_nothing() {
    let world = World::new(&[300, 200, 133]);
    let direct = world.open().await;
    let all = all_rows(&direct).await;
    let mut streams = 0;
    for seed in 0..6 {
        let fleet = Arc::new(Fleet::start(&world, 4, None).await);
        let mut random = Random(seed);
        fleet.nodes.iter().for_each(|n| n.conduct.delay_ms.store(1 + random.next() % 4, SeqCst));
        let dataset = fleet.open(&world).await;
        let nodes = fleet.topology.borrow().nodes.clone();
        let settings = LoaderSettings {
            shuffle: [Shuffle::None, Shuffle::Window(3), Shuffle::Full][(random.next() % 3) as usize],
            global_batch: [4, 16, 60][(random.next() % 3) as usize],
            prefetch_bytes: [0, 5000, 1 << 20][(random.next() % 3) as usize],
            epochs: Some(3),
            ..settings(0)
        };
        let what = format!("seed {seed}: {settings:?}");
        let changer = tokio::spawn({
            let (fleet, dataset) = (fleet.clone(), dataset.clone());
            async move {
                loop {
                    fleet.change(|t| any_topology(&mut random, &nodes, &dataset, t));
                    sleep(Duration::from_millis(random.next() % 60)).await;
                }
            }
        });
        let loader = Loader::start(&dataset, settings.clone()).unwrap();
        check(loader, &direct, &all, &settings, &what).await;
        changer.abort();
        streams += fleet.nodes.iter().map(|n| n.conduct.streams.load(SeqCst)).sum::<u64>();
    }
    assert!(streams > 6 * 3 * 4 + 50, "only {streams} streams: nothing moved in mid-epoch");
}

/// Reads one epoch, checks it, and does something before some step.
async fn read(
    world: &World,
    fleet: &Fleet,
    settings: &LoaderSettings,
    mut before: impl AsyncFnMut(usize, &Dataset),
) {
    let direct = world.open().await;
    let (dataset, all) = (fleet.open(world).await, all_rows(&direct).await);
    let mut loader = Loader::start(&dataset, settings.clone()).unwrap();
    check_first(&mut loader, &direct, &all, settings, async |step| before(step, &dataset).await).await;
}

fn streams(fleet: &Fleet) -> Vec<u64> {
    fleet.nodes.iter().map(|n| n.conduct.streams.load(SeqCst)).collect()
}

/// One epoch of many steps with little read ahead.
fn slowly() -> LoaderSettings {
    LoaderSettings { prefetch_bytes: 0, epochs: Some(1), ..settings(4) }
}

/// Where readers are with segments that become hot and cool down again.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// All of it is read at the first node.
    Before,
    /// They are to spread.
    Hot,
    /// They are to come back to the first node: its streams before, and the steps since anything moved.
    Cooling(u64, u32),
    Back,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_spread_over_hot_copies_and_come_back() {
    let world = World::new(&[2000]);
    let fleet = Fleet::start(&world, 3, None).await;
    // All of it is the first node's.
    fleet.change(|t| t.nodes[1..].iter_mut().for_each(|n| n.weight = 1e-9));
    let conducts: Vec<_> = fleet.nodes.iter().map(|n| n.conduct.clone()).collect();
    let (mut phase, mut then) = (Phase::Before, Vec::<u64>::new());
    read(&world, &fleet, &slowly(), async |step, dataset| {
        let (now, count) = (streams(&fleet), dataset.manifest.segments().len() as u32);
        // How soon a change is heard of depends on the machine: a phase lasts until what it waits for is so.
        phase = match phase {
            Phase::Before if step == 20 => {
                assert_eq!(now, [1, 0, 0]);
                fleet.change(|t| t.hot = heat(dataset, 0..count, &["node-1", "node-2"]));
                Phase::Hot
            }
            Phase::Hot if now[0] > 1 && now.iter().all(|s| (1..4).contains(s)) => {
                fleet.change(|t| t.hot.clear());
                Phase::Cooling(now[0], 0)
            }
            // Each of the other two nodes' readers comes back with a stream of its own.
            Phase::Cooling(had, _) if now != then || now[0] < had + 2 => Phase::Cooling(had, 0),
            Phase::Cooling(had, calm) if calm < 20 => Phase::Cooling(had, calm + 1),
            // Nothing is asked of the others any more: they may fail.
            Phase::Cooling(..) => {
                conducts[1..].iter().for_each(|c| c.stalls.store(true, SeqCst));
                Phase::Back
            }
            same => same,
        };
        if matches!(phase, Phase::Hot | Phase::Cooling(..)) {
            sleep(CALM).await;
        }
        if phase != Phase::Back {
            then = now;
        }
    })
    .await;
    assert_eq!(phase, Phase::Back, "{:?} streams", streams(&fleet));
    assert_eq!(streams(&fleet), then);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_elsewhere_moves_nothing() {
    let world = World::new(&[300]);
    let fleet = Fleet::start(&world, 2, None).await;
    read(&world, &fleet, &slowly(), async |step, dataset| {
        if step % 5 == 0 {
            fleet.change(|t| {
                t.replicas = 1 + t.replicas % 2;
                t.datasets = vec![v1::Replicas { uri: "s3://elsewhere/".into(), replicas: step as u32 }];
                let idle = v1::Node {
                    name: format!("idle-{step}"),
                    address: "http://idle:1".into(),
                    ..Default::default()
                };
                t.nodes.truncate(2);
                t.nodes.push(idle);
                // Hot without further copies, and other data.
                t.hot = heat(dataset, 0..if t.replicas == 1 { 3 } else { 0 }, &["gone"]);
                let (segment, nodes) = (vec![9; 16].into(), vec!["node-1".into()]);
                t.hot.push(v1::HotSegment { segment, nodes, ..Default::default() });
            });
            sleep(CALM).await;
        }
    })
    .await;
    assert_eq!(streams(&fleet), [1, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_changes_in_a_row_are_one() {
    let world = World::new(&[400]);
    let fleet = Arc::new(Fleet::start(&world, 3, None).await);
    fleet.nodes.iter().for_each(|n| n.conduct.delay_ms.store(1, SeqCst));
    let third = fleet.topology.borrow().nodes[2].clone();
    let changer = tokio::spawn({
        let fleet = fleet.clone();
        async move {
            loop {
                fleet.change(|t| match t.nodes.len() {
                    3 => drop(t.nodes.pop()),
                    _ => t.nodes.push(third.clone()),
                });
                tokio::task::yield_now().await;
            }
        }
    });
    let began = Instant::now();
    read(&world, &fleet, &slowly(), async |_, _| {}).await;
    changer.abort();
    // A lane for each of two nodes, and one that each of them gave to the third.
    let most = 4 * (2 + began.elapsed().div_duration_f64(CALM) as u64);
    let all = streams(&fleet).iter().sum::<u64>();
    // Three if the reader had noticed no change.
    assert!(all > 3 && all <= most, "{all} streams, at most {most} allowed");
}

/// Segment by segment becomes hot and cools down again: lanes become many, but not ever more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_do_not_become_ever_more() {
    let world = World::new(&[1500, 1500]);
    let fleet = Fleet::start(&world, 3, None).await;
    fleet.change(|t| t.nodes[1..].iter_mut().for_each(|n| n.weight = 1e-9));
    fleet.nodes.iter().for_each(|n| n.conduct.message_bytes.store(50, SeqCst));
    let (mut random, mut most) = (Random(3), 0);
    let settings = LoaderSettings { prefetch_bytes: 20_000, shuffle: Shuffle::Full, ..slowly() };
    read(&world, &fleet, &settings, async |step, dataset| {
        let count = dataset.manifest.segments().len() as u32;
        assert!(count > 100, "{count} segments");
        if step % 2 == 0 && step < 700 {
            let some: Vec<u32> = (0..count).filter(|_| random.next().is_multiple_of(2)).collect();
            fleet.change(|t| t.hot = heat(dataset, some.into_iter(), &["node-1", "node-2"]));
            sleep(CALM / 2).await;
            most = most.max(fleet.nodes.iter().map(|n| n.conduct.open.load(SeqCst)).sum::<u64>());
        }
    })
    .await;
    // More than one for each node, or it shows nothing. Those that ended count until their nodes notice.
    // Without a bound there would be one for each segment.
    assert!((9..=80).contains(&most), "{most} streams at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_follows_its_segments() {
    let world = World::new(&[200]);
    let fleet = Fleet::start(&world, 2, None).await;
    fleet.nodes.iter().for_each(|n| n.conduct.message_bytes.store(1500, SeqCst));
    let slow = fleet.nodes[1].conduct.clone();
    slow.delay_ms.store(2500, SeqCst);
    let (mut moved, mut before) = (false, vec![]);
    read(&world, &fleet, &slowly(), async |_, _| {
        if fleet.nodes[0].conduct.hedges.load(SeqCst) > 0 && !moved {
            moved = true;
            before = streams(&fleet);
            // What it was late with is no longer its own.
            fleet.change(|t| t.nodes[1].weight = 0.0);
        }
    })
    .await;
    assert!(moved, "nobody stepped in for the slow node");
    assert_eq!(streams(&fleet)[1], before[1]);
    assert!(streams(&fleet)[0] > before[0], "the guest went on as one");
}

async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !is().await {
        assert!(began.elapsed() < Duration::from_secs(20), "{what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// A new etcd counts from the beginning, under the same id if its flags are the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_count_of_revisions_is_followed() {
    let world = World::new(&[400]);
    let direct = world.open().await;
    let fleet = Fleet::start(&world, 3, None).await;
    fleet.change(|t| (t.cluster, t.revision) = (7, 500));
    let Access::Endpoint(all) = Access::endpoint(&fleet.addresses.join(",")).unwrap() else { unreachable!() };
    let cluster = Cluster::follow(&all, 0);
    let list = || (0..direct.manifest.segments().len() as u32).collect();
    let nodes = async || cluster.groups(&direct.manifest, list()).await.unwrap().len();
    cluster.ready().await;
    assert_eq!(nodes().await, 3);
    // The node that is watched tells it itself.
    let nodes_told = fleet.topology.borrow().nodes.clone();
    fleet.change(|t| (t.revision, t.nodes) = (3, nodes_told[..2].to_vec()));
    until("a lower revision of the same node", async || nodes().await == 2).await;
    // A node that tells something old is not believed while others know better, and is when nobody does.
    let tell = |n: usize, revision, nodes: &[v1::Node]| {
        let told = v1::Topology { revision, cluster: 7, nodes: nodes.to_vec(), ..Default::default() };
        let conduct = &fleet.nodes[n].conduct;
        *conduct.tells.lock() = Some(told);
        conduct.tells_once.store(true, SeqCst);
    };
    // Whichever node is asked first.
    for offset in 0..3 {
        tell(0, 500, &nodes_told);
        tell(1, 4, &nodes_told[..1]);
        tell(2, 500, &nodes_told);
        let cluster = Cluster::follow(&all, offset);
        let nodes = async || cluster.groups(&direct.manifest, list()).await.unwrap().len();
        cluster.ready().await;
        until("the first topology", async || nodes().await == 3).await;
        sleep(Duration::from_millis(500)).await;
        assert_eq!(nodes().await, 3, "an old topology was believed");
        tell(0, 4, &nodes_told[..2]);
        tell(2, 2, &nodes_told[..1]);
        tell(1, 5, &nodes_told[..2]);
        until("the newest that nodes tell", async || nodes().await == 2).await;
    }
}
