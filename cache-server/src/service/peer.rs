//! `forebay.v1.Peer`: what other nodes ask.

use super::Reply;
use crate::auth::caller::Caller;
use crate::node::Node;
use crate::read::block::Block;
use crate::read::copies::SegmentExchange;
use crate::runtime::blocking;
use bytes::Bytes;
use forebay_dataset::stream::Reading;
use forebay_proto::manifest::{Digest, Manifest, SegmentId};
use forebay_proto::v1::peer_server::Peer as Service;
use forebay_proto::{Error, v1};
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::BoxStream;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tonic::{Request, Response, Status};

/// Bytes of a file that travel together.
const CHUNK_BYTES: usize = 1 << 20;

/// Of them, how many are made ready at once: while one is sent, the next is read.
const CHUNKS: usize = 2;

/// Copies that one request takes at once.
const COPIES: usize = 4;

/// Answers the other nodes of the cluster; clients have no business here.
pub struct PeerService(pub Arc<Node>);

impl PeerService {
    fn exchange(&self) -> SegmentExchange {
        SegmentExchange(self.0.cache.clone())
    }
}

#[tonic::async_trait]
impl Service for PeerService {
    type FetchStream = BoxStream<'static, Result<v1::FetchChunk, Status>>;

    async fn holds(&self, request: Request<v1::HoldsRequest>) -> Reply<v1::HoldsReply> {
        let r = request.into_inner();
        let exchange = self.exchange();
        let ids = r.segments.iter().map(|id| Digest::from_bytes(id).map(SegmentId));
        let ids = ids.collect::<forebay_proto::Result<Vec<_>>>()?;
        let held = join_all(ids.into_iter().map(|id| exchange.offers_soon(id, &r.columns))).await;
        Ok(Response::new(v1::HoldsReply { held }))
    }

    async fn fetch(&self, request: Request<v1::FetchRequest>) -> Reply<Self::FetchStream> {
        let r = request.into_inner();
        let id = SegmentId(Digest::from_bytes(&r.segment)?);
        let (file, guard) = match (r.fill, r.block) {
            (None, None) => self.exchange().held_file(id, r.columns).await?,
            (_, Some(block)) => {
                let object = block.object.ok_or_else(|| Error::invalid("a block of no object"))?;
                let object = self.0.objects.named(object).await?;
                let block = Block { object, index: block.index };
                if block.id() != id {
                    return Err(Error::invalid("the block is not what it is said to be").into());
                }
                block.object.check_range(&block.range())?;
                self.exchange().filled_block(block).await?
            }
            (Some(fill), None) => {
                let dataset = self.0.datasets.get(
                    &Caller::everyone(),
                    &fill.manifest,
                    &fill.uri,
                    (None, fill.version_ids),
                )?;
                if dataset.manifest.segment_id(fill.segment)? != id {
                    return Err(Error::invalid("the segment is not where it is said to be").into());
                }
                let reading = Reading::new(dataset.manifest, &dataset.schema, &r.columns)?;
                self.exchange().filled_file(&reading, fill.segment).await?
            }
        };
        let mut file_bytes = file.bytes();
        let chunks = file.0.into_iter().flat_map(|mut piece| {
            std::iter::from_fn(move || {
                let n = piece.len().min(CHUNK_BYTES);
                (n > 0).then(|| piece.split_to(n))
            })
        });
        let node = self.0.clone();
        // The whole file waits once for the node's rate limit. If each chunk did, a busy node would make each
        // chunk queue behind all of its readers, and would hold the file in memory for longer.
        node.hot.throttle(file_bytes).await;
        let sent = futures::stream::iter(chunks).map(move |data| {
            // The first chunk says how long the file is.
            let (node, held, file_bytes) = (node.clone(), guard.clone(), std::mem::take(&mut file_bytes));
            async move {
                // It lies in the file: reading that may wait for the disk, and sending is an async thread's
                // work.
                let copy = move || {
                    let copied = Bytes::copy_from_slice(&data);
                    drop((data, held));
                    copied
                };
                let data = blocking(copy).await?;
                node.peers.counters.bytes_served.fetch_add(data.len() as u64, Relaxed);
                Ok(v1::FetchChunk { data, file_bytes })
            }
        });
        Ok(Response::new(sent.buffered(CHUNKS).boxed()))
    }

    async fn copy(&self, request: Request<v1::CopyRequest>) -> Reply<v1::CopyReply> {
        let v1::CopyRequest { from, items, hot } = request.into_inner();
        let taken = futures::stream::iter(items).map(|item| {
            let (node, exchange, from) = (self.0.clone(), self.exchange(), from.clone());
            async move {
                let allowed = {
                    let node = node.clone();
                    move |object: &str| node.objects.check(object)
                };
                let taken = exchange.take_copy(&from, &item, allowed).await;
                if let (Ok(true), true, Ok(id)) = (&taken, hot, Digest::from_bytes(&item.segment)) {
                    node.hot.detection().took_copy(SegmentId(id));
                }
                taken.unwrap_or_else(|e| {
                    tracing::debug!(error = %e, from, "a copy could not be taken");
                    false
                })
            }
        });
        Ok(Response::new(v1::CopyReply { held: taken.buffered(COPIES).collect().await }))
    }

    async fn learn(&self, request: Request<v1::Manifest>) -> Reply<v1::LearnReply> {
        let (node, wire) = (self.0.clone(), request.into_inner());
        let dataset = blocking(move || node.datasets.checked(Manifest::try_from(wire)?)).await??;
        self.0.datasets.learn(dataset).await?;
        Ok(Response::new(v1::LearnReply {}))
    }

    async fn version(&self, request: Request<v1::VersionRequest>) -> Reply<v1::ObjectVersion> {
        let version = self.0.objects.version_here(&request.into_inner()).await?;
        Ok(Response::new((&*version).into()))
    }

    async fn load(&self, _: Request<v1::LoadOfRequest>) -> Reply<v1::NodeLoad> {
        let free_bytes = self.0.disk.free_bytes();
        Ok(Response::new(v1::NodeLoad { load: self.0.hot.load(), free_bytes }))
    }
}
