//! Other nodes of the cluster: who holds what, and segments from them rather than from the object store.
//!
//! A segment that is missing here is asked for at its owner, which fills it from the object store if nobody
//! has it: so a byte leaves the object store once however many nodes serve it. Where this node is the owner
//! itself, those are asked that may hold a copy: replicas, earlier owners, nodes that are leaving. What comes
//! from another node verifies itself, or it did not come. A node that does not answer is left alone for a
//! while, and without the others the object store is always there.

mod call;

use crate::disk::file::{self, Header, Origin, Unreadable};
use crate::disk::policy::Role;
use crate::read::budget::{Held, Room};
use arrow::array::RecordBatch;
use call::Peer;
use forebay_dataset::Urgency;
use forebay_dataset::stream::Reading;
use forebay_proto::manifest::SegmentId;
use forebay_proto::ring::{Balance, Copies, Placement};
use forebay_proto::{Kind, Manifest, Result, v1};
use futures::future::join_all;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::sync::watch;

/// Nodes that are asked whether they hold what the object store would have to give: in rank, beside those
/// that leave.
const ASKED: usize = 8;

/// The other nodes.
#[derive(Debug)]
pub struct Peers {
    /// This node's address.
    me: String,
    topology: watch::Receiver<v1::Topology>,
    view: Mutex<(watch::Receiver<v1::Topology>, Arc<View>)>,
    known: Mutex<HashMap<String, Arc<Peer>>>,
    counters: PeerCounters,
}

/// A topology, and the balance of the datasets known here on its nodes.
#[derive(Debug, Default)]
struct View {
    topology: v1::Topology,
    balance: Arc<Balance>,
}

impl View {
    fn placement(&self) -> Placement<'_> {
        Placement::new(&self.topology, &self.balance)
    }

    fn copies(&self, id: SegmentId, object: &str) -> Copies {
        let placement = self.placement();
        placement.copies(id, placement.replicas(object))
    }

    fn node(&self, n: usize) -> &v1::Node {
        &self.topology.nodes[n]
    }

    fn role(&self, copies: &Copies, me: &str) -> Role {
        match copies.order.first().is_none_or(|&owner| self.node(owner).address == me) {
            true => Role::Primary,
            false => Role::Replica,
        }
    }
}

/// Sums since start.
#[derive(Debug, Default)]
pub struct PeerCounters {
    /// Segments that came from other nodes.
    pub fills: AtomicU64,
    /// Their bytes.
    pub bytes: AtomicU64,
    /// Bytes sent to other nodes.
    pub bytes_served: AtomicU64,
    /// Segments that came from other nodes damaged, or were not those that were asked for.
    pub corrupt: AtomicU64,
}

/// Columns of a segment that are missing here.
#[derive(Debug, Clone)]
pub struct Missing<'a> {
    /// The dataset version and its columns.
    pub reading: &'a Reading,
    /// The segment's number in it.
    pub segment: u32,
    /// Which object version it is of.
    pub origin: &'a Origin,
    /// Names of the columns.
    pub columns: &'a [String],
    /// Whether the owner may be asked to fill them. It is not where this node fills them as the owner itself:
    /// what it then waits for must not wait for it.
    pub ask_owner: bool,
    /// Memory for what comes.
    pub room: &'a Arc<Room>,
    /// Whether somebody waits for it.
    pub urgency: &'a Urgency,
}

/// Whom to ask for a segment.
struct Whom {
    /// To fill it; `None`: that is this node's task.
    owner: Option<String>,
    /// For what they hold.
    holders: Vec<String>,
}

impl Peers {
    /// The nodes of a topology besides the one at address `me`.
    pub fn new(me: impl Into<String>, topology: watch::Receiver<v1::Topology>) -> Self {
        let mut seen = topology.clone();
        seen.mark_changed();
        let view = Mutex::new((seen, Arc::default()));
        Self { me: me.into(), topology, view, known: Mutex::default(), counters: PeerCounters::default() }
    }

    /// A cluster of one.
    #[cfg(test)]
    pub fn none() -> Self {
        Self::new("", watch::channel(v1::Topology::default()).1)
    }

    /// Sums since start.
    pub fn counters(&self) -> &PeerCounters {
        &self.counters
    }

    /// The topology, now and whenever it changes.
    pub fn topology(&self) -> watch::Receiver<v1::Topology> {
        self.topology.clone()
    }

    /// Whether there is anybody to ask.
    pub fn has_others(&self) -> bool {
        let topology = self.topology.borrow();
        topology.nodes.iter().chain(&topology.leaving).any(|n| n.address != self.me)
    }

    /// Evens out who owns what of some datasets, all that are known here. To be called when the nodes or the
    /// datasets have changed; until then the first in rank own. Not for an async thread.
    pub fn balance<'m>(&self, datasets: impl IntoIterator<Item = &'m Manifest>) {
        let nodes = self.view().topology.nodes.clone();
        let balance = Arc::new(Balance::of(&nodes, datasets));
        let mut view = self.view.lock();
        if view.1.topology.nodes == nodes {
            view.1 = Arc::new(View { topology: view.1.topology.clone(), balance });
        }
    }

    /// The topology as it is now.
    fn view(&self) -> Arc<View> {
        let mut guard = self.view.lock();
        let (seen, view) = &mut *guard;
        // A topology that nobody can change any more stays as it was.
        if seen.has_changed().unwrap_or(true) {
            let topology = seen.borrow_and_update().clone();
            let same = topology.nodes == view.topology.nodes;
            let balance = if same { view.balance.clone() } else { Arc::default() };
            *view = Arc::new(View { topology, balance });
        }
        view.clone()
    }

    /// What this node's copy of a segment is to the cluster. Where there are no nodes at all, all it has is
    /// primary.
    pub fn role(&self, id: SegmentId, object: &str) -> Role {
        let view = self.view();
        view.role(&view.copies(id, object), &self.me)
    }

    /// The same of several segments, with the URIs of their objects.
    pub fn roles(&self, segments: &[(SegmentId, String)]) -> Vec<Role> {
        let view = self.view();
        let placement = view.placement();
        let copies = |(id, object): &(SegmentId, String)| placement.copies(*id, placement.replicas(object));
        segments.iter().map(|s| view.role(&copies(s), &self.me)).collect()
    }

    /// How many nodes are to hold a segment of an object.
    pub fn replicas(&self, object: &str) -> usize {
        self.view().placement().replicas(object)
    }

    /// Names of the other nodes that are to hold a copy of a segment.
    pub fn replica_names(&self, id: SegmentId, object: &str) -> Vec<String> {
        let view = self.view();
        let copies = view.copies(id, object);
        let nodes = copies.order[..copies.count].iter().map(|&n| view.node(n));
        nodes.filter(|n| n.address != self.me).map(|n| n.name.clone()).collect()
    }

    /// Whether this node is to hold a copy of a segment for good.
    pub fn is_to_hold(&self, id: SegmentId, object: &str) -> bool {
        let view = self.view();
        let copies = view.copies(id, object);
        copies.order[..copies.count].iter().any(|&n| view.node(n).address == self.me)
    }

    /// For each of some segments, with the URIs of their objects, the addresses of the others that are to
    /// hold a copy.
    pub fn places(&self, segments: &[(SegmentId, String)]) -> Vec<Vec<String>> {
        let view = self.view();
        let placement = view.placement();
        let places = |(id, object): &(SegmentId, String)| {
            let copies = placement.copies(*id, placement.replicas(object));
            let others = copies.order[..copies.count].iter().map(|&n| view.node(n).address.clone());
            others.filter(|a| *a != self.me).collect()
        };
        segments.iter().map(places).collect()
    }

    /// Whether readers are told to read this node's copy of a hot segment.
    pub fn is_hot_here(&self, id: SegmentId) -> bool {
        let topology = self.topology.borrow();
        let mine = topology.nodes.iter().find(|n| n.address == self.me).map(|n| &n.name);
        let id = id.0.to_bytes();
        mine.is_some_and(|me| topology.hot.iter().any(|h| h.segment == id[..] && h.nodes.contains(me)))
    }

    /// The other nodes of the topology that answer, as far as is known: name and address.
    pub fn others(&self) -> Vec<(String, Arc<Peer>)> {
        // Not borrowed from the channel: `peer` looks there too, and a change may be waiting in between.
        let view = self.view();
        let others = view.topology.nodes.iter().filter(|n| n.address != self.me);
        let named = others.filter_map(|n| Some((n.name.clone(), self.peer(&n.address)?)));
        named.filter(|(_, peer)| !peer.is_out()).collect()
    }

    /// The node at an address; `None` for what is no address.
    pub fn peer(&self, address: &str) -> Option<Arc<Peer>> {
        let mut known = self.known.lock();
        if let Some(peer) = known.get(address) {
            return Some(peer.clone());
        }
        let peer = Arc::new(Peer::new(address)?);
        known.retain(|address, _| self.is_node(address));
        known.insert(address.to_owned(), peer.clone());
        Some(peer)
    }

    /// The missing columns from another node; `None`: the object store has to give them. `Retry` when the
    /// owner lives but could not get them from the object store, `Full` when it lives but memory for them is
    /// short here: then others need not try.
    pub async fn fetch(&self, missing: Missing<'_>) -> Result<Option<(RecordBatch, Held)>> {
        let Some(mut whom) = self.whom(missing.origin) else { return Ok(None) };
        if !missing.ask_owner {
            whom.holders.extend(whom.owner.take());
        }
        let mut request = v1::FetchRequest {
            segment: missing.origin.id.0.to_bytes().to_vec().into(),
            columns: missing.columns.to_vec(),
            fill: None,
        };
        if let Some(owner) = whom.owner.and_then(|address| self.peer(&address)).filter(|o| !o.is_out()) {
            let manifest = &missing.reading.manifest;
            let fill = v1::FillFrom {
                manifest: manifest.digest().to_bytes().to_vec().into(),
                segment: missing.segment,
                uri: manifest.uri().to_owned(),
            };
            let asked = v1::FetchRequest { fill: Some(fill), ..request.clone() };
            let mut answer = self.take(&owner, &asked, &missing).await;
            if answer.as_ref().is_err_and(|e| e.kind == Kind::NotFound)
                && owner.learn(&missing.reading.manifest).await.is_ok()
            {
                answer = self.take(&owner, &asked, &missing).await;
            }
            match answer {
                Ok(batch) => return Ok(Some(batch)),
                Err(e) if matches!(e.kind, Kind::Retry | Kind::Full) => return Err(e),
                Err(e) => {
                    tracing::debug!(error = %e, owner = owner.address(), "a segment did not come from its owner")
                }
            }
        }
        let ask = |address: &String| {
            let peer = self.peer(address).filter(|p| !p.is_out());
            let request = v1::HoldsRequest {
                segments: vec![request.segment.clone()],
                columns: request.columns.clone(),
            };
            async move {
                let peer = peer?;
                let held = peer.holds(request).await.ok()?;
                (held == [true]).then_some(peer)
            }
        };
        let holders = join_all(whom.holders.iter().map(ask)).await;
        request.fill = None;
        for holder in holders.into_iter().flatten() {
            match self.take(&holder, &request, &missing).await {
                Ok(batch) => return Ok(Some(batch)),
                // Another's copy would find no more of it.
                Err(e) if e.kind == Kind::Full => break,
                Err(e) => tracing::debug!(error = %e, node = holder.address(), "a copy did not come"),
            }
        }
        Ok(None)
    }

    /// A copy of one file of a segment that another node offers, with what it says of its origin and its part
    /// of `room`. `Denied` unless it is a node of this cluster.
    pub async fn copy(
        &self,
        from: &str,
        item: &v1::CopyItem,
        room: &Arc<Room>,
    ) -> Result<(Origin, RecordBatch, Held)> {
        let refused = || forebay_proto::Error::denied(format!("`{from}` is no node of this cluster"));
        let peer = if self.is_node(from) { self.peer(from) } else { None }.ok_or_else(refused)?;
        let request =
            v1::FetchRequest { segment: item.segment.clone(), columns: item.columns.clone(), fill: None };
        let right = |origin: &Origin, batch: &RecordBatch| {
            check(origin.id.0.to_bytes()[..] == item.segment[..], "it is of another segment")?;
            check_columns(batch, &item.columns)
        };
        // What it takes on the disk is the file and a block or two.
        self.receive(&peer, &request, item.bytes, (room, &Urgency::prefetch()), right).await
    }

    fn is_node(&self, address: &str) -> bool {
        let topology = self.topology.borrow();
        topology.nodes.iter().chain(&topology.leaving).any(|n| n.address == address)
    }

    /// Asks a node for what is missing, and looks whether that came.
    async fn take(
        &self,
        peer: &Arc<Peer>,
        request: &v1::FetchRequest,
        missing: &Missing<'_>,
    ) -> Result<(RecordBatch, Held)> {
        let segment = missing.reading.manifest.segment(missing.segment)?;
        let limit_bytes = segment.decoded_bytes.saturating_mul(4).saturating_add(64 << 20);
        let right = |origin: &Origin, batch: &RecordBatch| {
            check(origin == missing.origin, "it is of another segment or object version")?;
            check_columns(batch, missing.columns)?;
            check(
                batch.num_rows() as u64 == segment.total_rows,
                "it has another number of rows than it should",
            )
        };
        let room = (missing.room, missing.urgency);
        let (_, batch, held) = self.receive(peer, request, limit_bytes, room, right).await?;
        Ok((batch, held))
    }

    /// A segment file from a node, if it verifies and is `right`.
    async fn receive(
        &self,
        peer: &Arc<Peer>,
        request: &v1::FetchRequest,
        limit_bytes: u64,
        room: (&Arc<Room>, &Urgency),
        right: impl Fn(&Origin, &RecordBatch) -> Result<()>,
    ) -> Result<(Origin, RecordBatch, Held)> {
        let (bytes, held) = peer.fetch(request.clone(), limit_bytes, room).await?;
        let received = bytes.len() as u64;
        // Every byte is hashed: not for an async thread.
        let read = crate::runtime::blocking(move || file::from_bytes(&bytes)).await?;
        let (origin, batch) = self.judge(peer.address(), read, right)?;
        self.counters.fills.fetch_add(1, Relaxed);
        self.counters.bytes.fetch_add(received, Relaxed);
        Ok((origin, batch, held))
    }

    /// What came from a node, if it is sound and `right`. If not somebody is told: the node's disk or memory,
    /// or the network, may be at fault.
    fn judge(
        &self,
        node: &str,
        read: std::result::Result<(Header, RecordBatch), Unreadable>,
        right: impl Fn(&Origin, &RecordBatch) -> Result<()>,
    ) -> Result<(Origin, RecordBatch)> {
        let damaged = |e| forebay_proto::Error::corrupt(format!("a segment from another node: {e}"));
        let judged = read.map_err(damaged).and_then(|(header, batch)| {
            let origin = header.origin()?;
            right(&origin, &batch)?;
            Ok((origin, batch))
        });
        judged.inspect_err(|e| {
            self.counters.corrupt.fetch_add(1, Relaxed);
            tracing::warn!(node, error = %e, "another node sent a damaged segment: it is not used");
        })
    }

    fn whom(&self, origin: &Origin) -> Option<Whom> {
        let view = self.view();
        let topology = &view.topology;
        let nodes = &topology.nodes;
        let others = || nodes.iter().chain(&topology.leaving).filter(|n| n.address != self.me);
        others().next()?;
        let copies = view.copies(origin.id, &origin.object);
        let address = |n: &usize| nodes[*n].address.clone();
        let owner = copies.order.first().map(address).filter(|a| *a != self.me);
        let mut holders: Vec<String> = copies.hot.iter().map(address).collect();
        holders.extend(topology.leaving.iter().map(|n| n.address.clone()));
        holders.extend(copies.order.iter().take(ASKED.max(copies.count)).map(address));
        holders.retain(|a| *a != self.me && Some(a) != owner.as_ref());
        Some(Whom { owner, holders })
    }
}

fn check(holds: bool, why: &str) -> Result<()> {
    match holds {
        true => Ok(()),
        false => Err(forebay_proto::Error::corrupt(format!("a segment from another node: {why}"))),
    }
}

fn check_columns(batch: &RecordBatch, columns: &[String]) -> Result<()> {
    let has = |c: &String| batch.column_by_name(c).is_some();
    check(batch.num_columns() == columns.len() && columns.iter().all(has), "it has other columns")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::file::Encoded;
    use arrow::array::{ArrayRef, Int64Array};
    use arrow::buffer::Buffer;
    use forebay_proto::manifest::Digest;

    #[test]
    fn a_node_that_leaves_owns_nothing_also_where_only_one_other_is_left() {
        let node = |name: &str| v1::Node {
            name: name.into(),
            address: format!("http://{name}"),
            weight: 1.0,
            ..Default::default()
        };
        let role = |nodes| {
            let topology = v1::Topology { nodes, ..Default::default() };
            Peers::new("http://a", watch::channel(topology).1).role(SegmentId(Digest(7)), "s3://b/o")
        };
        assert_eq!(role(vec![node("a")]), Role::Primary);
        assert_eq!(role(vec![node("b")]), Role::Replica);
        assert_eq!(role(vec![]), Role::Primary);
    }

    #[test]
    fn a_damaged_segment_from_another_node_is_counted_and_not_used() {
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
        let batch = RecordBatch::try_from_iter([("id", ids)]).unwrap();
        let origin = Origin { id: SegmentId(Digest(7)), object: "s3://b/o".into(), etag: "e".into() };
        let sent = Encoded::new(&origin, &batch).unwrap().into_pieces().collect::<Vec<_>>().concat();
        let mut damaged = sent.clone();
        *damaged.last_mut().unwrap() ^= 1;
        let peers = Peers::none();
        let judge = |bytes: &Vec<u8>, columns: &[String]| {
            let read = file::from_bytes(&Buffer::from(bytes.as_slice()));
            peers.judge("http://other", read, |_, batch| check_columns(batch, columns))
        };
        let corrupt = || peers.counters().corrupt.load(Relaxed);
        let wanted = ["id".to_owned()];
        assert_eq!(judge(&sent, &wanted).unwrap(), (origin, batch));
        assert_eq!(corrupt(), 0);
        assert_eq!(judge(&damaged, &wanted).unwrap_err().kind, Kind::Corrupt);
        assert_eq!(judge(&sent, &["other".to_owned()]).unwrap_err().kind, Kind::Corrupt);
        assert_eq!(corrupt(), 2);
    }
}
