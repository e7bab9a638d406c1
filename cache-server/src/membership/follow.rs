//! Follows the nodes in etcd and tells the topology: a list, then a watch from the revision after it, for ever.
//!
//! Whatever ends the watch (a restart, a lost quorum, compaction), the answer is the same: list anew.

use super::Shared;
use super::etcd::{CALL, PAUSES, call, connect, failed};
use super::roster::{Member, Roster};
use etcd_client::{EventType, GetOptions, WatchOptions, WatchResponse};
use forebay_proto::{Error, v1};
use std::time::Instant;
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until};

/// Keeps the topology current until the task is aborted.
pub(super) async fn run(shared: Shared, topology: watch::Sender<v1::Topology>) {
    let mut follower = Follower { shared, topology, roster: Roster::default(), cluster: 0, revision: 0 };
    let (mut attempt, mut pause) = (0, PAUSES.0);
    loop {
        let began = Instant::now();
        let Err(error) = follower.follow(attempt).await;
        follower.shared.lost(&error);
        attempt += 1;
        if began.elapsed() > 2 * CALL {
            pause = PAUSES.0;
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

struct Follower {
    shared: Shared,
    topology: watch::Sender<v1::Topology>,
    roster: Roster,
    cluster: u64,
    /// The last one heard of.
    revision: i64,
}

impl Follower {
    async fn follow(&mut self, attempt: usize) -> Result<std::convert::Infallible, String> {
        let (mut client, url) = connect(&self.shared.settings, attempt).await?;
        let prefix = self.shared.settings.nodes();
        let list = call(&url, client.get(prefix.as_str(), Some(GetOptions::new().with_prefix()))).await?;
        let header = list.header().ok_or_else(|| format!("{url}: an answer without a header"))?;
        self.revision = header.revision();
        self.cluster = header.cluster_id();
        let read = |kv: &etcd_client::KeyValue| self.read(&prefix, kv.key(), kv.value());
        let members: Vec<Member> = list.kvs().iter().filter_map(read).collect();
        members.iter().for_each(|member| self.check(member));
        self.roster.replace(members, Instant::now());
        self.shared.reached(&url);
        self.tell();
        let options = WatchOptions::new().with_prefix().with_start_revision(self.revision + 1);
        let mut changes = call(&url, client.watch(prefix.as_str(), Some(options))).await?;
        loop {
            let settled = self.roster.next();
            let change = tokio::select! {
                change = changes.message() => change.map_err(|e| failed(&url, &e))?,
                () = sleep_until(settled.unwrap_or_else(Instant::now).into()), if settled.is_some() => {
                    if self.roster.settle(Instant::now()) {
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

    fn change(&mut self, prefix: &str, change: &WatchResponse) {
        for event in change.events() {
            let Some(kv) = event.kv() else { continue };
            match event.event_type() {
                EventType::Put => {
                    if let Some(member) = self.read(prefix, kv.key(), kv.value()) {
                        self.check(&member);
                        self.roster.put(member);
                    }
                }
                EventType::Delete => {
                    if let Some(name) = name(prefix, kv.key()) {
                        self.roster.remove(name, Instant::now());
                    }
                }
            }
            self.revision = kv.mod_revision();
            self.tell();
        }
    }

    fn read(&self, prefix: &str, key: &[u8], value: &[u8]) -> Option<Member> {
        let member = Member::read(name(prefix, key)?, value);
        if member.is_none() {
            let key = String::from_utf8_lossy(key);
            tracing::warn!(%key, "a key in etcd is no node's: is another program using this prefix?");
        }
        member
    }

    /// This node's own key must hold this process: another one with its name came later.
    fn check(&self, member: &Member) {
        let me = &self.shared.me;
        let ours = self.shared.health.borrow().registered;
        if member.name == me.name && member.instance != me.instance && ours {
            self.shared.refuse(Error::invalid(format!(
                "another node took this one's name, `{}`, and is at {}: give each its own --node",
                me.name, member.address
            )));
        }
    }

    /// Tells the topology if it changed.
    fn tell(&self) {
        let nodes = self.roster.nodes();
        self.topology.send_if_modified(|t| {
            let known = t.revision > 0 && t.cluster == self.cluster;
            if nodes.is_empty() && !known || known && t.nodes == nodes {
                return false;
            }
            tracing::info!(revision = self.revision, nodes = nodes.len(), "the topology changed");
            *t = v1::Topology { revision: self.revision.max(1) as u64, nodes, cluster: self.cluster };
            true
        });
    }
}

fn name<'a>(prefix: &str, key: &'a [u8]) -> Option<&'a str> {
    std::str::from_utf8(key).ok()?.strip_prefix(prefix).filter(|name| !name.is_empty())
}
