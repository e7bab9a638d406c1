//! Follows the nodes in etcd and tells the topology: a list, then a watch from the revision after it, for
//! ever.
//!
//! After any end of the watch (a restart, a lost quorum, compaction) it lists again. Of keys beyond what
//! [`NodeSet`] has room for the oldest count; when there is room again, it lists again too.

use super::context::EtcdContext;
use super::etcd::{BACKOFF, CALL, HOT, NODES, REPLICAS, call, connect, failed, key};
use super::left_out::{LeftOut, Why};
use super::node_set::{DATASETS_MAX, HOT_MAX, Member, NODES_MAX, NodeSet};
use etcd_client::{
    Client, EventType, GetOptions, KeyValue, SortOrder, SortTarget, WatchOptions, WatchResponse,
};
use forebay_proto::{Backoff, Error, v1};
use prost::Message as _;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until};

/// How long etcd does not answer before that is worth a warning.
const TELL: Duration = Duration::from_secs(3);

/// Keys that are listed at most.
const LIST_MAX: usize = NODES_MAX + DATASETS_MAX + HOT_MAX;

/// Bytes of a key and its value at most; of one with hot segments.
const BYTES_MAX: usize = 8 << 10;
const HOT_BYTES_MAX: usize = 256 << 10;

/// Segments and names of nodes among hot segments at most: those of 512, with 16 copies each, and some more.
const HOT_NAMES_MAX: usize = 10_000;

/// Before all is listed again because there is room for more keys, which all nodes find out at once.
const RELIST: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(1));

/// Keeps the topology current until the task is aborted.
pub(super) async fn run(context: EtcdContext, topology: watch::Sender<v1::Topology>) {
    let mut follower = Follower::new(context, topology);
    let (mut attempt, mut backoff) = (0, BACKOFF);
    loop {
        let began = Instant::now();
        let Err(error) = follower.follow(attempt).await;
        follower.lost(error);
        attempt += 1;
        if began.elapsed() > 2 * CALL {
            backoff.reset();
        }
        sleep(backoff.next()).await;
    }
}

struct Follower {
    context: EtcdContext,
    topology: watch::Sender<v1::Topology>,
    nodes: NodeSet,
    cluster: u64,
    /// The last one heard of.
    revision: i64,
    /// That etcd does not answer was said in the log.
    told_silent: bool,
    left_out: LeftOut,
    /// There was no room for a key since all were listed.
    is_full: bool,
}

impl Follower {
    fn new(context: EtcdContext, topology: watch::Sender<v1::Topology>) -> Self {
        Self {
            context,
            topology,
            nodes: NodeSet::default(),
            cluster: 0,
            revision: 0,
            told_silent: false,
            left_out: LeftOut::default(),
            is_full: false,
        }
    }

    async fn follow(&mut self, attempt: usize) -> Result<std::convert::Infallible, String> {
        let (mut client, url) = connect(&self.context.settings, attempt).await?;
        let (prefix, mut relist) = (key(&self.context.settings, "", ""), RELIST);
        loop {
            self.list(&mut client, &url, &prefix).await?;
            self.watch(&mut client, &url, &prefix).await?;
            sleep(relist.next()).await;
        }
    }

    async fn list(&mut self, client: &mut Client, url: &str, prefix: &str) -> Result<(), String> {
        let oldest = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend);
        let list = call(url, client.get(prefix, Some(oldest.with_limit(LIST_MAX as i64)))).await?;
        let header = list.header().ok_or_else(|| format!("{url}: an answer without a header"))?;
        self.revision = header.revision();
        self.cluster = header.cluster_id();
        let names = list.kvs().iter().filter_map(|kv| parse(prefix, kv.key()));
        let names: Vec<&str> = names.filter(|(kind, _)| *kind == NODES).map(|(_, name)| name).collect();
        self.nodes.relist(&names, Instant::now());
        self.is_full = false;
        list.kvs().iter().for_each(|kv| _ = self.take(prefix, kv, Some(kv.value())));
        if list.more() {
            self.leave_out(Why::TooMany, "all that follow");
        }
        self.reached(url);
        self.tell();
        Ok(())
    }

    /// Goes by changes until there may be room for keys that were left out.
    async fn watch(&mut self, client: &mut Client, url: &str, prefix: &str) -> Result<(), String> {
        let options = WatchOptions::new().with_prefix().with_start_revision(self.revision + 1);
        let mut changes = call(url, client.watch(prefix, Some(options))).await?;
        loop {
            let settled = self.nodes.next();
            let change = tokio::select! {
                change = changes.message() => change.map_err(|e| failed(url, &e))?,
                () = sleep_until(settled.unwrap_or_else(Instant::now).into()), if settled.is_some() => {
                    if self.nodes.settle(Instant::now()) {
                        self.tell();
                        if self.is_full {
                            return Ok(());
                        }
                    }
                    continue;
                }
            };
            match change {
                Some(change) if change.canceled() => {
                    return Err(format!("{url}: the watch was cancelled: {}", change.cancel_reason()));
                }
                Some(change) => self.change(prefix, &change),
                None => return Err(format!("{url}: the watch ended")),
            }
        }
    }

    /// Notes that etcd answers; says so if it did not before.
    fn reached(&mut self, url: &str) {
        self.told_silent = false;
        if self.context.health.send_if_modified(|h| h.silent.take().is_some()) {
            tracing::info!(etcd = url, "etcd answers");
        }
    }

    /// Notes that etcd does not answer; says so if it has not for a while: a connection may just have broken.
    fn lost(&mut self, error: String) {
        let since = self.context.health.borrow().silent.as_ref().map(|(at, _)| *at);
        if since.is_none() {
            tracing::info!(error, "the watch of etcd broke off");
        }
        let since = since.unwrap_or_else(Instant::now);
        if !self.told_silent && since.elapsed() >= TELL {
            self.told_silent = true;
            tracing::warn!(error, "etcd does not answer: the topology stays as it is, trying again");
        }
        self.context.health.send_modify(|h| h.silent = Some((since, error)));
    }

    fn change(&mut self, prefix: &str, change: &WatchResponse) {
        let mut is_any_taken = false;
        for event in change.events() {
            let Some(kv) = event.kv() else { continue };
            let value = match event.event_type() {
                EventType::Put => Some(kv.value()),
                EventType::Delete => None,
            };
            is_any_taken |= self.take(prefix, kv, value);
            self.revision = kv.mod_revision();
        }
        // A flood of keys must not have the whole topology made for each.
        if is_any_taken {
            self.tell();
        }
    }

    /// Takes what a key says; without a value it was deleted. False if the key counts for nothing.
    fn take(&mut self, prefix: &str, kv: &KeyValue, value: Option<&[u8]>) -> bool {
        let taken = self.understand(prefix, kv, value);
        if let Err(why) = taken {
            self.leave_out(why, &String::from_utf8_lossy(kv.key()));
        }
        taken.is_ok()
    }

    fn leave_out(&mut self, why: Why, key: &str) {
        self.is_full |= why == Why::TooMany;
        self.left_out.note(why, key, Instant::now());
    }

    fn understand(&mut self, prefix: &str, kv: &KeyValue, value: Option<&[u8]>) -> Result<(), Why> {
        let (kind, name) = parse(prefix, kv.key()).ok_or(Why::NoSense)?;
        let max = if kind == HOT { HOT_BYTES_MAX } else { BYTES_MAX };
        if kv.key().len() + value.unwrap_or_default().len() > max {
            return Err(Why::NoSense);
        }
        let has_room = match (kind, value) {
            (NODES, Some(value)) => {
                let member = Member::read(name, value).ok_or(Why::NoSense)?;
                return self.member(member, kv.mod_revision());
            }
            (NODES, None) => {
                self.nodes.remove(name, Instant::now());
                true
            }
            (REPLICAS, value) => {
                let number = |n| std::str::from_utf8(n).ok()?.parse().ok();
                let replicas = value.map(|n| number(n).ok_or(Why::NoSense)).transpose()?;
                self.nodes.set_replicas(name, replicas)
            }
            (_, value) => self.nodes.set_hot(name, hot(value.unwrap_or_default()).ok_or(Why::NoSense)?),
        };
        has_room.then_some(()).ok_or(Why::TooMany)
    }

    /// A node's key, as it was put at a revision.
    fn member(&mut self, member: Member, revision: i64) -> Result<(), Why> {
        self.check(&member, revision);
        // Who can write to etcd must not have nodes and readers speak without TLS.
        if is_https(&self.context.me.address) && !is_https(&member.address) {
            self.nodes.remove(&member.name, Instant::now());
            return Err(Why::NoTls);
        }
        self.nodes.put(member).then_some(()).ok_or(Why::TooMany)
    }

    /// This node's own key must hold this process, or another one with its name came later. A value from
    /// before this node put its key is its predecessor's: the list may have been asked for earlier than that,
    /// and be heard after it.
    fn check(&self, member: &Member, revision: i64) {
        let me = &self.context.me;
        let is_later = self.context.health.borrow().registered_at.is_some_and(|at| revision > at);
        if member.name == me.name && member.instance != me.instance && is_later {
            self.context.refuse(Error::invalid(format!(
                "another node took this one's name, `{}`, and is at {}: give each its own --node",
                me.name, member.address
            )));
        }
    }

    /// Tells the topology if it changed.
    fn tell(&self) {
        let told = v1::Topology { cluster: self.cluster, ..self.nodes.topology() };
        self.topology.send_if_modified(|t| {
            let known = t.revision > 0 && t.cluster == self.cluster;
            let told = v1::Topology { revision: t.revision, ..told };
            if told.nodes.is_empty() && !known || known && *t == told {
                return false;
            }
            if t.nodes != told.nodes {
                tracing::info!(revision = self.revision, nodes = told.nodes.len(), "the topology changed");
            }
            *t = v1::Topology { revision: self.revision.max(1) as u64, ..told };
            true
        });
    }
}

/// The hot segments of a node.
fn hot(value: &[u8]) -> Option<Vec<v1::HotSegment>> {
    let segments = v1::HotSegments::decode(value).ok()?.segments;
    let names: usize = segments.iter().map(|segment| segment.nodes.len()).sum();
    (segments.len() + names <= HOT_NAMES_MAX).then_some(segments)
}

fn is_https(address: &str) -> bool {
    address.starts_with("https://")
}

/// What a key is about, and its name.
fn parse<'a>(prefix: &str, key: &'a [u8]) -> Option<(&'static str, &'a str)> {
    let rest = std::str::from_utf8(key).ok()?.strip_prefix(prefix)?;
    let kinds = [NODES, REPLICAS, HOT].into_iter();
    let named = |kind: &'static str| Some((kind, rest.strip_prefix(kind).filter(|name| !name.is_empty())?));
    kinds.filter_map(named).next()
}

#[cfg(test)]
mod tests {
    use super::super::context::EtcdHealth;
    use super::*;
    use crate::settings::ClusterSettings;
    use std::sync::Arc;

    /// A follower of node `a`, which put its key at this revision.
    fn follower(registered_at: i64) -> (Follower, watch::Receiver<EtcdHealth>) {
        let node = v1::Node { name: "a".into(), address: "http://a:1".into(), ..Default::default() };
        let settings = ClusterSettings::default();
        let health = EtcdHealth { registered_at: Some(registered_at), ..Default::default() };
        let (health, seen) = watch::channel(health);
        let context = EtcdContext { settings: Arc::new(settings), me: Member::new(node, 1), health };
        let topology = watch::channel(v1::Topology::default()).0;
        (Follower { cluster: 1, ..Follower::new(context, topology) }, seen)
    }

    #[test]
    fn a_node_with_tls_believes_in_no_node_without() {
        let (mut follower, _health) = follower(10);
        follower.context.me.address = "https://a:1".into();
        let member = |name: &str, address: &str| Member {
            name: name.into(),
            address: address.into(),
            ..follower.context.me.clone()
        };
        let all = [member("a", "https://a:1"), member("b", "http://b:1"), member("c", "https://c:1")];
        let taken = all.map(|member| follower.member(member, 9).is_ok());
        assert_eq!(taken, [true, false, true]);
        let nodes = follower.nodes.topology().nodes;
        assert_eq!(nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(), ["a", "c"]);
    }

    #[test]
    fn hot_segments_are_not_without_end() {
        let of = |segments: usize| {
            let segment = v1::HotSegment { nodes: vec!["a".into()], ..Default::default() };
            hot(&v1::HotSegments { segments: vec![segment; segments] }.encode_to_vec())
        };
        assert_eq!(of(HOT_NAMES_MAX / 2).map(|segments| segments.len()), Some(HOT_NAMES_MAX / 2));
        assert_eq!(of(HOT_NAMES_MAX / 2 + 1), None);
    }

    #[test]
    fn a_predecessor_heard_of_late_is_not_taken_for_another_node() {
        let (mut follower, health) = follower(10);
        let other = Member { instance: 7, ..follower.context.me.clone() };
        follower.member(other.clone(), 9).unwrap();
        assert!(health.borrow().refused.is_none(), "a value from before its own put");
        follower.member(other, 11).unwrap();
        assert!(health.borrow().refused.is_some(), "a value from after it");
    }
}
