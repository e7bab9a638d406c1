//! The bytes of a range, through any failure.
//!
//! The range is divided into stretches, consecutive blocks of one node. Some are read at once, each by a task
//! that hands its bytes on in order. A stretch that breaks goes on where it did: at the same node, at the
//! next in rank, or from the object store, as the policy says. Who reads all of an object learns at the end
//! whether it fits the checksum that the object store keeps of it, if it keeps one of the whole.

use super::context::Context;
use crate::direct::Direct;
use crate::node::Node;
use crate::routing::policy::{Failure, History, Next, Situation, SourceKind};
use crate::routing::silence::owed;
use bytes::Bytes;
use forebay_dataset::Urgency;
use forebay_dataset::source::WholeCheck;
use forebay_proto::hash::xxh3_64;
use forebay_proto::object::{BlockPart, ObjectVersion};
use forebay_proto::{Error, Result, v1};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

/// Stretches that are read at once.
const AT_ONCE: usize = 8;

/// Pieces of a stretch that wait for those before it.
const PIECES: usize = 8;

/// Blocks whose nodes are chosen at once.
const ROUTED: usize = 64;

/// The bytes of a range in order.
pub type ByteStream = BoxStream<'static, Result<Bytes>>;

/// Bytes that come from one place.
struct Stretch {
    context: Arc<Context>,
    version: Arc<ObjectVersion>,
    /// Those that are still to come.
    rest: Range<u64>,
    /// `None`: from the object store.
    node: Option<Node>,
    history: History,
}

/// See [`super::Objects::read`].
pub(super) fn stream(context: Arc<Context>, version: Arc<ObjectVersion>, range: Range<u64>) -> ByteStream {
    let check = (range == (0..version.size)).then(|| WholeCheck::of(&version)).flatten();
    let uri = version.uri.clone();
    let (of, begun) = (context, version);
    let ready = async move {
        if let Some(cluster) = &of.cluster {
            cluster.ready().await;
        }
        of
    };
    let all = stream::once(ready).flat_map(move |context| {
        let stretches = divide(context, begun.clone(), range.clone());
        let tasks = stretches.map_ok(|stretch| {
            let (sender, pieces) = mpsc::channel(PIECES);
            let task = AbortOnDropHandle::new(tokio::spawn(stretch.run(sender)));
            stream::unfold((pieces, task), |(mut pieces, task)| async move {
                let piece = pieces.recv().await?;
                Some((piece, (pieces, task)))
            })
        });
        tasks.map(std::future::ready).buffered(AT_ONCE).try_flatten()
    });
    let all = match check {
        Some(check) => checked(all.boxed(), check, uri),
        None => all.boxed(),
    };
    // The first error is the last item.
    all.scan(false, |has_failed, item| {
        let item = (!*has_failed).then_some(item);
        *has_failed |= item.as_ref().is_some_and(Result::is_err);
        std::future::ready(item)
    })
    .boxed()
}

/// The same bytes, and an error behind the last of them if they do not fit.
fn checked(all: ByteStream, mut check: WholeCheck, uri: Arc<str>) -> ByteStream {
    let ended = move |item: Option<Result<Bytes>>| {
        if let Some(Ok(bytes)) = &item {
            check.add(bytes);
        }
        std::future::ready(item.or_else(|| check.end(&uri).err().map(Err)))
    };
    all.map(Some).chain(stream::once(std::future::ready(None))).filter_map(ended).boxed()
}

/// The stretches, whose nodes are chosen when it is their turn.
fn divide(
    context: Arc<Context>,
    version: Arc<ObjectVersion>,
    range: Range<u64>,
) -> impl futures::Stream<Item = Result<Stretch>> + Send {
    let mut parts = version.parts(range);
    let some = move || -> Option<Vec<Result<Stretch>>> {
        let some: Vec<BlockPart> = parts.by_ref().take(ROUTED).collect();
        if some.is_empty() {
            return None;
        }
        match route(&context, &version, &some) {
            Ok(stretches) => Some(stretches.into_iter().map(Ok).collect()),
            Err(e) => Some(vec![Err(e)]),
        }
    };
    stream::iter(std::iter::from_fn(some)).flat_map(stream::iter)
}

/// Parts put together as far as they follow each other and have one node.
fn route(context: &Arc<Context>, version: &Arc<ObjectVersion>, parts: &[BlockPart]) -> Result<Vec<Stretch>> {
    let blocks: Vec<u64> = parts.iter().map(|part| part.index).collect();
    let nodes = match &context.cluster {
        None => vec![None; blocks.len()],
        Some(cluster) => cluster.object_nodes(version, &blocks)?.into_iter().map(Some).collect(),
    };
    let mut all: Vec<Stretch> = Vec::new();
    for (part, node) in parts.iter().zip(nodes) {
        let first = version.block(part.index).start;
        let range = first + part.bytes.start..first + part.bytes.end;
        match all.last_mut() {
            // Without a cache each block is a request of its own.
            Some(last) if node.is_some() && last.node == node && last.rest.end == range.start => {
                last.rest.end = range.end;
            }
            _ => all.push(Stretch {
                context: context.clone(),
                version: version.clone(),
                rest: range,
                node,
                history: History::default(),
            }),
        }
    }
    Ok(all)
}

impl Stretch {
    /// Brings all bytes. Ends early when nobody takes them any more.
    async fn run(mut self, sender: mpsc::Sender<Result<Bytes>>) {
        while !self.rest.is_empty() && !sender.is_closed() {
            let Err(failure) = self.attempt(&sender).await else { continue };
            if let Err(e) = self.recover(failure).await {
                sender.send(Err(e)).await.ok();
                return;
            }
        }
    }

    /// One stream, from the first byte that is missing on.
    async fn attempt(&mut self, sender: &mpsc::Sender<Result<Bytes>>) -> Result<(), Failure> {
        let Some(node) = self.node.clone() else { return self.read_direct(sender).await };
        let range = v1::ByteRange { start: self.rest.start, end: self.rest.end };
        let request = v1::ReadObjectRequest { object: Some((&*self.version).into()), ranges: vec![range] };
        let patience = self.context.policy.patience;
        let open = async { node.reply(node.objects().read(request)).await };
        // Nothing about an object is told to a node beforehand.
        let mut pieces = owed(Some(&node), patience, open).await.map_err(Failure::of_an_object)?;
        loop {
            let next = async { pieces.message().await.map_err(|status| node.error(status)) };
            let piece = owed(Some(&node), patience, next).await.map_err(Failure::of_an_object)?;
            let Some(piece) = piece else { break };
            self.take(&node, &piece)?;
            if sender.send(Ok(piece.data)).await.is_err() {
                return Ok(());
            }
        }
        match self.rest.is_empty() {
            true => Ok(()),
            false => Err(Error::retry(format!("{} ended a stream too early", node.url())).into()),
        }
    }

    /// Checks a piece that came.
    fn take(&mut self, node: &Node, piece: &v1::ObjectBytes) -> Result<(), Failure> {
        let bytes = piece.data.len() as u64;
        let is_next =
            piece.offset == self.rest.start && bytes > 0 && bytes <= self.rest.end - self.rest.start;
        if !is_next || xxh3_64(&piece.data) != piece.hash {
            let why = format!("{}: bytes were damaged on their way from {}", self.version.uri, node.url());
            return Err(Failure::damaged(Error::corrupt(why)));
        }
        self.rest.start += bytes;
        self.history = History::default();
        if let Some(cluster) = &self.context.cluster {
            cluster.works(node);
        }
        Ok(())
    }

    /// From the object store. While that stands in for a cache, block by block: a node may be back.
    async fn read_direct(&mut self, sender: &mpsc::Sender<Result<Bytes>>) -> Result<(), Failure> {
        let Some(direct) = self.context.access.direct_source().cloned() else {
            return Err(Error::retry("no node of the cache answers").into());
        };
        while !self.rest.is_empty() {
            let block = self.version.block(self.rest.start / self.version.block_bytes);
            let part = self.rest.start..self.rest.end.min(block.end);
            let pieces = fetch(&direct, &self.version, part).await;
            for piece in pieces.map_err(|e| Failure::from(e).of_an_object())? {
                self.rest.start += piece.len() as u64;
                if sender.send(Ok(piece)).await.is_err() {
                    return Ok(());
                }
            }
            self.history = History::default();
            if self.context.cluster.as_ref().is_some_and(crate::routing::Cluster::has_nodes) {
                self.route();
                return Ok(());
            }
        }
        Ok(())
    }

    /// Decides what follows a failure, and waits as long as that takes. The error is the stretch's last.
    async fn recover(&mut self, failure: Failure) -> Result<()> {
        self.history.add(&failure);
        let situation = self.situation(&failure).await;
        let next = self.context.policy.on(&failure, &mut self.history, situation, Instant::now());
        tracing::debug!(error = %failure.error, at = self.rest.start, ?next, "a read of an object failed");
        match next {
            Next::Retry(after) | Next::Reopen(after) => sleep(after).await,
            Next::Divide => {
                let before = self.node.clone();
                self.route();
                if before == self.node {
                    sleep(self.history.backoff.next()).await;
                }
            }
            Next::Fallback => {
                tracing::warn!("no node of the cache answers: reading from the object store until one does");
                self.node = None;
            }
            Next::GiveUp(error) => return Err(error),
        }
        Ok(())
    }

    /// Asks the node that the next block has now.
    fn route(&mut self) {
        let block = self.rest.start / self.version.block_bytes;
        if let Some(cluster) = &self.context.cluster
            && let Ok(nodes) = cluster.object_nodes(&self.version, &[block])
        {
            self.node = nodes.into_iter().next();
        }
        self.history.probed = false;
    }

    async fn situation(&mut self, failure: &Failure) -> Situation {
        let source = match (&self.context.cluster, &self.node) {
            (None, _) => SourceKind::Direct,
            (_, Some(_)) => SourceKind::Owner,
            (_, None) => SourceKind::Fallback,
        };
        let Some(cluster) = &self.context.cluster else { return Situation::of(source) };
        let has_fallback = self.context.access.direct_source().is_some();
        cluster.situation(failure, &mut self.history, (source, self.node.as_ref()), has_fallback).await
    }
}

/// Bytes of a part of one block, from the object store.
async fn fetch(direct: &Direct, version: &ObjectVersion, part: Range<u64>) -> Result<Vec<Bytes>> {
    let mut pieces = Vec::new();
    let objects = direct.source().objects();
    objects.read(version, part, &Urgency::demand(), |piece| pieces.push(piece)).await?;
    Ok(pieces)
}
