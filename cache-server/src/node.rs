//! One node: its parts, and what they add up to.
//!
//! The services and the background tasks take from here the parts that they use. No part reaches back to the
//! node.

use crate::allow::Allowed;
use crate::auth::audit::AuditLog;
use crate::auth::authority::Authority;
use crate::cluster::hot::HotSegments;
use crate::cluster::hot::publisher::Publisher;
use crate::cluster::membership::Membership;
use crate::cluster::ownership::Ownership;
use crate::cluster::peers::{PeerCredentials, Peers};
use crate::cluster::replicate::Replicator;
use crate::datasets::Datasets;
use crate::descriptors;
use crate::disk::dirs::{DirStatus, Health};
use crate::disk::{DiskCache, DiskCacheSettings, PrefixLimit, RealDisk};
use crate::events::Events;
use crate::maintenance::{self, stall_probe::StallProbe};
use crate::objects::Objects;
use crate::read::cache::Cache;
use crate::read::memory::Memory;
use crate::read::plans::Plans;
use crate::runtime::{blocking, given_up};
use crate::service::gate::Gate;
use crate::service::guard::CallGuard;
use crate::service::handshake::Handshakes;
use crate::service::health::{HealthReporter, set_serving};
use crate::service::listeners::Listeners;
use crate::service::shared::SharedReaders;
use crate::service::stalls::Stalls;
use crate::settings::{Settings, StaticNode};
use forebay_dataset::source::{ObjectGuard, ObjectStoreSilence};
use forebay_dataset::{SegmentReader, TokenFile};
use forebay_proto::{Result, v1};
use forebay_tls::ClientTls;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// How long the disks of all cache directories may say nothing when the node starts. A busy one is slow, but
/// somebody waits for the node: who started it is to know why it does not serve.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// What a node consists of. All of its services share one.
pub struct Node {
    pub name: String,
    pub started: Instant,
    pub membership: Arc<Membership>,
    pub ownership: Arc<Ownership>,
    pub peers: Arc<Peers>,
    pub source: SegmentReader,
    pub disk: Arc<DiskCache>,
    pub memory: Memory,
    pub plans: Arc<Plans>,
    pub cache: Arc<Cache>,
    pub datasets: Arc<Datasets>,
    pub objects: Arc<Objects>,
    pub hot: Arc<HotSegments>,
    pub events: Arc<Events>,
    pub stall_probe: Arc<StallProbe>,
    pub shared: Arc<SharedReaders>,
    pub listeners: Listeners,
    pub stalls: Arc<Stalls>,
    pub guard: Arc<CallGuard>,
    /// What batch streams pass.
    pub gate: Gate,
    pub health: HealthReporter,
    /// The process ends: the node does not come back into the topology.
    pub is_ending: AtomicBool,
}

impl Node {
    /// Opens the disk cache, which rebuilds its index, and joins the parts. The node is at `url`; `streams`
    /// ends its batch streams. Errors name the setting to change.
    pub async fn open(settings: &Settings, url: String, streams: CancellationToken) -> Result<Self> {
        let name = settings.name(&url)?;
        let me = v1::Node {
            name: name.clone(),
            address: url.clone(),
            weight: settings.cluster.weight,
            zone: settings.cluster.zone.clone(),
        };
        let mut source = settings.source.clone();
        // A segment larger than the whole memory must not wait for more than there is.
        source.segment_memory_bytes = source.segment_memory_bytes.min(settings.memory_bytes);
        let allow = Arc::new(Allowed::new(&settings.allow)?);
        let guards = guard(settings, &name, allow.clone()).await?;
        let guard = allow.clone();
        let guard: ObjectGuard = Arc::new(move |uri: &str| guard.check_object(uri).map(drop));
        let source = SegmentReader::guarded(source, guard)?;
        let (plans, memory) = (Arc::new(Plans::default()), Memory::new(settings.memory_bytes));
        let limits = guards.authority.cache_limits();
        let disk = open_disk(settings, limits, &plans, &memory).await?;
        let (events, shared) =
            (Arc::new(Events::default()), Arc::new(SharedReaders::new(memory.shared.clone())?));
        let membership = Arc::new(membership(settings, me));
        let ownership = Arc::new(Ownership::new(url.clone(), membership.topology()));
        let credentials = PeerCredentials {
            token: peer_token(settings).await?,
            tls: ClientTls::new(settings.tls.files()),
            ..Default::default()
        };
        let peers = Arc::new(Peers::new(ownership.clone(), credentials));
        let datasets =
            Arc::new(Datasets::open(source.clone(), allow.clone(), disk.clone(), ownership.clone())?);
        let cache = Cache::new(
            source.clone(),
            disk.clone(),
            events.clone(),
            plans.clone(),
            memory.clone(),
            peers.clone(),
        );
        let reader = source.objects();
        let objects = Objects::new(cache.clone(), peers.clone(), reader, &settings.objects, allow, &memory)?;
        let tls = handshakes(settings, &url).await?;
        let listeners = Listeners::new(settings, descriptors::raise(), tls);
        let stalls = Stalls::new(&memory, listeners.refusals.clone());
        Ok(Self {
            name,
            started: Instant::now(),
            membership,
            ownership,
            peers,
            source,
            disk,
            memory,
            plans,
            cache,
            datasets,
            objects: Arc::new(objects),
            hot: Arc::new(HotSegments::new(settings.serve_bytes_per_s)),
            events,
            stall_probe: Arc::default(),
            shared,
            stalls,
            listeners,
            guard: guards,
            gate: Gate::new(streams, settings.limits.streams),
            health: HealthReporter::default(),
            is_ending: AtomicBool::new(false),
        })
    }

    /// The task that keeps copies at the other nodes.
    pub fn replicator(&self) -> Replicator {
        Replicator {
            peers: self.peers.clone(),
            disk: self.disk.clone(),
            plans: self.plans.clone(),
            datasets: self.datasets.clone(),
            written: self.cache.written.clone(),
        }
    }

    /// The task that spreads the readers of hot segments.
    pub fn publisher(&self) -> Publisher {
        Publisher {
            hot: self.hot.clone(),
            source: self.source.clone(),
            disk: self.disk.clone(),
            membership: self.membership.clone(),
            peers: self.peers.clone(),
        }
    }

    /// Takes its place in the topology and serves.
    pub async fn enter(&self) {
        self.gate.open();
        set_serving(&self.health, true).await;
        self.membership.enter();
    }

    /// Leaves the topology, so that clients whose streams end do not come back here. Streams go on until the
    /// gate is closed.
    pub async fn leave(&self) {
        self.membership.leave().await;
        set_serving(&self.health, false).await;
    }

    /// For how long the object stores have given nothing to what waits for them.
    pub fn object_store_silence(&self) -> Option<ObjectStoreSilence> {
        self.source.silence()
    }

    /// The node's place in its cluster.
    pub fn membership(&self) -> v1::MembershipStatus {
        v1::MembershipStatus { draining: self.gate.is_closed(), ..self.membership.state() }
    }
}

/// Who may do what here, and what of it is written down.
async fn guard(settings: &Settings, name: &str, allow: Arc<Allowed>) -> Result<Arc<CallGuard>> {
    let (auth, audit, name) = (settings.auth.clone(), settings.audit.clone(), name.to_owned());
    let opened = blocking(move || {
        let authority = Arc::new(Authority::open(&auth, allow)?);
        Ok(Arc::new(CallGuard::new(authority, AuditLog::open(&audit)?, name)))
    });
    opened.await?
}

/// What this node shows the others of its cluster: it must be there now, and may change later.
async fn peer_token(settings: &Settings) -> Result<Option<Arc<TokenFile>>> {
    let (auth, is_cluster) = (&settings.auth, settings.is_cluster());
    let Some(path) = auth.peer_token_file.clone() else {
        if auth.policy.is_some() && is_cluster && !settings.tls.is_on() {
            tracing::warn!(
                "this node has no --peer-token-file and no --tls-cert: nodes with a policy do not know it, and give it no data"
            );
        }
        return Ok(None);
    };
    let token = Arc::new(TokenFile::new(path));
    let read = token.clone();
    blocking(move || read.bearer().map(drop)).await?.map_err(|e| e.context("--peer-token-file"))?;
    Ok(Some(token))
}

/// TLS of the listeners, where the node has a certificate; says so where that is not for the host by which
/// others are told of the node, at `url`.
async fn handshakes(settings: &Settings, url: &str) -> Result<Option<Arc<Handshakes>>> {
    let (tls, limits) = (settings.tls.clone(), settings.limits.clone());
    let tls = blocking(move || Handshakes::open(&tls, &limits)).await??;
    if let Some(host) = settings.told_host(url)
        && let Some(hosts) = tls.as_ref().and_then(|tls| tls.hosts_without(host))
    {
        tracing::warn!(
            host,
            certificate_for = hosts.join(", "),
            "--tls-cert is not for the host that other nodes and clients will ask for: they will refuse this node; \
             get a certificate for it, or name one of its hosts with --advertise"
        );
    }
    Ok(tls)
}

async fn open_disk(
    settings: &Settings,
    limits: Vec<PrefixLimit>,
    plans: &Arc<Plans>,
    memory: &Memory,
) -> Result<Arc<DiskCache>> {
    let disk = DiskCacheSettings {
        dirs: settings.cache_dir.clone(),
        limit_bytes: settings.cache_bytes,
        raw_share: settings.objects.share,
        maps_bytes: memory.maps_bytes,
        kept_files: descriptors::kept_files(descriptors::raise()),
        start_patience: START_PATIENCE,
        disk: Arc::new(RealDisk),
    };
    let (started, forecast) = (Instant::now(), plans.clone());
    let disk = Arc::new(blocking(move || DiskCache::open(&disk, forecast)).await??);
    // From now on it is noticed if a disk hangs.
    maintenance::watch(&disk);
    let opened = disk.clone();
    let look = move || {
        opened.set_prefix_limits(limits);
        opened.dirs().iter().filter(|dir| dir.health != Health::Away).for_each(warn_of_small_disk);
    };
    given_up(blocking(look).await, ())?;
    tracing::info!(
        segments = disk.files(),
        bytes = disk.used_bytes(),
        ms = started.elapsed().as_millis() as u64,
        "the index is rebuilt"
    );
    Ok(disk)
}

/// Says so where a directory may take more than its disk has in all: it will be full, and stay full.
fn warn_of_small_disk(dir: &DirStatus) {
    let Ok(disk) = rustix::fs::statvfs(&dir.path) else { return };
    let disk_bytes = disk.f_blocks.saturating_mul(disk.f_frsize);
    if dir.limit_bytes > disk_bytes {
        tracing::warn!(
            dir = %dir.path.display(),
            limit_bytes = dir.limit_bytes,
            disk_bytes,
            "--cache-bytes allows more than the whole disk of a cache directory has: it is used until it is full"
        );
    }
}

fn membership(settings: &Settings, me: v1::Node) -> Membership {
    let cluster = &settings.cluster;
    if !cluster.etcd.is_empty() {
        return Membership::etcd(cluster.clone(), me);
    }
    let node = |node: &StaticNode| v1::Node {
        name: node.name.clone(),
        address: node.url.clone(),
        weight: 1.0,
        zone: String::new(),
    };
    Membership::fixed(me, settings.nodes.iter().map(node).collect(), cluster.replicas)
}
