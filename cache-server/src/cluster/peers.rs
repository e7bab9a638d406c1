//! Segments from other nodes rather than from the object store.
//!
//! A segment that is missing here is asked for at its owner, which fills it from the object store if no node
//! has it: so a byte leaves the object store once however many nodes serve it. Where this node is the owner
//! itself, nodes that may hold a copy are asked: replicas, earlier owners, leaving nodes. A segment that does
//! not verify itself counts as not received. A node that does not answer is left alone for a while; the
//! object store is always there.

mod client;
mod silence;
#[cfg(test)]
pub(crate) mod tests;

pub use client::{Peer, PeerCredentials};

use crate::cluster::candidates::Candidates;
use crate::cluster::ownership::Ownership;
use crate::disk::file::{self, Header, Origin, Unreadable};
use crate::runtime::blocking;
use forebay_dataset::SegmentBatch;
use forebay_proto::object::ObjectVersion;
use forebay_proto::{Error, Kind, Manifest, Result, v1};
use futures::StreamExt as _;
use futures::future::join_all;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::timeout;

/// How long memory for a segment is waited for: what holds it may itself wait for other nodes.
const MEMORY: Duration = Duration::from_secs(20);

/// Nodes that are asked at once whether they take readers.
const ASKED_AT_ONCE: usize = 64;

/// Asks the other nodes of the cluster, and keeps the connections to them.
#[derive(Debug)]
pub struct Peers {
    pub ownership: Arc<Ownership>,
    /// What this node shows them.
    credentials: PeerCredentials,
    known: Mutex<HashMap<String, Arc<Peer>>>,
    pub counters: PeerCounters,
}

/// Sums since start.
#[derive(Debug, Default)]
pub struct PeerCounters {
    /// Segments that came from other nodes.
    pub fills: AtomicU64,
    /// Bytes of those segments.
    pub bytes: AtomicU64,
    /// Bytes sent to other nodes.
    pub bytes_served: AtomicU64,
    /// Segments that came from other nodes damaged, or were not those that were asked for.
    pub corrupt: AtomicU64,
    /// Columns that had to come from the object store although a node that did not answer may have had them.
    pub missed: AtomicU64,
}

/// Columns of a segment, or a raw block, to fetch from another node.
pub struct WantedColumns<'a> {
    pub content: Content<'a>,
    pub origin: &'a Origin,
    pub columns: &'a [String],
    /// Whether the owner may be asked to fill them. False while this node fills them as the owner: asking
    /// back would deadlock.
    pub ask_owner: bool,
}

/// What the columns are of: how their owner makes them.
#[derive(Clone, Copy)]
pub enum Content<'a> {
    /// A segment of a dataset.
    Segment(&'a Manifest, u32),
    /// A block of an object; each byte is a row.
    Block(&'a ObjectVersion, u64),
}

impl WantedColumns<'_> {
    /// Bytes that their file may have.
    fn limit_bytes(&self) -> Result<u64> {
        let bytes = match self.content {
            Content::Segment(manifest, segment) => {
                manifest.segment(segment)?.decoded_bytes.saturating_mul(4).saturating_add(64 << 20)
            }
            // The header has a URI and a tag in it.
            Content::Block(object, _) => object.block_bytes + (64 << 10),
        };
        Ok(bytes)
    }

    fn check(&self, origin: &Origin, batch: &SegmentBatch) -> Result<()> {
        check(origin == self.origin, "it is of another segment or object version")?;
        check_columns(batch, self.columns)?;
        let rows = match self.content {
            Content::Segment(manifest, segment) => manifest.segment(segment)?.total_rows,
            Content::Block(object, index) => {
                let block = object.block(index);
                block.end - block.start
            }
        };
        check(batch.num_rows() as u64 == rows, "it has another number of rows than it should")
    }

    /// Asks the owner to fill them.
    fn fill(&self, held: &v1::FetchRequest) -> v1::FetchRequest {
        let mut request = held.clone();
        match self.content {
            Content::Segment(manifest, segment) => {
                let (digest, uri) = (manifest.digest().to_bytes().to_vec().into(), manifest.uri().to_owned());
                let version_ids = manifest.has_version_ids();
                request.fill = Some(v1::FillFrom { manifest: digest, segment, uri, version_ids });
            }
            Content::Block(object, index) => {
                request.block = Some(v1::FillBlock { object: Some(object.into()), index });
            }
        }
        request
    }

    /// The dataset that the owner has to know.
    fn manifest(&self) -> Option<&Manifest> {
        match self.content {
            Content::Segment(manifest, _) => Some(manifest),
            Content::Block(..) => None,
        }
    }
}

impl Peers {
    /// None is connected to yet; they are shown these credentials.
    pub fn new(ownership: Arc<Ownership>, credentials: PeerCredentials) -> Self {
        Self { ownership, credentials, known: Mutex::default(), counters: PeerCounters::default() }
    }

    /// The other nodes of the topology that answer, as far as is known, with their names.
    pub fn others(&self) -> Vec<(String, Arc<Peer>)> {
        let others = self.ownership.others().into_iter();
        let named = others.filter_map(|(name, address)| Some((name, self.peer(&address)?)));
        named.filter(|(_, peer)| !peer.is_suspended()).collect()
    }

    /// Whether a node at one of some addresses says that it takes readers. Each has a moment to say so.
    pub async fn is_any_serving(&self, addresses: &[String]) -> bool {
        let peers: Vec<_> = addresses.iter().filter_map(|address| self.peer(address)).collect();
        let asked = peers.into_iter().map(|peer| async move { peer.is_serving().await });
        futures::stream::iter(asked).buffer_unordered(ASKED_AT_ONCE).any(std::future::ready).await
    }

    /// The node at an address; `None` if it is not an address.
    pub fn peer(&self, address: &str) -> Option<Arc<Peer>> {
        let mut known = self.known.lock();
        if let Some(peer) = known.get(address) {
            return Some(peer.clone());
        }
        let peer = Arc::new(Peer::new(address, self.credentials.clone())?);
        known.retain(|address, _| self.ownership.is_node(address));
        known.insert(address.to_owned(), peer.clone());
        Some(peer)
    }

    /// The columns from another node, and memory for them from `hold`; `None`: the object store has to give
    /// them. `Retry` when the owner lives but could not get them from the object store, `Full` when memory
    /// for them is short here: then other nodes need not try.
    pub async fn fetch<M, F: Future<Output = M>>(
        &self,
        wanted: &WantedColumns<'_>,
        hold: impl Fn(u64) -> F,
    ) -> Result<Option<(SegmentBatch, M)>> {
        let Candidates { mut owner, mut holders } =
            self.ownership.candidates(wanted.origin.id, &wanted.origin.object);
        if !wanted.ask_owner {
            holders.extend(owner.take());
        }
        let request = v1::FetchRequest {
            segment: wanted.origin.id.0.to_bytes().to_vec().into(),
            columns: wanted.columns.to_vec(),
            ..Default::default()
        };
        let limit_bytes = wanted.limit_bytes()?;
        let right = |origin: &Origin, batch: &SegmentBatch| wanted.check(origin, batch);
        let receive = async |from: &Arc<Peer>, request| {
            let received = self.receive(from, request, limit_bytes, &hold, right).await;
            received.map(|(_, batch, memory)| (batch, memory))
        };
        let owner = owner.and_then(|address| self.peer(&address));
        let candidates: Vec<Arc<Peer>> =
            holders.iter().filter_map(|address| self.peer(address)).chain(owner.clone()).collect();
        let is_any_silent = || candidates.iter().any(|peer| peer.is_suspended());
        let mut missed = is_any_silent();
        if let Some(owner) = owner.filter(|o| !o.is_suspended()) {
            let filled = wanted.fill(&request);
            let mut received = receive(&owner, filled.clone()).await;
            // It may not know the dataset version yet.
            if received.as_ref().is_err_and(|e| e.kind == Kind::NotFound)
                && let Some(manifest) = wanted.manifest()
                && owner.learn(manifest).await.is_ok()
            {
                received = receive(&owner, filled).await;
            }
            match received {
                Ok(columns) => return Ok(Some(columns)),
                Err(e) if matches!(e.kind, Kind::Retry | Kind::Full | Kind::Changed) => return Err(e),
                Err(e) => {
                    tracing::debug!(error = %e, owner = owner.address(), "a segment did not come from its owner");
                    missed |= e.kind == Kind::Closed;
                }
            }
        }
        let holding = self.holding(&holders, &request).await;
        missed |= is_any_silent();
        for holder in holding {
            match receive(&holder, request.clone()).await {
                Ok(columns) => return Ok(Some(columns)),
                // Another's copy would find no more of it.
                Err(e) if e.kind == Kind::Full => break,
                Err(e) => {
                    tracing::debug!(error = %e, node = holder.address(), "a copy did not come");
                    missed |= e.kind == Kind::Closed;
                }
            }
        }
        self.counters.missed.fetch_add(missed.into(), Relaxed);
        Ok(None)
    }

    /// The version of an object as the node knows it that keeps it for the cluster; `None` if that is this
    /// node, or none that answers.
    pub async fn version(&self, request: v1::VersionRequest) -> Result<Option<ObjectVersion>> {
        let uri = request.uri.clone();
        let owner = self.ownership.candidates(ObjectVersion::name_id(&uri), &uri).owner;
        let owner = owner.and_then(|address| self.peer(&address)).filter(|owner| !owner.is_suspended());
        let Some(owner) = owner else { return Ok(None) };
        match owner.version(request).await {
            Ok(told) => {
                let version = ObjectVersion::try_from(told)?;
                check(*version.uri == *uri, "it is of another object").map(|()| Some(version))
            }
            // That node is gone, or does not know the call.
            Err(e) if matches!(e.kind, Kind::Closed | Kind::Invalid) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The nodes at some addresses that say they hold the columns of a request.
    async fn holding(&self, addresses: &[String], request: &v1::FetchRequest) -> Vec<Arc<Peer>> {
        let ask = |address: &String| {
            let peer = self.peer(address).filter(|p| !p.is_suspended());
            let (segments, columns) = (vec![request.segment.clone()], request.columns.clone());
            async move {
                let peer = peer?;
                let held = peer.holds(v1::HoldsRequest { segments, columns }).await.ok()?;
                (held == [true]).then_some(peer)
            }
        };
        join_all(addresses.iter().map(ask)).await.into_iter().flatten().collect()
    }

    /// A copy of one file of a segment that another node offers, its origin, and memory for it from `hold`.
    /// `Denied` unless it is a node of this cluster.
    pub async fn copy<M, F: Future<Output = M>>(
        &self,
        from: &str,
        item: &v1::CopyItem,
        hold: impl Fn(u64) -> F,
    ) -> Result<(Origin, SegmentBatch, M)> {
        let refused = || Error::denied(format!("`{from}` is no node of this cluster"));
        let peer = if self.ownership.is_node(from) { self.peer(from) } else { None }.ok_or_else(refused)?;
        let (segment, columns) = (item.segment.clone(), item.columns.clone());
        let request = v1::FetchRequest { segment, columns, ..Default::default() };
        let right = |origin: &Origin, batch: &SegmentBatch| {
            check(origin.id.0.to_bytes()[..] == item.segment[..], "it is of another segment")?;
            check_columns(batch, &item.columns)
        };
        // The offer says the bytes on the disk: the file and a block or two.
        self.receive(&peer, request, item.bytes, &hold, right).await
    }

    /// A segment file from a node, if it verifies and is `right`.
    async fn receive<M, F: Future<Output = M>>(
        &self,
        peer: &Arc<Peer>,
        request: v1::FetchRequest,
        limit_bytes: u64,
        hold: &impl Fn(u64) -> F,
        right: impl Fn(&Origin, &SegmentBatch) -> Result<()>,
    ) -> Result<(Origin, SegmentBatch, M)> {
        // Until the node sends, nothing is held here: two nodes that fill for each other would else wait for
        // each other's memory.
        let (file_bytes, chunks) = peer.fetch(request, limit_bytes).await?;
        let full = |_| {
            let (from, s) = (peer.address(), MEMORY.as_secs());
            Error::full(format!("no memory for a segment from {from} within {s} s: raise --memory-bytes"))
        };
        let memory = timeout(MEMORY, hold(file_bytes)).await.map_err(full)?;
        let bytes = peer.read(chunks).await?;
        let received = bytes.len() as u64;
        // Every byte is hashed: not for an async thread.
        let read = blocking(move || file::from_bytes(&bytes)).await?;
        let (origin, batch) = self.classify(peer.address(), read, right)?;
        self.counters.fills.fetch_add(1, Relaxed);
        self.counters.bytes.fetch_add(received, Relaxed);
        Ok((origin, batch, memory))
    }

    /// A segment from a node, if it is sound and `right`. If not, that is counted and logged: the node's disk
    /// or memory, or the network, may be at fault.
    fn classify(
        &self,
        node: &str,
        read: std::result::Result<(Header, SegmentBatch), Unreadable>,
        right: impl Fn(&Origin, &SegmentBatch) -> Result<()>,
    ) -> Result<(Origin, SegmentBatch)> {
        let damaged = |e| Error::corrupt(format!("a segment from another node: {e}"));
        let sound = read.map_err(damaged).and_then(|(header, batch)| {
            let origin = header.origin()?;
            right(&origin, &batch)?;
            Ok((origin, batch))
        });
        sound.inspect_err(|e| {
            self.counters.corrupt.fetch_add(1, Relaxed);
            tracing::warn!(node, error = %e, "another node sent a damaged segment: it is not used");
        })
    }
}

fn check(holds: bool, why: &str) -> Result<()> {
    match holds {
        true => Ok(()),
        false => Err(Error::corrupt(format!("a segment from another node: {why}"))),
    }
}

fn check_columns(batch: &SegmentBatch, columns: &[String]) -> Result<()> {
    let has = |c: &String| batch.has(c);
    check(batch.schema().fields().len() == columns.len() && columns.iter().all(has), "it has other columns")
}
