//! Copies the hottest segments to other nodes, tells readers where, and drops copies that are not read any
//! more.

use super::HotSegments;
use super::load::ProcessorMeter;
use super::tuning::{BUSY_LOAD, COOL, COPY, MEASURE_EVERY, SATURATED};
use crate::cluster::membership::Membership;
use crate::cluster::peers::{Peer, Peers};
use crate::disk::DiskCache;
use crate::disk::copies::CopyInfo;
use crate::disk::policy::Role;
use crate::runtime::blocking;
use forebay_dataset::SegmentReader;
use forebay_proto::manifest::SegmentId;
use forebay_proto::v1;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

/// The parts of a node that this uses.
pub struct Publisher {
    pub hot: Arc<HotSegments>,
    pub source: SegmentReader,
    pub disk: Arc<DiskCache>,
    pub membership: Arc<Membership>,
    pub peers: Arc<Peers>,
}

/// A node that takes copies.
struct Taker {
    name: String,
    peer: Arc<Peer>,
    load: f64,
    free_bytes: u64,
    wanted: Vec<WantedCopy>,
}

/// A file of a segment, of which a node is to take a copy.
struct WantedCopy {
    file: CopyInfo,
    /// How many replicas its segment has.
    replicas: usize,
}

impl Publisher {
    /// Measures, spreads readers and takes them back, until it is dropped.
    pub async fn run(self) {
        let mut ticks = interval(MEASURE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut at, mut processor) = (Instant::now(), ProcessorMeter::new());
        let (mut saturated, mut cool, mut fetched) = (0, 0, 0);
        loop {
            ticks.tick().await;
            let elapsed = at.elapsed().max(Duration::from_millis(1));
            at = Instant::now();
            // A node that fills is busy with that: further copies would not help.
            let s3_bytes = self.source.counters().s3_bytes.load(Relaxed);
            let fills = std::mem::replace(&mut fetched, s3_bytes) != s3_bytes;
            let busy = processor.share(elapsed);
            self.hot.detection().fade();
            let load = self.hot.load.measure(elapsed, if fills { 0.0 } else { busy });
            self.drop_stale().await;
            if !self.membership.can_publish() {
                continue;
            }
            saturated = if load >= SATURATED.0 { saturated + 1 } else { 0 };
            let published = self.hot.detection().published();
            // Without the lock: every message that is sent waits for it.
            let roles = self.peers.ownership.roles(&published);
            if self.hot.detection().withdraw_disowned(published.into_iter().zip(roles)) {
                self.publish();
            }
            let is_hot = !self.hot.detection().published().is_empty();
            // As if it served its hot segments alone.
            let alone = load * self.hot.detection().share_alone();
            cool = if is_hot && alone < COOL.0 { cool + 1 } else { 0 };
            if saturated >= SATURATED.1 && self.peers.ownership.has_others() {
                saturated = 0;
                self.spread().await;
            } else if cool >= COOL.1 {
                cool = 0;
                self.hot.detection().withdraw();
                self.publish();
                tracing::info!("no segment is hot any more");
            }
        }
    }

    fn publish(&self) {
        self.membership.publish_hot(self.hot.detection().to_wire());
    }

    /// Gives one more node each of the hottest segments, and tells readers.
    async fn spread(&self) {
        let (mut takers, ownership) = (self.takers().await, &self.peers.ownership);
        let mut news = 0;
        let hottest = self.hot.detection().hottest();
        for (id, copies) in hottest {
            let disk = self.disk.clone();
            let Ok(files) = blocking(move || disk.copies().list_of([id])).await else { return };
            let Some(object) = files.first().map(|file| file.object.clone()) else { continue };
            if ownership.role(id) != Role::Primary {
                continue;
            }
            let replicas = ownership.other_holders(&[(id, object.clone())]).concat();
            // Replicas hold it already: readers need only be told.
            if copies.is_none() && !replicas.is_empty() {
                news += usize::from(self.hot.detection().publish(id, &object, replicas.len(), None));
                continue;
            }
            let copies = copies.unwrap_or_default();
            let holds =
                |name: &String| copies.contains(name) || replicas.iter().any(|node| node.name == *name);
            let bytes: u64 = files.iter().map(|file| file.bytes).sum();
            let fits = |taker: &&mut Taker| taker.free_bytes >= bytes && !holds(&taker.name);
            if let Some(taker) = takers.iter_mut().find(fits) {
                taker.free_bytes -= bytes;
                let replicas = replicas.len();
                taker.wanted.extend(files.into_iter().map(|file| WantedCopy { file, replicas }));
            }
        }
        for taker in takers.into_iter().filter(|taker| !taker.wanted.is_empty()) {
            news += self.copy_to(taker).await;
        }
        if news > 0 {
            self.publish();
            tracing::info!(
                segments = news,
                "saturated: readers of the hottest segments are spread over more nodes"
            );
        }
    }

    /// The other nodes that are not busy, the least loaded first.
    async fn takers(&self) -> Vec<Taker> {
        let mut takers = Vec::new();
        for (name, peer) in self.peers.others() {
            if let Ok(v1::NodeLoad { load, free_bytes }) = peer.load().await
                && load < BUSY_LOAD
            {
                takers.push(Taker { name, peer, load, free_bytes, wanted: Vec::new() });
            }
        }
        takers.sort_by(|a, b| a.load.total_cmp(&b.load));
        takers
    }

    /// Has a node take its copies; returns how many segments have news for readers.
    async fn copy_to(&self, taker: Taker) -> usize {
        let items = taker.wanted.iter().map(|wanted| v1::CopyItem::from(&wanted.file)).collect();
        let from = self.peers.ownership.me().to_owned();
        let request = v1::CopyRequest { from, items, hot: true };
        let held = timeout(COPY, taker.peer.copy(request)).await.ok().and_then(Result::ok);
        let held = taker.wanted.iter().zip(held.unwrap_or_default()).filter(|(_, held)| *held);
        let publish = |WantedCopy { file, replicas }: &WantedCopy| {
            self.hot.detection().publish(file.id, &file.object, *replicas, Some(&taker.name))
        };
        held.filter(|(wanted, _)| publish(wanted)).count()
    }

    async fn drop_stale(&self) {
        let ownership = self.peers.ownership.clone();
        let stale = self.hot.detection().take_stale(|id| ownership.is_hot_here(id));
        if stale.is_empty() {
            return;
        }
        let disk = self.disk.clone();
        let dropped = blocking(move || {
            let files = disk.copies().list_of(stale.iter().copied());
            let is_ours =
                |id: &SegmentId| files.iter().any(|f| f.id == *id && ownership.is_to_hold(*id, &f.object));
            stale.into_iter().filter(|id| !is_ours(id) && disk.copies().remove(*id)).count()
        });
        if let Ok(segments) = dropped.await {
            tracing::info!(segments, "copies that are not read much any more are dropped");
        }
    }
}
