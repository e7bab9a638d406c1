//! Nodes that say where they are. The real shared memory is in the end-to-end tests.

use super::*;
use forebay_dataset::shared::host_id;
use forebay_proto::v1;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::net::UnixListener;

/// A socket that takes connections and ends them at once, and how many came.
fn door(path: &std::path::Path) -> Arc<AtomicU64> {
    let listener = UnixListener::bind(path).unwrap();
    let knocks = Arc::new(AtomicU64::new(0));
    let count = knocks.clone();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            count.fetch_add(1, SeqCst);
            drop(socket);
        }
    });
    knocks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_no_memory_can_be_shared_bytes_come() {
    let world = World::new(&[130, 40]);
    let direct = world.open().await;
    let all = all_rows(&direct).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let knocks = door(&path);
    let at = |host: &str, socket: &std::path::Path| v1::SameHostReply {
        host: host.to_owned(),
        socket: socket.to_str().unwrap().to_owned(),
        instance: vec![1; 16].into(),
        ..Default::default()
    };
    let nowhere = folder.path().join("nowhere");
    // Another host's path means nothing here; a path where nobody listens, and a socket that is not the
    // node's.
    for (said, comes) in
        [(at("another", &path), false), (at(&host_id(), &nowhere), false), (at(&host_id(), &path), true)]
    {
        let fleet = Fleet::start(&world, 1, None).await;
        *fleet.nodes[0].conduct.same_host.lock() = said;
        let before = knocks.load(SeqCst);
        let dataset = fleet.open(&world).await;
        let loader = Loader::start(&dataset, settings(10)).unwrap();
        check(loader, &direct, &all, &settings(10), "a node on this host").await;
        assert_eq!(knocks.load(SeqCst) > before, comes);
        assert!(fleet.nodes[0].conduct.streams.load(SeqCst) > 0);
    }
}
