//! Copies from another node, which a service in this process stands for.

use super::*;
use crate::cluster::ownership::Ownership;
use crate::cluster::peers::tests::FakeNode;
use crate::cluster::peers::{PeerCredentials, Peers};
use crate::disk::DiskCache;
use crate::disk::DiskCacheSettings;
use crate::read::memory::Memory;
use crate::read::plans::Plans;
use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use forebay_dataset::SegmentReader;
use std::time::Duration;
use tokio::sync::watch;

fn exchange(dir: &std::path::Path, topology: v1::Topology) -> SegmentExchange {
    let (plans, memory) = (Arc::new(Plans::default()), Memory::new(1 << 23));
    let disk = DiskCache::open(&DiskCacheSettings::new(dir, 1 << 22), plans.clone()).unwrap();
    let ownership = Ownership::new("http://me", watch::channel(topology).1);
    let (disk, peers) =
        (Arc::new(disk), Arc::new(Peers::new(Arc::new(ownership), PeerCredentials::default())));
    let source = SegmentReader::new(Default::default()).unwrap();
    SegmentExchange(Cache::new(source, disk, Arc::default(), plans, memory, peers))
}

#[tokio::test]
async fn a_copy_waits_for_memory_that_fills_use() {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
    let batch = RecordBatch::try_from_iter([("id", ids)]).unwrap();
    let id = SegmentId(Digest::from_bytes(&[7; 16]).unwrap());
    let origin = Origin { id, object: "file:///a/b.parquet".into(), etag: "e".into() };
    let file = Encoded::new(&origin, &batch.into()).unwrap();
    let bytes = file.bytes();
    let file = file.0.into_iter().flat_map(|piece| piece.to_vec()).collect();
    let (address, _serving) = FakeNode { file: Some(file), ..Default::default() }.serve().await;

    let dir = tempfile::tempdir().unwrap();
    let node = v1::Node { name: "a".into(), address: address.clone(), weight: 1.0, ..Default::default() };
    let own = exchange(dir.path(), v1::Topology { nodes: vec![node], ..Default::default() });
    let segment = id.0.to_bytes().to_vec().into();
    let item = v1::CopyItem { segment, columns: vec!["id".into()], bytes };
    let all = &own.0.memory.fills.all;
    let fills = all.acquire_now(all.limit());
    let mut taking = Box::pin(own.take_copy(&address, &item, |_| Ok(())));
    // The fills that are under way use all the memory that there is: a copy goes without until they end.
    assert!(tokio::time::timeout(Duration::from_millis(500), &mut taking).await.is_err());
    drop(fills);
    assert!(taking.await.unwrap());
    assert_eq!((own.0.memory.fills_used(), own.0.memory.prefetch_used()), (0, 0));
}
