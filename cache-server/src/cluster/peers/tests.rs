use super::*;
use crate::disk::file::Encoded;
use arrow::array::{ArrayRef, Int64Array, RecordBatch, UInt8Array};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field, Schema};
use forebay_proto::manifest::{Digest, SegmentId};
use forebay_proto::v1::peer_server::{Peer as PeerService, PeerServer};
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status};

impl Peers {
    /// A cluster of one.
    pub fn none() -> Self {
        Self::new(Arc::new(Ownership::alone()), PeerCredentials::default())
    }
}

#[test]
fn a_block_of_another_object_version_or_length_is_not_used() {
    let object = |uri: &str, etag: &str| ObjectVersion {
        uri: uri.into(),
        etag: etag.into(),
        size: 100_000,
        modified_ms: 0,
        block_bytes: 65_536,
        headers: "".into(),
    };
    let origin = |object: &ObjectVersion, index| Origin {
        id: object.block_id(index),
        object: object.uri.clone(),
        etag: object.etag.clone(),
    };
    let (wanted, columns) = (object("s3://b/o", "e"), [file::RAW_COLUMN.to_owned()]);
    let expected = origin(&wanted, 1);
    let asked = WantedColumns {
        content: Content::Block(&wanted, 1),
        origin: &expected,
        columns: &columns,
        ask_owner: false,
    };
    let peers = Peers::none();
    let sent = |origin: Origin, bytes: usize, column: &str| {
        let field = Field::new(column, DataType::UInt8, false);
        let values: ArrayRef = Arc::new(UInt8Array::from(vec![7; bytes]));
        let batch = RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![values]).unwrap();
        let file = Encoded::new(&origin, &batch.into()).unwrap().0.into_iter().collect::<Vec<_>>().concat();
        let read = file::from_bytes(&Buffer::from(file.as_slice()));
        peers.classify("http://other", read, |origin, batch| asked.check(origin, batch)).map(drop)
    };
    assert!(sent(expected.clone(), 34_464, file::RAW_COLUMN).is_ok());
    for (origin, bytes, column) in [
        (origin(&object("s3://b/p", "e"), 1), 34_464, file::RAW_COLUMN),
        (origin(&object("s3://b/o", "f"), 1), 34_464, file::RAW_COLUMN),
        (origin(&wanted, 0), 34_464, file::RAW_COLUMN),
        (Origin { etag: "f".into(), ..expected.clone() }, 34_464, file::RAW_COLUMN),
        (expected.clone(), 34_463, file::RAW_COLUMN),
        (expected.clone(), 65_536, file::RAW_COLUMN),
        (expected.clone(), 34_464, "id"),
    ] {
        let what = format!("{origin:?}, {bytes} bytes of {column}");
        assert_eq!(sent(origin, bytes, column).map_err(|e| e.kind), Err(Kind::Corrupt), "{what}");
    }
    assert_eq!(peers.counters.corrupt.load(Relaxed), 7);
}

#[test]
fn a_damaged_segment_from_another_node_is_counted_and_not_used() {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
    let batch = RecordBatch::try_from_iter([("id", ids)]).unwrap();
    let origin = Origin { id: SegmentId(Digest(7)), object: "s3://b/o".into(), etag: "e".into() };
    let sent =
        Encoded::new(&origin, &batch.clone().into()).unwrap().0.into_iter().collect::<Vec<_>>().concat();
    let mut damaged = sent.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let peers = Peers::none();
    let classify = |bytes: &Vec<u8>, columns: &[String]| {
        let read = file::from_bytes(&Buffer::from(bytes.as_slice()));
        peers.classify("http://other", read, |_, batch| check_columns(batch, columns))
    };
    let corrupt = || peers.counters.corrupt.load(Relaxed);
    let wanted = ["id".to_owned()];
    let (from, read) = classify(&sent, &wanted).unwrap();
    assert_eq!((from, read.columns().unwrap()), (origin, batch));
    assert_eq!(corrupt(), 0);
    assert_eq!(classify(&damaged, &wanted).unwrap_err().kind, Kind::Corrupt);
    assert_eq!(classify(&sent, &["other".to_owned()]).unwrap_err().kind, Kind::Corrupt);
    assert_eq!(corrupt(), 2);
}

/// A node that sends one file, if it has one, whatever it is asked for.
#[derive(Default)]
pub struct FakeNode {
    pub file: Option<Vec<u8>>,
    /// How long its first reply to what it holds takes.
    pub first_reply: Duration,
    pub asked: AtomicU64,
}

type Reply<T> = std::result::Result<Response<T>, Status>;

#[tonic::async_trait]
impl PeerService for FakeNode {
    type FetchStream = BoxStream<'static, std::result::Result<v1::FetchChunk, Status>>;

    async fn fetch(&self, _: Request<v1::FetchRequest>) -> Reply<Self::FetchStream> {
        let file = self.file.clone().ok_or_else(|| Status::not_found("no file"))?;
        let chunk = v1::FetchChunk { file_bytes: file.len() as u64, data: file.into() };
        Ok(Response::new(futures::stream::iter([Ok(chunk)]).boxed()))
    }

    async fn holds(&self, request: Request<v1::HoldsRequest>) -> Reply<v1::HoldsReply> {
        if self.asked.fetch_add(1, Relaxed) == 0 {
            tokio::time::sleep(self.first_reply).await;
        }
        Ok(Response::new(v1::HoldsReply { held: vec![false; request.into_inner().segments.len()] }))
    }

    async fn copy(&self, _: Request<v1::CopyRequest>) -> Reply<v1::CopyReply> {
        Err(Status::unimplemented(""))
    }

    async fn learn(&self, _: Request<v1::Manifest>) -> Reply<v1::LearnReply> {
        Err(Status::unimplemented(""))
    }

    async fn version(&self, _: Request<v1::VersionRequest>) -> Reply<v1::ObjectVersion> {
        Err(Status::unimplemented(""))
    }

    async fn load(&self, _: Request<v1::LoadOfRequest>) -> Reply<v1::NodeLoad> {
        Err(Status::unimplemented(""))
    }
}

impl FakeNode {
    /// Serves until the handle is dropped; where, as a URL.
    pub async fn serve(self) -> (String, AbortOnDropHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let serving = tonic::transport::Server::builder()
            .add_service(PeerServer::new(self))
            .serve_with_incoming(TcpListenerStream::new(listener));
        let serving = tokio::spawn(async move { serving.await.unwrap() });
        (address, AbortOnDropHandle::new(serving))
    }
}

#[tokio::test]
async fn a_node_that_was_silent_is_used_again_as_soon_as_it_answers() {
    let node = FakeNode { first_reply: Duration::from_secs(60), ..Default::default() };
    let (address, _serving) = node.serve().await;
    let peer = Peer::new(&address, PeerCredentials::default()).unwrap();
    let silent = peer.holds(v1::HoldsRequest::default()).await.unwrap_err();
    assert_eq!((silent.kind, peer.is_suspended()), (Kind::Closed, true), "{silent}");
    // It is left alone for about a second, if it does not answer the one question that goes on.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!peer.is_suspended());
    assert!(peer.holds(v1::HoldsRequest::default()).await.is_ok());
}
