//! Copies from another node, which a service in this process stands for.

use super::*;
use crate::cluster::ownership::Ownership;
use crate::cluster::peers::{PeerCredentials, Peers};
use crate::disk::DiskCache;
use crate::disk::DiskCacheSettings;
use crate::read::memory::Memory;
use crate::read::plans::Plans;
use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use forebay_dataset::SegmentReader;
use forebay_proto::v1::peer_server::{Peer, PeerServer};
use futures::StreamExt;
use futures::stream::BoxStream;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// A node that sends one file, whatever it is asked for.
struct OneFile(Vec<u8>);

type Reply<T> = std::result::Result<Response<T>, Status>;

#[tonic::async_trait]
impl Peer for OneFile {
    type FetchStream = BoxStream<'static, std::result::Result<v1::FetchChunk, Status>>;

    async fn fetch(&self, _: Request<v1::FetchRequest>) -> Reply<Self::FetchStream> {
        let chunk = v1::FetchChunk { data: self.0.clone().into(), file_bytes: self.0.len() as u64 };
        Ok(Response::new(futures::stream::iter([Ok(chunk)]).boxed()))
    }

    async fn holds(&self, _: Request<v1::HoldsRequest>) -> Reply<v1::HoldsReply> {
        Err(Status::unimplemented(""))
    }

    async fn copy(&self, _: Request<v1::CopyRequest>) -> Reply<v1::CopyReply> {
        Err(Status::unimplemented(""))
    }

    async fn learn(&self, _: Request<v1::Manifest>) -> Reply<v1::LearnReply> {
        Err(Status::unimplemented(""))
    }

    async fn version(&self, _: Request<v1::HeadObjectRequest>) -> Reply<v1::ObjectVersion> {
        Err(Status::unimplemented(""))
    }

    async fn load(&self, _: Request<v1::LoadOfRequest>) -> Reply<v1::NodeLoad> {
        Err(Status::unimplemented(""))
    }
}

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
    let file = OneFile(file.0.into_iter().flat_map(|piece| piece.to_vec()).collect());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let serving = tonic::transport::Server::builder()
        .add_service(PeerServer::new(file))
        .serve_with_incoming(TcpListenerStream::new(listener));
    let serving = tokio::spawn(serving);

    let dir = tempfile::tempdir().unwrap();
    let node = v1::Node { name: "a".into(), address: address.clone(), weight: 1.0, ..Default::default() };
    let own = exchange(dir.path(), v1::Topology { nodes: vec![node], ..Default::default() });
    let segment = id.0.to_bytes().to_vec().into();
    let item = v1::CopyItem { segment, columns: vec!["id".into()], bytes };
    let fills = own.0.memory.fills.acquire_now(own.0.memory.fills.limit());
    let mut taking = Box::pin(own.take_copy(&address, &item, |_| Ok(())));
    // The fills that are under way use all the memory that there is: a copy goes without until they end.
    assert!(tokio::time::timeout(Duration::from_millis(500), &mut taking).await.is_err());
    drop(fills);
    assert!(taking.await.unwrap());
    assert_eq!((own.0.memory.fills.used(), own.0.memory.prefetch.used()), (0, 0));
    serving.abort();
}
