//! While no node of a cluster can be asked: all are dead, or none takes segments.

use super::fake::Fleet;
use super::settings;
use super::world::{World, all_rows, check, check_first};
use crate::access::Access;
use crate::dataset::Dataset;
use crate::fill::fill;
use crate::loader::{Loader, LoaderSettings};
use forebay_proto::{Error, Kind};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tokio::time::sleep;

fn weigh(fleet: &Fleet, weight: f64) {
    fleet.change(|t| t.nodes.iter_mut().for_each(|node| node.weight = weight));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_resort_comes_however_the_endpoint_is_spelled() {
    let world = World::new(&[90, 100, 33]);
    let direct = world.open().await;
    let all = all_rows(&direct).await;
    // The network ends with its connections, and cuts none before.
    let mut fleet = Fleet::start(&world, 2, Some((1, 1 << 40))).await;
    let port = fleet.addresses[0].rsplit(':').next().unwrap();
    let access = Access::endpoint(&format!("localhost:{port}")).unwrap();
    let Access::Endpoint(mut nodes) = access else { unreachable!() };
    let Access::Direct(store) = world.access() else { unreachable!() };
    nodes.fallback = Some(store);
    let dataset = Dataset::open(&Access::Endpoint(nodes), &world.spec()).await.unwrap();
    let settings = LoaderSettings {
        prefetch_bytes: 2000,
        epochs: Some(1),
        fallback_after: Duration::from_millis(100),
        patience: Duration::from_secs(10),
        ..settings(10)
    };
    let mut loader = Loader::start(&dataset, settings.clone()).unwrap();
    let kill = async |step| {
        if step == 5 {
            (0..4).for_each(|task| fleet.kill(task));
        }
    };
    check_first(&mut loader, &direct, &all, &settings, kill).await;
    assert!(fleet.nodes.iter().any(|n| n.conduct.streams.load(SeqCst) > 0), "the nodes were read first");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_epoch_waits_for_nodes_that_take_segments() {
    let world = World::new(&[90, 100]);
    let direct = world.open().await;
    let all = all_rows(&direct).await;
    let fleet = Fleet::start(&world, 2, None).await;
    let dataset = fleet.open(&world).await;
    weigh(&fleet, 0.0);
    let loader = Loader::start(&dataset, settings(10)).unwrap();
    let later = async {
        sleep(Duration::from_millis(300)).await;
        assert!(fleet.nodes.iter().all(|n| n.conduct.streams.load(SeqCst) == 0), "nobody was asked");
        weigh(&fleet, 1.0);
    };
    let settings = settings(10);
    tokio::join!(check(loader, &direct, &all, &settings, "nodes take segments again"), later);
    // For as long as the reader's patience lasts.
    weigh(&fleet, 0.0);
    let settings = LoaderSettings { patience: Duration::from_millis(500), ..settings };
    let mut loader = Loader::start(&dataset, settings).unwrap();
    let e = loader.next().await.unwrap_err();
    assert_eq!(e.kind, Kind::Retry, "{e}");
    assert!(e.message.contains("gave up after 0.5 s: no node of the cache takes segments"), "{e}");
}

/// Why the nodes of a dataset's cache are not filled with it.
async fn refusal(dataset: &Dataset) -> Error {
    let Access::Endpoint(nodes) = &dataset.access else { unreachable!() };
    fill(nodes, dataset, |_| {}).await.expect_err("nothing was filled")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_that_fills_no_node_is_an_error() {
    let world = World::new(&[60]);
    let fleet = Fleet::start(&world, 2, None).await;
    let dataset = fleet.open(&world).await;
    weigh(&fleet, 0.0);
    let e = refusal(&dataset).await;
    assert_eq!(e.kind, Kind::Retry, "{e}");
    let nodes = format!("node-0 at {}, node-1 at {}", fleet.addresses[0], fleet.addresses[1]);
    assert!(e.message.contains(&nodes) && e.message.contains("--weight above 0"), "{e}");
    weigh(&fleet, 1.0);
    // What they advertise leads nowhere.
    fleet.change(|t| {
        for (n, node) in (1..).zip(&mut t.nodes) {
            node.address = format!("http://127.0.0.1:{n}");
        }
    });
    let e = refusal(&dataset).await;
    assert_eq!(e.kind, Kind::Retry, "{e}");
    assert!(e.message.contains("node-1 at http://127.0.0.1:2") && e.message.contains("--advertise"), "{e}");
}
