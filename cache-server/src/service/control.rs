//! `forebay.v1.Cache`: open, load, free, status, topology, drain.

use super::fetch_limit::{segment_turn, throttle};
use super::guard::{caller, may_use};
use super::metrics;
use super::visible;
use crate::auth::caller::Caller;
use crate::auth::limiter::Limiter;
use crate::datasets::{Dataset, OpenDataset};
use crate::disk::dirs::{DirStatus, Health};
use crate::disk::{DiskCache, RawFiles};
use crate::node::Node;
use crate::read::fill::Ahead;
use crate::runtime::blocking;
use forebay_dataset::stream::Reading;
use forebay_dataset::{Urgency, source};
use forebay_proto::manifest::Digest;
use forebay_proto::object_list::RequestParts;
use forebay_proto::v1::cache_server::Cache as Service;
use forebay_proto::{Error, Manifest, SegmentSet, protocol, v1};
use futures::StreamExt;
use futures::stream::BoxStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, Semaphore, mpsc};
use tokio_stream::wrappers::{ReceiverStream, WatchStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

/// Segments that `Load` fills at once; the source has limits of its own.
const LOAD_CONCURRENCY: usize = 8;

/// The service.
pub struct Control {
    pub node: Arc<Node>,
    /// Ends open streams.
    pub stop: CancellationToken,
    /// Held while the node begins or ends to drain.
    pub draining: Arc<Mutex<()>>,
    /// [`LISTS_AT_ONCE`].
    pub lists: Semaphore,
}

/// How long streams may take to end when the node drains: a reader that stands still does not end its.
const DRAIN: Duration = Duration::from_secs(10);

/// How long others are asked again whether they serve: before a node drains, as busy ones answer late, and
/// once it has left, while one that drained at the same time comes back.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3));

/// Lists of objects that are received and opened at once.
pub const LISTS_AT_ONCE: usize = 2;

/// How long the next part of a list may take.
const PART_PATIENCE: Duration = Duration::from_secs(30);

type Reply<T> = Result<Response<T>, Status>;

/// Freezes the dataset of a request.
async fn opened(
    node: &Node,
    caller: &Caller,
    request: v1::OpenRequest,
) -> forebay_proto::Result<v1::OpenReply> {
    protocol::check_client(request.protocol.as_ref())?;
    let spec = request.dataset.ok_or_else(|| Error::invalid("open: no dataset given"))?;
    if let Some(limiter) = caller.limiter() {
        limiter.open().await?;
    }
    let OpenDataset { dataset, projected_bytes, notes } = match request.version_ids {
        true => node.datasets.freeze_with_ids(caller, spec, &request.columns).await?,
        false => node.datasets.freeze(caller, spec, &request.columns).await?,
    };
    // Millions of segments: not for an async thread.
    let manifest = blocking(move || (&*dataset.manifest).into()).await?;
    Ok(v1::OpenReply { manifest: Some(manifest), projected_bytes, notes, protocol: Some(protocol::ours()) })
}

#[tonic::async_trait]
impl Service for Control {
    type LoadStream = BoxStream<'static, Result<v1::LoadProgress, Status>>;
    type WatchTopologyStream = BoxStream<'static, Result<v1::Topology, Status>>;

    async fn open(&self, request: Request<v1::OpenRequest>) -> Reply<v1::OpenReply> {
        let caller = caller(request.extensions())?;
        Ok(Response::new(opened(&self.node, &caller, request.into_inner()).await?))
    }

    async fn open_parts(&self, request: Request<Streaming<v1::OpenRequest>>) -> Reply<v1::OpenReply> {
        let caller = caller(request.extensions())?;
        let mut stream = request.into_inner();
        // These lists are the largest things that a stranger can have a node hold.
        let _turn = self.lists.acquire().await.map_err(|_| Error::closed("this node is shutting down"))?;
        let mut parts = RequestParts::default();
        loop {
            let part = tokio::time::timeout(PART_PATIENCE, stream.message()).await;
            match part.map_err(|_| Error::retry("open: the rest of the list did not come"))?? {
                Some(part) => parts.add(part)?,
                None => break,
            }
        }
        Ok(Response::new(opened(&self.node, &caller, parts.request()?).await?))
    }

    async fn load(&self, request: Request<v1::LoadRequest>) -> Reply<Self::LoadStream> {
        let (caller, r) = (caller(request.extensions())?, request.into_inner());
        let spec = r.dataset.ok_or_else(|| Error::invalid("load: no dataset given"))?;
        if let Some(limiter) = caller.limiter() {
            limiter.open().await?;
        }
        let dataset = match r.digest.is_empty() {
            true => self.node.datasets.freeze(&caller, spec, &r.columns).await?.dataset,
            false => self.node.datasets.get(&caller, &r.digest, &spec.uri, (None, false))?,
        };
        let reading = Reading::new(dataset.manifest.clone(), &dataset.schema, &r.columns)?;
        let count = dataset.manifest.segments().len() as u32;
        let wanted: Vec<u32> = SegmentSet::from_wire(&r.segments, count).iter().collect();
        let (sender, progress) = mpsc::channel(4);
        let (node, stop) = (self.node.clone(), self.stop.clone());
        let throttle = throttle(caller.limiter());
        tokio::spawn(async move {
            tokio::select! {
                done = load(&node, &reading, wanted, throttle.as_ref(), &sender) => if let Err(e) = done {
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

    async fn free(&self, request: Request<v1::FreeRequest>) -> Reply<v1::FreeReply> {
        let caller = caller(request.extensions())?;
        let (node, v1::FreeRequest { uri, digest, superseded }) = (self.node.clone(), request.into_inner());
        may_use(&caller, &uri).await?;
        let digest = match (digest.is_empty(), superseded) {
            (true, _) => None,
            (false, false) => Some(Digest::from_bytes(&digest)?),
            (false, true) => return Err(Error::invalid("free: one version or the superseded ones").into()),
        };
        let free = move || match digest.is_some() || superseded {
            true => node.datasets.forget_versions(&uri, digest).map(|ids| node.cache.free_segments(&ids)),
            false => node.datasets.forget(&uri).map(|uri| {
                node.objects.forget(&uri);
                node.cache.free(&uri)
            }),
        };
        let (segments, bytes) = blocking(free).await??;
        Ok(Response::new(v1::FreeReply { segments, bytes }))
    }

    async fn pin(&self, request: Request<v1::PinRequest>) -> Reply<v1::PinReply> {
        let caller = caller(request.extensions())?;
        let (node, uri) = (self.node.clone(), request.into_inner().uri);
        may_use(&caller, &uri).await?;
        let pin = move || node.datasets.allowed(&uri).and_then(|uri| node.disk.pin(source::place_of(&uri)));
        let (files, bytes) = blocking(pin).await??;
        Ok(Response::new(v1::PinReply { files, bytes }))
    }

    async fn unpin(&self, request: Request<v1::PinRequest>) -> Reply<v1::PinReply> {
        let caller = caller(request.extensions())?;
        let (disk, uri) = (self.node.disk.clone(), request.into_inner().uri);
        may_use(&caller, &uri).await?;
        // A URI that is no longer allowed may still be pinned.
        let (files, bytes) =
            blocking(move || disk.unpin(source::place_of(&source::normalise(&uri)?))).await??;
        Ok(Response::new(v1::PinReply { files, bytes }))
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Reply<v1::StatusReply> {
        let (node, caller) = (self.node.clone(), caller(request.extensions())?);
        let who = caller.clone();
        // A look at every segment of every dataset, and at every file: milliseconds, but not for an async
        // thread.
        let look = move || {
            let mut all = node.datasets.list();
            all.retain(|dataset| who.sees_manifest(&dataset.manifest));
            let datasets = all.iter().map(|d| dataset_status(&node, d, &all)).collect();
            (datasets, node.disk.pinned(), memory(&node))
        };
        let (datasets, (pins, pinned_bytes), memory) = blocking(look).await?;
        let disk = &self.node.disk;
        let silence = self.node.store_silence();
        let whole = v1::StatusReply {
            node: self.node.name.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_s: self.node.started.elapsed().as_secs(),
            cache_bytes_used: disk.used_bytes(),
            cache_bytes_limit: disk.limit_bytes(),
            segments_held: disk.segments(),
            counters: Some(metrics::counters(&self.node)),
            datasets,
            pins,
            pinned_bytes,
            dirs: disk.dirs().into_iter().map(dir).collect(),
            membership: Some(self.node.membership()),
            segments_hot: self.node.hot.detection().published().len() as u64,
            load: self.node.hot.load(),
            raw: Some(raw(disk)),
            memory: Some(memory),
            store_silent_s: silence.as_ref().map_or(0.0, |silence| silence.lasting.as_secs_f64()),
            store_error: silence.map(|silence| silence.error).unwrap_or_default(),
        };
        Ok(Response::new(visible::status(&caller, whole)))
    }

    async fn watch_topology(
        &self,
        request: Request<v1::WatchTopologyRequest>,
    ) -> Reply<Self::WatchTopologyStream> {
        let caller = caller(request.extensions())?;
        let changes = WatchStream::new(self.node.membership.topology());
        let changes = changes.map(move |topology| Ok(visible::topology(&caller, topology)));
        Ok(Response::new(changes.take_until(self.stop.clone().cancelled_owned()).boxed()))
    }

    async fn set_replicas(&self, request: Request<v1::SetReplicasRequest>) -> Reply<v1::SetReplicasReply> {
        let caller = caller(request.extensions())?;
        let (node, v1::SetReplicasRequest { uri, replicas }) = (self.node.clone(), request.into_inner());
        may_use(&caller, &uri).await?;
        let uri = blocking(move || node.datasets.allowed(&uri)).await??;
        self.node.membership.set_replicas(source::place_of(&uri), replicas).await?;
        Ok(Response::new(v1::SetReplicasReply {}))
    }

    async fn same_host(&self, request: Request<v1::SameHostRequest>) -> Reply<v1::SameHostReply> {
        let caller = caller(request.extensions())?;
        // Over the socket a certificate cannot be shown.
        if caller.has_certificate() {
            return Ok(Response::new(v1::SameHostReply::default()));
        }
        Ok(Response::new(self.node.shared.same_host(&caller, self.node.guard.authority.generation())?))
    }

    async fn drain(&self, request: Request<v1::DrainRequest>) -> Reply<v1::DrainReply> {
        let (node, turn, undo) = (self.node.clone(), self.draining.clone(), request.into_inner().undo);
        // A task of its own: a caller that goes away in between must not leave the node half drained.
        let turned = tokio::spawn(async move {
            let _turn = turn.lock().await;
            match undo {
                true => {
                    node.enter().await;
                    tracing::info!("no longer draining");
                    Ok(node.gate.streams())
                }
                false => drain(&node).await,
            }
        });
        let gone = |e| Error::closed(format!("draining did not end: {e}"));
        let (node, before) = (&self.node, turned.await.map_err(gone)??);
        if undo {
            return Ok(Response::new(v1::DrainReply { streams_ended: 0, streams_left: before }));
        }
        tokio::time::timeout(DRAIN, node.gate.empty()).await.ok();
        let left = node.gate.streams();
        Ok(Response::new(v1::DrainReply { streams_ended: before.saturating_sub(left), streams_left: left }))
    }
}

/// Sends the node's readers to others; returns how many streams there were. `Invalid` if no other node takes
/// readers: then this one goes on.
async fn drain(node: &Node) -> forebay_proto::Result<u64> {
    let none = |why: &str| Error::invalid(format!("no other node could take over: {why}"));
    let others: Vec<String> = node.peers.ownership.others().into_iter().map(|(_, address)| address).collect();
    if others.is_empty() {
        return Err(none("this one is the only one"));
    }
    if !is_any_serving(node, &others, PATIENCE.0).await {
        return Err(none(&format!("none of {} says that it serves", others.join(", "))));
    }
    let before = node.gate.streams();
    tracing::info!(streams = before, "draining: clients are sent to other nodes");
    node.leave().await;
    // Those that were asked may have left at the same time. The one whose address comes first does not wait,
    // and so comes back; the others wait for it.
    let is_first = others.iter().all(|address| node.peers.ownership.me() < address.as_str());
    let patience = if is_first { Duration::ZERO } else { PATIENCE.1 };
    if !is_any_serving(node, &others, patience).await && !node.is_ending.load(Ordering::Relaxed) {
        node.enter().await;
        return Err(none("those that served have left meanwhile, so this one is back in service"));
    }
    node.gate.close();
    Ok(before)
}

/// Whether another node says that it takes readers, at once or within a time.
async fn is_any_serving(node: &Node, others: &[String], patience: Duration) -> bool {
    let began = Instant::now();
    loop {
        if node.peers.is_any_serving(others).await {
            return true;
        }
        if began.elapsed() >= patience {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The memory in use, part by part.
fn memory(node: &Node) -> v1::Memory {
    v1::Memory {
        limit_bytes: node.memory.limit_bytes,
        fills_bytes: node.memory.fills.used(),
        prefetch_bytes: node.memory.prefetch.used(),
        transit_bytes: node.memory.tier.used(),
        streams_bytes: node.memory.messages_bytes(),
        resident_bytes: metrics::resident_bytes(),
    }
}

/// How many cache directories have full disks.
pub(super) fn dirs_full(disk: &DiskCache) -> u64 {
    disk.dirs().iter().filter(|dir| dir.health == Health::Full).count() as u64
}

fn raw(disk: &DiskCache) -> v1::RawStatus {
    let RawFiles { files, bytes } = disk.raw();
    v1::RawStatus { files, bytes, guaranteed_bytes: disk.raw_share_bytes() }
}

fn dir(dir: DirStatus) -> v1::DirStatus {
    let health = match dir.health {
        Health::Up => "up",
        Health::Full => "full",
        Health::Away => "away",
    };
    v1::DirStatus {
        path: dir.path.display().to_string(),
        health: health.into(),
        bytes_used: dir.used_bytes,
        bytes_limit: dir.limit_bytes,
    }
}

/// How much of a dataset is here. Looks at each of its segments: not for an async thread.
fn dataset_status(node: &Node, dataset: &Dataset, all: &[Dataset]) -> v1::DatasetStatus {
    let m = &dataset.manifest;
    let held = dataset.segment_ids().filter(|id| node.disk.holds(*id, &[]));
    let (segments_held, segments_owned) = node.ownership.count(held);
    let object = m.objects().first().map(|object| m.object_uri(object));
    v1::DatasetStatus {
        uri: m.uri().into(),
        digest: m.digest().to_bytes().to_vec().into(),
        rows: m.rows(),
        segments: m.segments().len() as u64,
        segments_held,
        replicas: object.map_or(1, |object| node.ownership.replicas(&object) as u32),
        segments_owned,
        part: dataset.part(all),
        superseded: node.datasets.is_superseded(dataset),
        filter: dataset.filter().to_owned(),
    }
}

/// Fills the `wanted` segments that are missing, with a report after each. The last report says how many are
/// held then: not all, if they are larger than the disk cache.
async fn load(
    node: &Node,
    reading: &Reading,
    wanted: Vec<u32>,
    throttle: Option<&Arc<Limiter>>,
    sender: &mpsc::Sender<Result<v1::LoadProgress, Status>>,
) -> forebay_proto::Result<()> {
    // Other loads and jobs read at the same time: only what this one fetches counts.
    let urgency = &Urgency::demand();
    let mut loaded = Loaded::new(node, reading, &wanted);
    let gone = |_| Error::closed("the caller has gone");
    sender.send(Ok(loaded.progress)).await.map_err(gone)?;
    let mut filled = futures::stream::iter(wanted)
        .map(|s| async move {
            let _turn = match throttle {
                Some(limiter) => segment_turn(limiter, &node.cache, reading, s).await?,
                None => None,
            };
            let demand = Ahead { urgency: urgency.clone(), ..Ahead::demand() };
            let ready = node.cache.read(reading, s, demand, None).await?;
            // It is looked at, and let go, off the async threads.
            let bytes = blocking(move || ready.batch.value_bytes() as u64).await?;
            Ok::<_, Error>((s, bytes))
        })
        .buffer_unordered(LOAD_CONCURRENCY);
    while let Some(read) = filled.next().await {
        let (segment, bytes) = read?;
        loaded.add(segment, bytes);
        loaded.progress.s3_bytes = urgency.fetched_bytes();
        sender.send(Ok(loaded.progress)).await.map_err(gone)?;
    }
    let last = blocking(move || loaded.held_now()).await?;
    sender.send(Ok(last)).await.map_err(gone)
}

/// How far a load is.
struct Loaded {
    disk: Arc<DiskCache>,
    manifest: Arc<Manifest>,
    columns: Vec<String>,
    /// The segments read, and the decoded bytes of each.
    read: Vec<(u32, u64)>,
    /// Decoded bytes of those read, and as the manifest has them; and of all that are wanted.
    read_bytes: u64,
    announced_bytes: u64,
    wanted_bytes: u64,
    progress: v1::LoadProgress,
}

impl Loaded {
    fn new(node: &Node, reading: &Reading, wanted: &[u32]) -> Self {
        let (disk, manifest) = (node.disk.clone(), reading.manifest.clone());
        let wanted_bytes = wanted.iter().map(|&s| manifest.segments()[s as usize].decoded_bytes).sum();
        let segments_total = wanted.len() as u64;
        Self {
            disk,
            manifest,
            columns: reading.columns().cloned().collect(),
            read: Vec::new(),
            read_bytes: 0,
            announced_bytes: 0,
            wanted_bytes,
            progress: v1::LoadProgress {
                segments_total,
                decoded_bytes_total: wanted_bytes,
                ..Default::default()
            },
        }
    }

    /// A segment was read.
    fn add(&mut self, segment: u32, bytes: u64) {
        self.read.push((segment, bytes));
        self.read_bytes += bytes;
        self.announced_bytes += self.manifest.segments()[segment as usize].decoded_bytes;
        // Those to come are taken to be off by as much as those that came.
        let factor = self.read_bytes as f64 / self.announced_bytes.max(1) as f64;
        let left = self.wanted_bytes.saturating_sub(self.announced_bytes) as f64 * factor;
        let is_held = self.holds(segment);
        let p = &mut self.progress;
        p.segments_read += 1;
        p.decoded_bytes_total = self.read_bytes + left as u64;
        if is_held {
            p.segments_held += 1;
            p.decoded_bytes_held += bytes;
        }
    }

    /// Segments held now: one read before may have been evicted for a later one.
    fn held_now(&self) -> v1::LoadProgress {
        let held: Vec<u64> = self.read.iter().filter(|(s, _)| self.holds(*s)).map(|(_, n)| *n).collect();
        v1::LoadProgress {
            segments_held: held.len() as u64,
            decoded_bytes_held: held.iter().sum(),
            dirs_full: dirs_full(&self.disk),
            ..self.progress
        }
    }

    fn holds(&self, segment: u32) -> bool {
        self.manifest.segment_id(segment).is_ok_and(|id| self.disk.holds(id, &self.columns))
    }
}
