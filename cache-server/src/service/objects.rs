//! `forebay.v1.Objects`: any object, byte for byte.

use crate::node::Node;
use crate::objects::{MissingAge, ObjectPiece, ObjectStream, Toll};
use crate::read::block::{self, Block};
use crate::read::block_reader::BlockReader;
use crate::service::Reply;
use crate::service::fetch_limit::toll;
use crate::service::gate::{GatePermit, draining};
use crate::service::guard::{caller, may_use, may_use_object};
use crate::service::meter::StreamMeter;
use crate::service::stalls::{MessageWatch, StreamOrigin, StreamWatch};
use forebay_dataset::ready::drop_aside;
use forebay_proto::hash::xxh3_64;
use forebay_proto::object::ObjectVersion;
use forebay_proto::v1::objects_server::Objects as Service;
use forebay_proto::{Error, Result, v1};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// Blocks that `Fill` fills at once; the source has limits of its own.
const FILL_CONCURRENCY: usize = 8;

/// Numbers of blocks in a request at most.
const BLOCKS_MAX: usize = 1 << 16;

/// Answers what clients ask of single objects.
pub struct ObjectService {
    pub node: Arc<Node>,
    /// Ends fills.
    pub stop: CancellationToken,
}

#[tonic::async_trait]
impl Service for ObjectService {
    type ReadStream = BoxStream<'static, std::result::Result<v1::ObjectBytes, Status>>;
    type FillStream = BoxStream<'static, std::result::Result<v1::FillObjectProgress, Status>>;

    async fn head(&self, request: Request<v1::HeadObjectRequest>) -> Reply<v1::ObjectVersion> {
        let (who, uri) = (caller(request.extensions())?, request.into_inner().uri);
        may_use_object(&who, &uri).await?;
        let version = self.node.objects.version(&uri, MissingAge::Now).await?;
        Ok(Response::new((&*version).into()))
    }

    async fn read(&self, request: Request<v1::ReadObjectRequest>) -> Reply<Self::ReadStream> {
        let who = caller(request.extensions())?;
        let permit = self.node.gate.enter()?.limited(who.limiter())?;
        let origin = request.extensions().get::<StreamOrigin>().cloned().unwrap_or_default();
        let v1::ReadObjectRequest { object, ranges } = request.into_inner();
        let object = named(object)?;
        may_use_object(&who, &object.uri).await?;
        let version = self.node.objects.named_here(object).await?;
        let ranges: Vec<Range<u64>> = ranges.iter().map(|range| range.start..range.end).collect();
        let (hot, events) = (self.node.hot.clone(), self.node.events.clone());
        let meter = StreamMeter::of_object(hot, events, version.clone()).limited(who.limiter());
        let pieces = self.node.stalls.looking(self.node.objects.read(version, ranges)).await?;
        let pieces = pieces.paying(toll(who.limiter()));
        let watch = self.node.stalls.watch(origin);
        let held = watch.hold();
        let sending = Sending { node: self.node.clone(), pieces, meter, permit, held, _watch: watch };
        let sent = stream::unfold(Some(sending), |sending| async move {
            let mut sending = sending?;
            let next = sending.next().await.transpose()?;
            let rest = next.is_ok().then_some(sending);
            Some((next.map_err(Status::from), rest))
        });
        Ok(Response::new(sent.boxed()))
    }

    async fn fill(&self, request: Request<v1::FillObjectRequest>) -> Reply<Self::FillStream> {
        let who = caller(request.extensions())?;
        let v1::FillObjectRequest { object, blocks, held_only } = request.into_inner();
        let object = named(object)?;
        may_use_object(&who, &object.uri).await?;
        let object = self.node.objects.named_here(object).await?;
        if blocks.len() > BLOCKS_MAX || blocks.iter().any(|block| u64::from(*block) >= object.blocks()) {
            let why = format!("{}: {BLOCKS_MAX} blocks at once at most, each within the object", object.uri);
            return Err(Error::invalid(why).into());
        }
        let (sender, progress) = mpsc::channel(4);
        let (node, stop) = (self.node.clone(), self.stop.clone());
        let toll = toll(who.limiter());
        tokio::spawn(async move {
            tokio::select! {
                done = fill(node, object, (blocks, held_only), toll, sender.clone()) => if let Err(e) = done {
                    sender.send(Err(e.into())).await.ok();
                },
                () = stop.cancelled() => {
                    sender.send(Err(Error::retry("this node is shutting down").into())).await.ok();
                }
                () = sender.closed() => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(progress).boxed()))
    }

    async fn list(&self, request: Request<v1::ListObjectsRequest>) -> Reply<v1::ListObjectsReply> {
        let (who, request) = (caller(request.extensions())?, request.into_inner());
        may_use(&who, &request.uri).await?;
        Ok(Response::new(self.node.objects.list(&request).await?))
    }
}

fn named(object: Option<v1::ObjectVersion>) -> Result<v1::ObjectVersion> {
    object.ok_or_else(|| Error::invalid("no object is named"))
}

/// A stream that is being sent.
struct Sending {
    node: Arc<Node>,
    pieces: ObjectStream,
    meter: StreamMeter,
    permit: GatePermit,
    held: MessageWatch,
    _watch: StreamWatch,
}

impl Sending {
    async fn next(&mut self) -> Result<Option<v1::ObjectBytes>> {
        self.held.moved();
        let piece = tokio::select! {
            biased;
            () = self.permit.end.cancelled() => return Err(draining()),
            piece = self.pieces.next() => piece,
        };
        let piece = self.node.objects.noting_change(&self.pieces.version, piece).await?;
        let Some(piece) = piece else { return Ok(None) };
        self.meter.send_piece(&piece).await;
        let ObjectPiece { offset, bytes, .. } = piece;
        let hash = xxh3_64(&bytes);
        Ok(Some(v1::ObjectBytes { offset, data: bytes, hash }))
    }
}

/// Fills blocks, unless only those that are held are to be counted, with a report before the first and after
/// each. The last report says how many are held then.
async fn fill(
    node: Arc<Node>,
    object: Arc<ObjectVersion>,
    (blocks, held_only): (Vec<u32>, bool),
    toll: Option<Toll>,
    sender: mpsc::Sender<std::result::Result<v1::FillObjectProgress, Status>>,
) -> Result<()> {
    let gone = |_| Error::closed("the caller has gone");
    let block = |index: u32| Block { object: object.clone(), index: index.into() };
    let mut progress = with_disks(&node, v1::FillObjectProgress::default());
    sender.send(Ok(progress)).await.map_err(gone)?;
    let wanted = if held_only { Vec::new() } else { blocks.clone() };
    let mut filled = stream::iter(wanted)
        .map(|index| fill_one(node.clone(), block(index), toll.clone()))
        .buffer_unordered(FILL_CONCURRENCY);
    let is_held = |block: &Block| node.disk.holds(block.id(), &block::columns());
    while let Some(one) = filled.next().await {
        let (block, fetched) = one?;
        progress.blocks_read += 1;
        progress.s3_bytes += fetched;
        if is_held(&block) {
            progress.blocks_held += 1;
            progress.bytes_held += block.bytes();
        }
        sender.send(Ok(progress)).await.map_err(gone)?;
    }
    // One that was read before may have been evicted for a later one.
    let held: Vec<u64> = blocks.into_iter().map(block).filter(is_held).map(|block| block.bytes()).collect();
    (progress.blocks_held, progress.bytes_held) = (held.len() as u64, held.iter().sum());
    sender.send(Ok(with_disks(&node, progress))).await.map_err(gone)
}

/// A report that also says how the node's disks are now.
fn with_disks(node: &Node, progress: v1::FillObjectProgress) -> v1::FillObjectProgress {
    let evictions = node.disk.counters().evictions.load(Ordering::Relaxed);
    v1::FillObjectProgress { dirs_full: Some(node.disk.dirs_full()), evictions: Some(evictions), ..progress }
}

/// Has a block filled; it, and the bytes that were fetched for that.
async fn fill_one(node: Arc<Node>, block: Block, toll: Option<Toll>) -> Result<(Block, u64)> {
    if let Some(toll) = toll.filter(|_| !node.cache.holds_block(&block)) {
        toll(block.bytes()).await;
    }
    let mut reader = BlockReader::begin(&node.cache, block.clone(), 0..block.bytes())?;
    drop_aside([reader.whole().await?]);
    Ok((block, reader.fetched_bytes()))
}
