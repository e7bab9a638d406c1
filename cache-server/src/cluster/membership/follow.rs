//! Follows the nodes in etcd and tells the topology: a list, then a watch from the revision after it, for
//! ever.
//!
//! After any end of the watch (a restart, a lost quorum, compaction) it lists again.

use super::context::EtcdContext;
use super::etcd::{BACKOFF, CALL, HOT, NODES, REPLICAS, call, connect, failed, key};
use super::node_set::{Member, NodeSet};
use etcd_client::{EventType, GetOptions, KeyValue, WatchOptions, WatchResponse};
use forebay_proto::{Error, v1};
use prost::Message as _;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until};

/// How long etcd does not answer before that is worth a warning.
const TELL: Duration = Duration::from_secs(3);

/// Keeps the topology current until the task is aborted.
pub(super) async fn run(context: EtcdContext, topology: watch::Sender<v1::Topology>) {
    let nodes = NodeSet::default();
    let mut follower = Follower { context, topology, nodes, cluster: 0, revision: 0, told_silent: false };
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
}

impl Follower {
    async fn follow(&mut self, attempt: usize) -> Result<std::convert::Infallible, String> {
        let (mut client, url) = connect(&self.context.settings, attempt).await?;
        let prefix = key(&self.context.settings, "", "");
        let list = call(&url, client.get(prefix.as_str(), Some(GetOptions::new().with_prefix()))).await?;
        let header = list.header().ok_or_else(|| format!("{url}: an answer without a header"))?;
        self.revision = header.revision();
        self.cluster = header.cluster_id();
        let names = list.kvs().iter().filter_map(|kv| parse(&prefix, kv.key()));
        let names: Vec<&str> = names.filter(|(kind, _)| *kind == NODES).map(|(_, name)| name).collect();
        self.nodes.relist(&names, Instant::now());
        list.kvs().iter().for_each(|kv| self.take(&prefix, kv, Some(kv.value())));
        self.reached(&url);
        self.tell();
        let options = WatchOptions::new().with_prefix().with_start_revision(self.revision + 1);
        let mut changes = call(&url, client.watch(prefix.as_str(), Some(options))).await?;
        loop {
            let settled = self.nodes.next();
            let change = tokio::select! {
                change = changes.message() => change.map_err(|e| failed(&url, &e))?,
                () = sleep_until(settled.unwrap_or_else(Instant::now).into()), if settled.is_some() => {
                    if self.nodes.settle(Instant::now()) {
                        self.tell();
                    }
                    continue;
                }
            };
            match change {
                Some(change) if change.canceled() => {
                    return Err(format!("{url}: the watch was cancelled: {}", change.cancel_reason()));
                }
                Some(change) => self.change(&prefix, &change),
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
        for event in change.events() {
            let Some(kv) = event.kv() else { continue };
            let value = match event.event_type() {
                EventType::Put => Some(kv.value()),
                EventType::Delete => None,
            };
            self.take(prefix, kv, value);
            self.revision = kv.mod_revision();
            self.tell();
        }
    }

    /// Takes what a key says; without a value it was deleted.
    fn take(&mut self, prefix: &str, kv: &KeyValue, value: Option<&[u8]>) {
        if self.understand(prefix, kv, value).is_none() {
            let key = String::from_utf8_lossy(kv.key());
            tracing::warn!(%key, "a key in etcd makes no sense: is another program using this prefix?");
        }
    }

    fn understand(&mut self, prefix: &str, kv: &KeyValue, value: Option<&[u8]>) -> Option<()> {
        match (parse(prefix, kv.key())?, value) {
            ((NODES, name), Some(value)) => self.member(Member::read(name, value)?, kv.mod_revision()),
            ((NODES, name), None) => self.nodes.remove(name, Instant::now()),
            ((REPLICAS, uri), Some(n)) => {
                self.nodes.set_replicas(uri, Some(std::str::from_utf8(n).ok()?.parse().ok()?));
            }
            ((REPLICAS, uri), None) => self.nodes.set_replicas(uri, None),
            ((_, node), value) => {
                let hot = v1::HotSegments::decode(value.unwrap_or_default()).ok()?;
                self.nodes.set_hot(node, hot.segments);
            }
        }
        Some(())
    }

    /// A node's key, as it was put at a revision.
    fn member(&mut self, member: Member, revision: i64) {
        self.check(&member, revision);
        // Who can write to etcd must not have nodes and readers speak without TLS.
        if is_https(&self.context.me.address) && !is_https(&member.address) {
            tracing::warn!(
                node = member.name,
                address = member.address,
                "a node that etcd names is left out: it is not at https://, as this one is"
            );
            self.nodes.remove(&member.name, Instant::now());
            return;
        }
        self.nodes.put(member);
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
        let nodes = NodeSet::default();
        (Follower { context, topology, nodes, cluster: 1, revision: 0, told_silent: false }, seen)
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
        all.into_iter().for_each(|member| follower.member(member, 9));
        let nodes = follower.nodes.topology().nodes;
        assert_eq!(nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(), ["a", "c"]);
    }

    #[test]
    fn a_predecessor_heard_of_late_is_not_taken_for_another_node() {
        let (mut follower, health) = follower(10);
        let other = Member { instance: 7, ..follower.context.me.clone() };
        follower.member(other.clone(), 9);
        assert!(health.borrow().refused.is_none(), "a value from before its own put");
        follower.member(other, 11);
        assert!(health.borrow().refused.is_some(), "a value from after it");
    }
}
