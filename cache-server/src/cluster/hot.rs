//! Heat: what is read so much that this node cannot serve it all, and what to do about that.
//!
//! Once a second the node looks at how busy it is with serving: against `--serve-bytes-per-s` where that is
//! set, and against its processors. When it was saturated for some seconds, the hottest segments that it owns
//! are copied to the least busy nodes with room, one more copy each time, and then told to the readers
//! through the topology, who spread over all copies. When this node alone could serve all of it again for a
//! while, it says so, and the others drop their copies.

use crate::cluster::membership::Membership;
use crate::cluster::peers::Peers;
use crate::disk::DiskCache;
use crate::disk::policy::Role;
use crate::runtime::blocking;
use forebay_dataset::SegmentReader;
use forebay_proto::manifest::{Digest, Manifest, SegmentId};
use forebay_proto::v1;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

/// How often it looks.
const LOOK: Duration = Duration::from_secs(1);

/// Saturated: so busy, at so many looks in a row.
const SATURATED: (f64, u32) = (0.9, 2);

/// Cool: it would be no busier with all readers of the hot segments, at so many looks in a row.
const COOL: (f64, u32) = (0.6, 10);

/// From this load on it is counted what is served.
const COUNTS: f64 = 0.3;

/// A node this busy takes no copies.
const BUSY: f64 = 0.85;

/// Segments that are made hot at a time, and in all.
const SEGMENTS_MAX: (usize, usize) = (64, 512);

/// Copies of a segment besides those that are for good.
const COPIES_MAX: usize = 16;

/// Of the heat, so much is shared at a time.
const SHARE: f64 = 0.6;

/// How long a node may take to take copies: meanwhile this one does not look.
const COPY: Duration = Duration::from_secs(60);

/// What serving may run ahead of its limit.
const BURST: Duration = Duration::from_millis(20);

/// A copy for readers who do not come is dropped after that time.
const UNLISTED: Duration = Duration::from_secs(60);

/// One that is not listed any more, after that time: the list is gone with its owner's lease, and may be back
/// at once.
const GONE: Duration = Duration::from_secs(10);

/// How busy the node is, and with what.
#[derive(Debug)]
pub struct Heat {
    bytes_per_s: Option<u64>,
    /// When what was granted so far is paid for.
    paid: Mutex<Instant>,
    state: Mutex<State>,
    served: AtomicU64,
    /// An `f64`'s bits.
    load: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes served of each segment, each second worth half of the one after it.
    heat: HashMap<SegmentId, f64>,
    /// Segments told to be hot.
    hot: HashMap<SegmentId, Hot>,
    /// Copies that this node holds for others' hot segments.
    extras: HashMap<SegmentId, Extra>,
}

#[derive(Debug, Clone, Default)]
struct Hot {
    /// URI of its object.
    object: String,
    /// Names of the nodes that hold further copies.
    nodes: Vec<String>,
    /// Nodes besides this one that hold it for good.
    replicas: usize,
}

#[derive(Debug, Clone, Copy)]
struct Extra {
    /// When it was taken, or last seen listed.
    seen: Instant,
    was_listed: bool,
}

impl Heat {
    /// Of a node that serves so many bytes a second at most.
    pub fn new(bytes_per_s: Option<u64>) -> Self {
        let (paid, state) = (Mutex::new(Instant::now()), Mutex::default());
        Self { bytes_per_s, paid, state, served: AtomicU64::new(0), load: AtomicU64::new(0) }
    }

    /// Waits until the limit allows so many bytes.
    pub async fn pay(&self, bytes: u64) {
        self.served.fetch_add(bytes, Relaxed);
        let Some(rate) = self.bytes_per_s else { return };
        let due = {
            let mut paid = self.paid.lock();
            let begin = (*paid).max(Instant::now() - BURST);
            *paid = begin + Duration::from_secs_f64(bytes as f64 / rate as f64);
            begin
        };
        sleep_until(due).await;
    }

    /// A message was sent: its rows by segment, its bytes. Counted only when the node has much to do.
    pub fn note(&self, manifest: &Manifest, meta: &v1::MessageMeta, bytes: u64) {
        if self.load() < COUNTS {
            return;
        }
        let mut by_segment: HashMap<u32, u64> = HashMap::new();
        for run in meta.runs.chunks_exact(3) {
            *by_segment.entry(run[1]).or_default() += u64::from(run[2]);
        }
        let each = bytes as f64 / by_segment.values().sum::<u64>().max(1) as f64;
        let heat = by_segment
            .into_iter()
            .filter_map(|(segment, rows)| Some((manifest.segment_id(segment).ok()?, rows as f64 * each)));
        let heat: Vec<_> = heat.collect();
        let mut state = self.state();
        heat.into_iter().for_each(|(id, bytes)| *state.heat.entry(id).or_default() += bytes);
    }

    /// How busy the node is, 0 to 1.
    pub fn load(&self) -> f64 {
        f64::from_bits(self.load.load(Relaxed))
    }

    /// Segments told to be hot.
    pub fn segments(&self) -> usize {
        self.state().hot.len()
    }

    /// A copy was taken for another node's readers.
    pub fn took_extra(&self, id: SegmentId) {
        self.state().extras.entry(id).or_insert(Extra { seen: Instant::now(), was_listed: false });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// One look: how busy the node was since the last one.
    fn look(&self, elapsed: Duration, processor: f64) -> f64 {
        let served = self.served.swap(0, Relaxed) as f64 / elapsed.as_secs_f64();
        let of_limit = self.bytes_per_s.map_or(0.0, |rate| served / rate as f64);
        let load = (self.load() + of_limit.max(processor).min(1.0)) / 2.0;
        self.load.store(load.to_bits(), Relaxed);
        let mut state = self.state();
        state.heat.values_mut().for_each(|heat| *heat /= 2.0);
        state.heat.retain(|_, heat| *heat >= 1024.0);
        load
    }

    /// How busy it would be if it served its hot segments alone.
    fn load_alone(&self) -> f64 {
        let state = self.state();
        let all: f64 = state.heat.values().sum();
        let of = |id: &SegmentId| state.heat.get(id).copied().unwrap_or_default();
        let away = state.hot.iter().map(|(id, hot)| of(id) * (hot.nodes.len() + hot.replicas) as f64);
        let away: f64 = away.sum();
        if all > 0.0 { self.load() * (all + away) / all } else { 0.0 }
    }

    /// The hottest segments, as many as make up a share of the heat, and where copies are if they are hot
    /// already.
    fn hottest(&self) -> Vec<(SegmentId, Option<Vec<String>>)> {
        let state = self.state();
        let mut all: Vec<_> = state.heat.iter().map(|(id, heat)| (*heat, *id)).collect();
        all.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        let enough = SHARE * all.iter().map(|(heat, _)| heat).sum::<f64>();
        let mut sum = 0.0;
        let hottest = all.into_iter().take(SEGMENTS_MAX.0).take_while(|(heat, _)| {
            let wanted = sum < enough;
            sum += heat;
            wanted
        });
        hottest.map(|(_, id)| (id, state.hot.get(&id).map(|hot| hot.nodes.clone()))).collect()
    }

    fn say(&self, membership: &Membership) {
        let state = self.state();
        let mut segments: Vec<_> = state.hot.iter().collect();
        segments.sort_unstable_by_key(|(id, _)| **id);
        let hot = |(id, hot): (&SegmentId, &Hot)| v1::HotSegment {
            segment: id.0.to_bytes().to_vec().into(),
            nodes: hot.nodes.clone(),
        };
        membership.say_hot(segments.into_iter().map(hot).collect());
    }

    /// Copies for others' readers that nobody is told of any more.
    fn forgotten(&self, peers: &Peers) -> Vec<SegmentId> {
        let mut state = self.state();
        let gone = state.extras.extract_if(|id, extra| {
            if peers.is_hot_here(*id) {
                *extra = Extra { seen: Instant::now(), was_listed: true };
            }
            extra.seen.elapsed() > if extra.was_listed { GONE } else { UNLISTED }
        });
        gone.map(|(id, _)| id).collect()
    }

    /// Forgets what this node does not own any more; whether there was any.
    fn forget_others(&self, peers: &Peers) -> bool {
        let hot: Vec<_> = self.state().hot.iter().map(|(id, hot)| (*id, hot.object.clone())).collect();
        // Without the lock: every message that is sent waits for it.
        let roles = peers.roles(&hot);
        let mut state = self.state();
        let before = state.hot.len();
        for ((id, _), _) in hot.iter().zip(roles).filter(|(_, role)| *role != Role::Primary) {
            state.hot.remove(id);
        }
        state.hot.len() < before
    }
}

/// The parts of a node that sharing heat uses.
pub struct HotTask {
    pub url: String,
    pub heat: Arc<Heat>,
    pub source: SegmentReader,
    pub disk: Arc<DiskCache>,
    pub membership: Arc<Membership>,
    pub peers: Arc<Peers>,
}

/// Looks, shares heat and takes it back, until it is dropped.
pub async fn run(task: HotTask) {
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut at, mut processor) = (Instant::now(), Processor::new());
    let (mut saturated, mut cool, mut fetched) = (0, 0, 0);
    loop {
        ticks.tick().await;
        let elapsed = at.elapsed().max(Duration::from_millis(1));
        at = Instant::now();
        // A node that fills is busy with that: further copies would not help.
        let s3_bytes = task.source.counters().s3_bytes.load(Relaxed);
        let fills = std::mem::replace(&mut fetched, s3_bytes) != s3_bytes;
        let busy = processor.share(elapsed);
        let load = task.heat.look(elapsed, if fills { 0.0 } else { busy });
        drop_forgotten(&task).await;
        if !task.membership.can_say_hot() {
            continue;
        }
        saturated = if load >= SATURATED.0 { saturated + 1 } else { 0 };
        if task.heat.forget_others(&task.peers) {
            task.heat.say(&task.membership);
        }
        let is_hot = task.heat.segments() > 0;
        cool = if is_hot && task.heat.load_alone() < COOL.0 { cool + 1 } else { 0 };
        if saturated >= SATURATED.1 && task.peers.has_others() {
            saturated = 0;
            share(&task).await;
        } else if cool >= COOL.1 {
            cool = 0;
            task.heat.state().hot.clear();
            task.heat.say(&task.membership);
            tracing::info!("no segment is hot any more");
        }
    }
}

/// Gives one more node each of the hottest segments, and tells readers.
async fn share(task: &HotTask) {
    let peers = &task.peers;
    let mut rooms = Vec::new();
    for (name, peer) in peers.others() {
        if let Ok(load) = peer.load().await
            && load.load < BUSY
        {
            rooms.push((load.load, load.free_bytes, name, peer));
        }
    }
    rooms.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut wanted: HashMap<String, Vec<v1::CopyItem>> = HashMap::new();
    let mut shared = 0;
    let mut objects = HashMap::new();
    for (id, hot) in task.heat.hottest() {
        let disk = task.disk.clone();
        let Ok(files) = blocking(move || disk.copies().list_of([id])).await else { return };
        let Some(first) = files.first() else { continue };
        if peers.role(id, &first.object) != Role::Primary {
            continue;
        }
        // Replicas hold it already: readers need only be told.
        let replicas = peers.replica_names(id, &first.object);
        objects.insert(id, (first.object.clone(), replicas.len()));
        if hot.is_none() && !replicas.is_empty() {
            shared += usize::from(task.heat.made_hot(id, &objects, None));
            continue;
        }
        let nodes = hot.unwrap_or_default();
        let bytes: u64 = files.iter().map(|f| f.bytes).sum();
        let room = rooms
            .iter_mut()
            .find(|(_, free, name, _)| *free >= bytes && !nodes.contains(name) && !replicas.contains(name));
        if let Some((_, free, name, _)) = room {
            *free -= bytes;
            wanted.entry(name.clone()).or_default().extend(files.iter().map(Into::into));
        }
    }
    for (_, _, name, peer) in rooms {
        let Some(items) = wanted.remove(&name) else { continue };
        let request = v1::CopyRequest { from: task.url.clone(), items: items.clone(), hot: true };
        let held = timeout(COPY, peer.copy(request)).await.ok().and_then(Result::ok).unwrap_or_default();
        for (item, _) in items.iter().zip(held).filter(|(_, held)| *held) {
            if let Ok(id) = Digest::from_bytes(&item.segment) {
                shared += usize::from(task.heat.made_hot(SegmentId(id), &objects, Some(&name)));
            }
        }
    }
    if shared > 0 {
        task.heat.say(&task.membership);
        tracing::info!(
            segments = shared,
            "saturated: readers of the hottest segments are spread over more nodes"
        );
    }
}

impl Heat {
    /// A segment has a further copy, or readers are to use those that it has; false if that is not new, or if
    /// there are too many already. `objects` knows the URI of its object, and how many replicas it has.
    fn made_hot(
        &self,
        id: SegmentId,
        objects: &HashMap<SegmentId, (String, usize)>,
        at: Option<&str>,
    ) -> bool {
        let mut state = self.state();
        let (count, known) = (state.hot.len(), state.hot.contains_key(&id));
        let hot = state.hot.entry(id).or_default();
        if let Some((object, replicas)) = objects.get(&id) {
            (hot.object, hot.replicas) = (object.clone(), *replicas);
        }
        let new = at.filter(|name| !hot.nodes.iter().any(|n| n == name));
        hot.nodes.extend(new.filter(|_| hot.nodes.len() < COPIES_MAX).map(str::to_owned));
        if !known && count >= SEGMENTS_MAX.1 {
            state.hot.remove(&id);
            return false;
        }
        new.is_some() || !known
    }
}

async fn drop_forgotten(task: &HotTask) {
    let gone = task.heat.forgotten(&task.peers);
    if gone.is_empty() {
        return;
    }
    let (disk, peers) = (task.disk.clone(), task.peers.clone());
    let dropped = blocking(move || {
        let files = disk.copies().list_of(gone.iter().copied());
        let is_ours = |id: &SegmentId| files.iter().any(|f| f.id == *id && peers.is_to_hold(*id, &f.object));
        gone.into_iter().filter(|id| !is_ours(id) && disk.copies().remove(*id)).count()
    });
    if let Ok(segments) = dropped.await {
        tracing::info!(segments, "copies that are not read much any more are dropped");
    }
}

/// The processor time of this process.
struct Processor {
    used_s: f64,
    cores: f64,
}

impl Processor {
    fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64);
        Self { used_s: used_s(), cores }
    }

    /// Its share of the machine since the last look.
    fn share(&mut self, elapsed: Duration) -> f64 {
        let before = std::mem::replace(&mut self.used_s, used_s());
        (self.used_s - before) / elapsed.as_secs_f64() / self.cores
    }
}

/// Seconds of processor time that this process has used; 0 where the system does not tell.
fn used_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is the program's name in parentheses; the times are the 14th and 15th, in hundredths.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u128) -> SegmentId {
        SegmentId(Digest(n))
    }

    #[tokio::test]
    async fn serving_keeps_to_its_limit() {
        let heat = Heat::new(Some(10_000_000));
        let began = Instant::now();
        for _ in 0..10 {
            heat.pay(100_000).await;
        }
        assert!(
            began.elapsed() >= Duration::from_millis(65),
            "the last is granted when those before it are paid"
        );
        assert!(heat.look(Duration::from_millis(100), 0.0) > 0.45);
        Heat::new(None).pay(u64::MAX).await;
    }

    #[tokio::test]
    async fn the_hottest_make_up_the_share() {
        let heat = Heat::new(None);
        heat.state().heat = HashMap::from([(id(1), 5e6), (id(2), 3e6), (id(3), 2e6)]);
        let ids: Vec<_> = heat.hottest().into_iter().map(|(id, _)| id).collect();
        assert_eq!(ids, [id(1), id(2)]);
        let objects = HashMap::from([(id(1), ("s3://b/1".to_owned(), 1))]);
        let made = |at| heat.made_hot(id(1), &objects, at);
        assert_eq!(heat.hottest()[0].1, None);
        assert!(made(None) && !made(None) && made(Some("b")) && !made(Some("b")));
        assert_eq!(heat.hottest()[0].1, Some(vec!["b".to_owned()]));
        heat.load.store(0.5f64.to_bits(), Relaxed);
        assert_eq!(heat.load_alone(), 1.0, "half of all is read here, and as much at a replica and at b");
        heat.look(LOOK, 0.0);
        assert_eq!(heat.state().heat[&id(1)], 2.5e6);
    }

    #[tokio::test]
    async fn extra_copies_go_when_they_are_not_listed_any_more() {
        let me = v1::Node { name: "n".into(), address: "http://n:1".into(), ..Default::default() };
        let hot = v1::HotSegment { segment: id(1).0.to_bytes().to_vec().into(), nodes: vec!["n".into()] };
        let listed = v1::Topology { nodes: vec![me], hot: vec![hot], ..Default::default() };
        let (sender, topology) = tokio::sync::watch::channel(listed);
        let (heat, peers) = (Heat::new(None), Peers::new("http://n:1", topology));
        heat.took_extra(id(1));
        heat.took_extra(id(2));
        assert_eq!(heat.forgotten(&peers), [], "one is listed, the other may be soon");
        sender.send_modify(|t| t.hot.clear());
        assert_eq!(heat.forgotten(&peers), [], "it may be listed again at once");
        for (ago, gone) in [(2 * GONE, id(1)), (2 * UNLISTED, id(2))] {
            let long_ago = Instant::now().checked_sub(ago).unwrap();
            heat.state().extras.values_mut().for_each(|extra| extra.seen = long_ago);
            assert_eq!(heat.forgotten(&peers), [gone]);
        }
    }
}
