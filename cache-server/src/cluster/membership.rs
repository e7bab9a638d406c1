//! Which nodes there are: the topology that this node tells its clients, and this node's own place in it.
//!
//! Three ways: alone; a fixed list, the same on every node; or etcd (`register` and `follow`), where each node has one
//! key under a lease. The topology is never changed by a timer while etcd is away: what was last heard stays in force,
//! and [`Membership::state`] says since when. Nothing here is in the read path.

mod etcd;
mod follow;
mod register;
mod roster;

pub use etcd::EtcdSettings;

use forebay_proto::{Error, v1};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use v1::membership_status::Kind;

/// How long leaving may take: when etcd does not answer, the lease runs out by itself.
const LEAVE: Duration = Duration::from_secs(3);

/// How long taking the keys away may take.
const GO: Duration = Duration::from_secs(1);

/// How long etcd does not answer before that is worth a warning.
const TELL: Duration = Duration::from_secs(3);

/// This node's view of the cluster, and its place in it.
#[derive(Debug)]
pub struct Membership {
    kind: Kind,
    me: v1::Node,
    topology: watch::Receiver<v1::Topology>,
    health: watch::Receiver<Health>,
    wish: watch::Sender<Wish>,
    hot: watch::Sender<Vec<v1::HotSegment>>,
    settings: Option<Arc<EtcdSettings>>,
    /// Keeps the topology's channel open where nothing else does.
    _fixed: Option<watch::Sender<v1::Topology>>,
    tasks: Vec<JoinHandle<()>>,
}

/// Whether this node wants to be in the topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Stay,
    /// Takes no readers any more, but is still there for other nodes.
    Leave,
    /// Ends.
    Go,
}

/// How things stand with etcd.
#[derive(Debug, Clone)]
struct Health {
    /// It answers.
    connected: bool,
    /// Since when that is so.
    since: Instant,
    /// Why it does not.
    error: String,
    /// That it does not was said in the log.
    told: bool,
    /// This node's key is there, under a lease that was kept alive when last tried.
    registered: bool,
    /// etcd's revision when this node last put its key. Earlier values of the key are a predecessor's.
    registered_at: i64,
    /// This node cannot be a member: another one has its name.
    refused: Option<Error>,
}

/// What the two tasks that talk to etcd share.
#[derive(Debug, Clone)]
struct Shared {
    settings: Arc<EtcdSettings>,
    me: roster::Member,
    health: watch::Sender<Health>,
}

impl Membership {
    /// A cluster of one.
    pub fn alone(node: v1::Node) -> Self {
        Self::still(Kind::Alone, node.clone(), vec![node], 1)
    }

    /// A fixed list of nodes, by their URLs, of which `me` is one; each segment is to be held by `replicas` of them.
    pub fn fixed(me: v1::Node, urls: &[String], replicas: u32) -> Self {
        let node = |url: &String| v1::Node {
            name: url.clone(),
            address: url.clone(),
            weight: 1.0,
            zone: String::new(),
        };
        Self::still(Kind::Fixed, me, urls.iter().map(node).collect(), replicas)
    }

    fn still(kind: Kind, me: v1::Node, nodes: Vec<v1::Node>, replicas: u32) -> Self {
        let told = v1::Topology { revision: 1, nodes, replicas, ..Default::default() };
        let (sender, topology) = watch::channel(told);
        let health = Health {
            connected: true,
            since: Instant::now(),
            error: String::new(),
            told: false,
            registered: true,
            registered_at: 0,
            refused: None,
        };
        let (wish, health) = (watch::channel(Wish::Stay).0, watch::channel(health).1);
        let (hot, settings) = (watch::channel(Vec::new()).0, None);
        Self { kind, me, topology, health, wish, hot, settings, _fixed: Some(sender), tasks: Vec::new() }
    }

    /// Follows the nodes in etcd. This node is not among them before [`Membership::enter`]. Returns at once, whether
    /// etcd answers or not. Must be called within a Tokio runtime.
    pub fn etcd(settings: EtcdSettings, node: v1::Node, replicas: u32) -> Self {
        let first = v1::Topology { nodes: vec![node.clone()], ..Default::default() };
        let (sender, topology) = watch::channel(first);
        let (wish, wishes) = watch::channel(Wish::Leave);
        let (hot, hot_seen) = watch::channel(Vec::new());
        let settings = Arc::new(settings);
        let since = Instant::now();
        let error = "etcd was not reached yet".to_owned();
        let (health, health_seen) = watch::channel(Health {
            connected: false,
            since,
            error,
            told: false,
            registered: false,
            registered_at: 0,
            refused: None,
        });
        let me = roster::Member::new(node.clone(), replicas);
        let shared = Shared { settings: settings.clone(), me, health };
        let tasks = vec![
            tokio::spawn(follow::run(shared.clone(), sender)),
            tokio::spawn(register::run(shared, wishes, hot_seen)),
        ];
        let (kind, settings) = (Kind::Etcd, Some(settings));
        Self { kind, me: node, topology, health: health_seen, wish, hot, settings, _fixed: None, tasks }
    }

    /// The topology now and whenever it changes.
    pub fn topology(&self) -> watch::Receiver<v1::Topology> {
        self.topology.clone()
    }

    /// Becomes a member, now or when etcd answers.
    pub fn enter(&self) {
        self.wish.send_replace(Wish::Stay);
    }

    /// Leaves the topology, and waits until that is known or clear that it will not be soon.
    pub async fn leave(&self) {
        self.wish.send_replace(Wish::Leave);
        let mut health = self.health.clone();
        if self.kind == Kind::Etcd
            && tokio::time::timeout(LEAVE, health.wait_for(|h| !h.registered)).await.is_err()
        {
            tracing::info!("etcd does not take this node's leave: its lease will run out");
        }
    }

    /// Takes the node's keys away, and waits for that for a moment: their lease runs out by itself.
    pub async fn go(&self) {
        self.wish.send_replace(Wish::Go);
        if self.kind == Kind::Etcd {
            tokio::time::timeout(GO, self.wish.closed()).await.ok();
        }
    }

    /// Tells readers which segments to read from further nodes too.
    pub fn say_hot(&self, segments: Vec<v1::HotSegment>) {
        self.hot.send_if_modified(|said| {
            let news = *said != segments;
            *said = segments;
            news
        });
    }

    /// Whether [`Membership::say_hot`] reaches anybody.
    pub fn can_say_hot(&self) -> bool {
        self.kind == Kind::Etcd
    }

    /// Sets how many copies of what lies under a URI the cluster is to hold; 0: as of all else. `Invalid` without etcd,
    /// which keeps that.
    pub async fn set_replicas(&self, uri: &str, replicas: u32) -> Result<(), Error> {
        let Some(settings) = &self.settings else {
            return Err(Error::invalid(
                "this cluster has no etcd to keep the number of replicas of a dataset: set --replicas on its nodes",
            ));
        };
        etcd::set_replicas(settings, uri, replicas).await
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
        let silent = if health.connected { 0.0 } else { health.since.elapsed().as_secs_f64() };
        v1::MembershipStatus {
            kind: self.kind.into(),
            connected: health.connected,
            silent_s: silent,
            error: health.error,
            registered: health.registered,
            revision: topology.revision,
            nodes: topology.nodes.len() as u64,
            draining: false,
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Shared {
    /// Notes that etcd answered; says so if it did not before.
    fn reached(&self, url: &str) {
        let was = self.health.borrow().connected;
        if !was {
            tracing::info!(etcd = url, "etcd answers");
            self.health
                .send_modify(|h| (h.connected, h.since, h.error) = (true, Instant::now(), String::new()));
        }
    }

    /// Notes that etcd does not answer; says so if it has not for a while: a connection may just have broken.
    fn lost(&self, error: &str) {
        self.health.send_modify(|h| {
            if h.connected {
                (h.connected, h.since, h.told) = (false, Instant::now(), false);
            }
            h.error = error.to_owned();
            if !h.told && h.since.elapsed() >= TELL {
                h.told = true;
                tracing::warn!(error, "etcd does not answer: the topology stays as it is, trying again");
            }
        });
    }

    /// Notes that this node put its key, which made `revision`.
    fn registered(&self, revision: i64) {
        self.health.send_modify(|h| (h.registered, h.registered_at) = (true, revision));
    }

    /// Notes that this node's key is gone, or may be.
    fn unregistered(&self) {
        self.health.send_if_modified(|h| std::mem::take(&mut h.registered));
    }

    fn refuse(&self, error: Error) {
        self.health.send_modify(|h| h.refused = Some(error));
    }
}
