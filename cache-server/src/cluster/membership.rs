//! Which nodes there are: the topology that this node tells its clients, and this node's own place in it.
//!
//! Three ways: alone; a fixed set, the same on every node; or etcd (`register` and `follow`), where each node
//! has one key under a lease. No timer changes the topology while etcd is away: the last one stays in force,
//! and [`Membership::state`] says since when. Nothing here is in the read path.

mod context;
mod etcd;
mod follow;
mod left_out;
mod node_set;
mod register;
mod snapshots;

pub use snapshots::ClusterSnapshots;

use crate::settings::ClusterSettings;
use context::{EtcdContext, EtcdHealth, Intent};
use forebay_proto::{Error, v1};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;
use v1::membership_status::Kind;

/// How long leaving may take: when etcd does not answer, the lease runs out by itself.
const LEAVE: Duration = Duration::from_secs(3);

/// How long taking the keys away may take.
const GO: Duration = Duration::from_secs(1);

/// This node's view of the cluster, and its place in it.
#[derive(Debug)]
pub struct Membership {
    kind: Kind,
    me: v1::Node,
    topology: watch::Receiver<v1::Topology>,
    health: watch::Receiver<EtcdHealth>,
    intent: watch::Sender<Intent>,
    hot: watch::Sender<Vec<v1::HotSegment>>,
    settings: Option<Arc<ClusterSettings>>,
    /// Keeps the topology's channel open where nothing else does.
    _fixed: Option<watch::Sender<v1::Topology>>,
    /// Aborted as this is dropped.
    _tasks: JoinSet<()>,
}

impl Membership {
    /// A fixed set of nodes, of which `me` is one, or a cluster of one where there is no set; each segment is
    /// to be held by `replicas` of them.
    pub fn fixed(me: v1::Node, nodes: Vec<v1::Node>, replicas: u32) -> Self {
        let (kind, nodes, replicas) = match nodes.is_empty() {
            true => (Kind::Alone, vec![me.clone()], 1),
            false => (Kind::Fixed, nodes, replicas),
        };
        let first = v1::Topology { revision: 1, nodes, replicas, ..Default::default() };
        let registered = EtcdHealth { registered_at: Some(0), ..Default::default() };
        let (sender, topology) = watch::channel(first);
        let (hot, health) = (watch::channel(Vec::new()).0, watch::channel(registered).1);
        let intent = watch::channel(Intent::Stay).0;
        let (settings, tasks) = (None, JoinSet::new());
        Self { kind, me, topology, health, intent, hot, settings, _fixed: Some(sender), _tasks: tasks }
    }

    /// Follows the nodes in etcd. This node is not among them before [`Membership::enter`]. Returns at once,
    /// whether etcd answers or not. Must be called within a Tokio runtime.
    pub fn etcd(settings: ClusterSettings, me: v1::Node) -> Self {
        let first = v1::Topology { nodes: vec![me.clone()], ..Default::default() };
        let silent = Some((Instant::now(), "etcd was not reached yet".to_owned()));
        let (sender, topology) = watch::channel(first);
        let (intent, intents) = watch::channel(Intent::Leave);
        let (hot, hot_seen) = watch::channel(Vec::new());
        let (health, health_seen) = watch::channel(EtcdHealth { silent, ..Default::default() });
        let settings = Arc::new(settings);
        let member = node_set::Member::new(me.clone(), settings.replicas);
        let context = EtcdContext { settings: settings.clone(), me: member, health };
        let mut tasks = JoinSet::new();
        tasks.spawn(follow::run(context.clone(), sender));
        tasks.spawn(register::run(context, intents, hot_seen));
        let (kind, settings) = (Kind::Etcd, Some(settings));
        Self { kind, me, topology, health: health_seen, intent, hot, settings, _fixed: None, _tasks: tasks }
    }

    /// The topology now and whenever it changes.
    pub fn topology(&self) -> watch::Receiver<v1::Topology> {
        self.topology.clone()
    }

    /// Becomes a member, now or when etcd answers.
    pub fn enter(&self) {
        self.intent.send_replace(Intent::Stay);
    }

    /// Leaves the topology, and waits until that is known or clear that it will not be soon.
    pub async fn leave(&self) {
        self.intent.send_replace(Intent::Leave);
        let mut health = self.health.clone();
        if self.kind == Kind::Etcd
            && tokio::time::timeout(LEAVE, health.wait_for(|h| h.registered_at.is_none())).await.is_err()
        {
            tracing::info!("etcd does not take this node's leave: its lease will run out");
        }
    }

    /// Takes the node's keys away, and waits for that for a moment: their lease runs out by itself.
    pub async fn go(&self) {
        self.intent.send_replace(Intent::Go);
        if self.kind == Kind::Etcd {
            tokio::time::timeout(GO, self.intent.closed()).await.ok();
        }
    }

    /// Tells readers which segments to read from further nodes too.
    pub fn publish_hot(&self, segments: Vec<v1::HotSegment>) {
        if *self.hot.borrow() != segments {
            self.hot.send_replace(segments);
        }
    }

    /// Whether [`Membership::publish_hot`] reaches anybody.
    pub fn can_publish(&self) -> bool {
        self.kind == Kind::Etcd
    }

    /// Sets how many copies of what lies under a URI the cluster is to hold; 0: as of all else. `Invalid`
    /// without etcd, which keeps that.
    pub async fn set_replicas(&self, uri: &str, replicas: u32) -> Result<(), Error> {
        let Some(settings) = &self.settings else {
            return Err(Error::invalid(
                "this cluster has no etcd to keep the number of replicas of a dataset: set --replicas on its nodes",
            ));
        };
        etcd::set_replicas(settings, uri, replicas).await
    }

    /// The cluster's snapshots. `Invalid` without etcd, which keeps them.
    pub fn snapshots(&self) -> Result<ClusterSnapshots<'_>, Error> {
        let without = || {
            Error::invalid(
                "this cache has no etcd to keep snapshots in: keep them in files, with --dir DIR or a path for a name",
            )
        };
        self.settings.as_deref().map(ClusterSnapshots).ok_or_else(without)
    }

    /// Whether other nodes can take over what this one serves.
    pub fn has_others(&self) -> bool {
        self.topology.borrow().nodes.iter().any(|node| node.address != self.me.address)
    }

    /// Waits until this node is refused, because another one has its name: that is for a person to settle.
    pub async fn refused(&self) -> Error {
        let mut health = self.health.clone();
        let refused = health.wait_for(|h| h.refused.is_some()).await.ok().and_then(|h| h.refused.clone());
        match refused {
            Some(error) => error,
            None => std::future::pending().await,
        }
    }

    /// For people and metrics.
    pub fn state(&self) -> v1::MembershipStatus {
        let (health, topology) = (self.health.borrow().clone(), self.topology.borrow());
        let silent_s = health.silent.as_ref().map_or(0.0, |(since, _)| since.elapsed().as_secs_f64());
        v1::MembershipStatus {
            kind: self.kind.into(),
            connected: health.silent.is_none(),
            silent_s,
            error: health.silent.map(|(_, error)| error).unwrap_or_default(),
            registered: health.registered_at.is_some(),
            revision: topology.revision,
            nodes: topology.nodes.len() as u64,
            draining: false,
        }
    }
}
