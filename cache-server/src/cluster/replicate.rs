//! Replication: the owner of a segment has its replicas take copies.
//!
//! Segments that were just stored are offered to their replicas at once. After each change of the topology
//! all held segments are offered to the nodes that are to hold them now, those read soonest first: so a lost
//! replica is made again, a node that joined gets its share, and a leaving node hands over what it has. The
//! other nodes fetch from this one what they lack, into free room only: a copy pushes nothing out. Copies
//! that they could not take are offered again later.

use crate::cluster::peers::Peers;
use crate::datasets::Datasets;
use crate::disk::DiskCache;
use crate::disk::copies::CopyInfo;
use crate::disk::policy::Forecast;
use crate::read::plans::Plans;
use crate::runtime::blocking;
use forebay_proto::manifest::SegmentId;
use forebay_proto::{Backoff, v1};
use futures::future::join_all;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// After a change of the topology: more may follow at once.
const SETTLE: Duration = Duration::from_millis(500);

/// Before stored segments are offered: more come meanwhile.
const GATHER: Duration = Duration::from_millis(100);

/// Before copies that others could not take are offered again, about: at first, and at most.
const AGAIN: Backoff = Backoff::new(Duration::from_secs(15), Duration::from_secs(600));

/// How long it may take until a node that leaves is not listed any more.
const LISTED: Duration = Duration::from_secs(1);

/// Files offered at once.
const OFFER: usize = 16;

/// What this node's copies are to the others.
#[derive(Clone)]
pub struct Replicator {
    pub peers: Arc<Peers>,
    pub disk: Arc<DiskCache>,
    pub plans: Arc<Plans>,
    pub datasets: Arc<Datasets>,
    /// Tells the segments that are written to disk.
    pub written: broadcast::Sender<SegmentId>,
}

impl Replicator {
    /// Keeps copies where they belong, until it is dropped.
    pub async fn run(self) {
        let (mut topology, mut written) = (self.peers.ownership.topology(), self.written.subscribe());
        let (mut again, mut backoff) = (None, AGAIN);
        let (mut whole, mut placed) = (true, v1::Topology::default());
        loop {
            if whole {
                sleep(SETTLE).await;
                placed = places(&topology.borrow_and_update());
                self.tell_roles(false).await;
                let offered = tokio::select! {
                    biased;
                    done = self.offer_all() => done,
                    // The segments on offer may belong elsewhere now.
                    true = moved(&mut topology, &placed) => continue,
                };
                // Only now: a replica may be evicted, and the owner should have its copy first.
                self.tell_roles(true).await;
                if offered {
                    backoff.reset();
                }
                again = (!offered).then(|| Instant::now() + backoff.next());
            }
            whole = tokio::select! {
                moved = moved(&mut topology, &placed) => match moved {
                    true => true,
                    false => return,
                },
                () = sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => true,
                some = gather(&mut written) => match some {
                    None => true,
                    Some(ids) => tokio::select! {
                        biased;
                        taken = self.offer(move |disk| disk.copies().list_of(ids)) => {
                            if !taken {
                                again = again.or_else(|| Some(Instant::now() + backoff.next()));
                            }
                            false
                        }
                        // All held segments are offered again, these among them.
                        true = moved(&mut topology, &placed) => true,
                    },
                }
            };
        }
    }

    /// Offers all held segments to the nodes that are to hold them; false if some were not taken.
    pub async fn offer_all(&self) -> bool {
        self.offer(|disk| disk.copies().list()).await
    }

    /// Before this node ends: waits until the topology lists it no more, then offers all that it holds.
    pub async fn hand_over(&self) {
        if !self.peers.ownership.has_others() {
            return;
        }
        let mut topology = self.peers.ownership.topology();
        let gone = topology.wait_for(|t| t.nodes.iter().all(|n| n.address != self.peers.ownership.me()));
        if timeout(LISTED, gone).await.is_ok() {
            self.offer_all().await;
        }
    }

    async fn offer(&self, kept: impl FnOnce(&DiskCache) -> Vec<CopyInfo> + Send + 'static) -> bool {
        if !self.peers.ownership.has_others() {
            return true;
        }
        let this = self.clone();
        let Ok(offers) = blocking(move || this.offers(kept(&this.disk))).await else { return true };
        let each = offers.into_iter().map(|(address, files)| self.offer_to(address, files));
        join_all(each).await.into_iter().all(|taken| taken)
    }

    /// What to offer to whom, in order of need.
    fn offers(&self, mut kept: Vec<CopyInfo>) -> BTreeMap<String, Vec<Arc<CopyInfo>>> {
        let ids: Vec<SegmentId> = kept.iter().map(|k| k.id).collect();
        let next = self.plans.next_uses(&ids);
        let segments: Vec<_> = kept.iter_mut().map(|k| (k.id, std::mem::take(&mut k.object))).collect();
        let places = self.peers.ownership.other_holders(&segments);
        let mut order: Vec<_> = next.into_iter().zip(kept).zip(places).collect();
        order.sort_by_key(|((next, _), _)| *next);
        let mut offers: BTreeMap<String, Vec<Arc<CopyInfo>>> = BTreeMap::new();
        for ((_, kept), places) in order {
            let kept = Arc::new(kept);
            places.into_iter().for_each(|n| offers.entry(n.address).or_default().push(kept.clone()));
        }
        offers
    }

    async fn offer_to(&self, address: String, files: Vec<Arc<CopyInfo>>) -> bool {
        let Some(peer) = self.peers.peer(&address) else { return false };
        let (mut taken, offered) = (0, files.len());
        for files in files.chunks(OFFER) {
            let items = files.iter().map(|kept| (&**kept).into()).collect();
            let request = v1::CopyRequest { from: self.peers.ownership.me().to_owned(), items, hot: false };
            match peer.copy(request).await {
                Ok(held) => taken += held.into_iter().filter(|held| *held).count(),
                Err(e) => {
                    tracing::debug!(error = %e, "copies were not taken");
                    return false;
                }
            }
        }
        taken == offered
    }

    /// Says which files are primaries now, and if `demote` which are not any more.
    async fn tell_roles(&self, demote: bool) {
        let this = self.clone();
        let tell = move || {
            this.datasets.balance();
            this.disk.copies().set_roles(demote, |segments| this.peers.ownership.roles(segments));
        };
        blocking(tell).await.ok();
    }
}

/// The segments written since the last time, once there are some. `None`: only a look at the whole disk cache
/// finds them all.
async fn gather(written: &mut broadcast::Receiver<SegmentId>) -> Option<HashSet<SegmentId>> {
    let mut ids = match written.recv().await {
        Ok(id) => HashSet::from([id]),
        Err(RecvError::Lagged(_)) => return None,
        Err(RecvError::Closed) => std::future::pending().await,
    };
    sleep(GATHER).await;
    loop {
        match written.try_recv() {
            Ok(id) => drop(ids.insert(id)),
            Err(TryRecvError::Lagged(_)) => return None,
            Err(TryRecvError::Empty | TryRecvError::Closed) => return Some(ids),
        }
    }
}

/// Waits until copies belong elsewhere than they did; false when the topology will not change any more.
async fn moved(topology: &mut watch::Receiver<v1::Topology>, placed: &v1::Topology) -> bool {
    topology.wait_for(|t| places(t) != *placed).await.is_ok()
}

/// What of a topology says where copies belong for good, and whether they may be missing there.
fn places(topology: &v1::Topology) -> v1::Topology {
    let v1::Topology { nodes, replicas, datasets, starts, .. } = topology.clone();
    v1::Topology { nodes, replicas, datasets, starts, ..Default::default() }
}
