//! This node's key in etcd: put under a lease, kept alive, put again when the lease is lost, marked on leaving and taken
//! away when the node ends. Beside it, under the same lease, the segments that this node's readers are to spread.
//!
//! A lease that may be lost is not asked after: a new one is granted and the key moves to it. The old one runs out
//! with nothing attached.

use super::etcd::{HOT, NODES, PAUSES, call, connect, failed};
use super::roster::Member;
use super::{Shared, Wish};
use etcd_client::{Client, Compare, CompareOp, PutOptions, Txn, TxnOp, TxnOpResponse};
use forebay_proto::{Error, v1};
use prost::Message as _;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// Keeps this node's key as wished until the task is aborted.
pub(super) async fn run(
    shared: Shared,
    mut wishes: watch::Receiver<Wish>,
    hot: watch::Receiver<Vec<v1::HotSegment>>,
) {
    let mut registrar = Registrar { shared, hot, held_since: None, was_registered: false };
    let (mut attempt, mut pause) = (0, PAUSES.0);
    loop {
        let wish = wishes.wait_for(|wish| *wish != Wish::Leave).await.map(|wish| *wish);
        if !matches!(wish, Ok(Wish::Stay)) {
            return;
        }
        match registrar.stay(attempt, &mut wishes).await {
            Ok(()) => {
                pause = PAUSES.0;
                continue;
            }
            Err(error) => tracing::debug!(error, "this node's key in etcd cannot be kept, trying again"),
        }
        attempt += 1;
        if registrar.shared.health.borrow().registered {
            pause = PAUSES.0;
        }
        registrar.shared.unregistered();
        sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

struct Registrar {
    shared: Shared,
    hot: watch::Receiver<Vec<v1::HotSegment>>,
    /// Since when the name is seen in another's hands.
    held_since: Option<Instant>,
    was_registered: bool,
}

/// How putting the key ended.
enum Put {
    /// At this revision.
    Done(i64),
    /// The name is another's.
    Held(Member),
}

impl Registrar {
    /// Registers and stays until the node is to go, or to come back after it has left.
    async fn stay(&mut self, attempt: usize, wishes: &mut watch::Receiver<Wish>) -> Result<(), String> {
        let (mut client, url) = connect(&self.shared.settings, attempt).await?;
        let ttl = self.shared.settings.lease_ttl_s;
        let lease = call(&url, client.lease_grant(ttl as i64, None)).await?.id();
        let revision = match self.put(&mut client, &url, lease).await? {
            Put::Done(revision) => revision,
            Put::Held(other) => {
                self.held(&other);
                call(&url, client.lease_revoke(lease)).await?;
                return Err(format!("the name {} is taken by {}", other.name, other.address));
            }
        };
        self.held_since = None;
        self.was_registered = true;
        self.shared.registered(revision);
        tracing::info!(etcd = url, lease_ttl_s = ttl, node = self.shared.me.name, "registered");
        let limit = Duration::from_secs(ttl);
        let (mut keeper, mut answers) = call(&url, client.lease_keep_alive(lease)).await?;
        self.hot.mark_changed();
        let mut beat = interval(limit / 3);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                wished = wishes.changed() => {
                    let wish = *wishes.borrow_and_update();
                    match wish {
                        _ if wished.is_err() => return Ok(()),
                        Wish::Leave => self.leave(&mut client, &url, lease).await?,
                        Wish::Stay => return Ok(()),
                        Wish::Go => return self.go(&mut client, &url, lease).await,
                    }
                    continue;
                }
                // However often there is something to say.
                _ = beat.tick() => {}
                Ok(()) = self.hot.changed() => {
                    // Readers then go on as they did. That etcd is away is said elsewhere.
                    if let Err(error) = self.say_hot(&mut client, &url, lease).await {
                        tracing::info!(error, "readers could not be told of hot segments");
                    }
                    continue;
                }
            }
            keeper.keep_alive().await.map_err(|e| failed(&url, &e))?;
            let answer = timeout(limit, answers.message()).await;
            match answer
                .map_err(|_| format!("{url}: no answer within {ttl} s"))?
                .map_err(|e| failed(&url, &e))?
            {
                Some(answer) if answer.ttl() > 0 => {}
                _ => return Err(format!("{url}: the lease is lost")),
            }
        }
    }

    /// Puts the key unless another process has the name. A predecessor at the same address is one that has ended.
    async fn put(&self, client: &mut Client, url: &str, lease: i64) -> Result<Put, String> {
        let me = &self.shared.me;
        let key = self.shared.settings.key(NODES, &me.name);
        let put = || TxnOp::put(key.as_str(), me.value(), Some(PutOptions::new().with_lease(lease)));
        let mut when = Compare::version(key.as_str(), CompareOp::Equal, 0);
        for _ in 0..3 {
            let get = TxnOp::get(key.as_str(), None);
            let txn = Txn::new().when([when]).and_then([put()]).or_else([get]);
            let answer = call(url, client.txn(txn)).await?;
            if answer.succeeded() {
                let header = answer.header().ok_or_else(|| format!("{url}: an answer without a header"))?;
                return Ok(Put::Done(header.revision()));
            }
            let found = answer.op_responses().into_iter().find_map(|response| match response {
                TxnOpResponse::Get(get) => get.kvs().first().cloned(),
                _ => None,
            });
            let Some(found) = found else {
                when = Compare::version(key.as_str(), CompareOp::Equal, 0);
                continue;
            };
            if let Some(other) = Member::read(&me.name, found.value()) {
                let predecessor = other.address == me.address && !self.was_registered;
                if other.instance != me.instance && !other.leaving && !predecessor {
                    return Ok(Put::Held(other));
                }
            }
            when = Compare::mod_revision(key.as_str(), CompareOp::Equal, found.mod_revision());
        }
        Err(format!("{url}: the key {key} changes all the time"))
    }

    /// The name is another's: one that has died lets go of it when its lease runs out; a live one never does.
    fn held(&mut self, other: &Member) {
        let ttl = Duration::from_secs(self.shared.settings.lease_ttl_s);
        let since = *self.held_since.get_or_insert_with(|| {
            tracing::info!(node = other.name, by = other.address, "the name is taken: waiting for its lease");
            Instant::now()
        });
        // Twice: the other one may have been started with a longer lease.
        if self.was_registered || since.elapsed() > 2 * ttl + Duration::from_secs(2) {
            self.shared.refuse(Error::invalid(format!(
                "the node name `{}` is taken by a live node at {}: give this one another --node",
                other.name, other.address
            )));
        }
    }

    /// Says that this node takes no readers any more.
    async fn leave(&mut self, client: &mut Client, url: &str, lease: i64) -> Result<(), String> {
        let me = Member { leaving: true, ..self.shared.me.clone() };
        let key = self.shared.settings.key(NODES, &me.name);
        let with_lease = Some(PutOptions::new().with_lease(lease));
        call(url, client.put(key, me.value(), with_lease)).await?;
        self.was_registered = false;
        self.shared.unregistered();
        tracing::info!("left the topology");
        Ok(())
    }

    /// Takes the node's keys away.
    async fn go(&mut self, client: &mut Client, url: &str, lease: i64) -> Result<(), String> {
        if self.was_registered {
            self.leave(client, url, lease).await?;
        }
        call(url, client.lease_revoke(lease)).await.map(drop)
    }

    /// Says which segments' readers are to spread.
    async fn say_hot(&mut self, client: &mut Client, url: &str, lease: i64) -> Result<(), String> {
        let segments = self.hot.borrow_and_update().clone();
        let key = self.shared.settings.key(HOT, &self.shared.me.name);
        if segments.is_empty() {
            return call(url, client.delete(key, None)).await.map(drop);
        }
        let value = v1::HotSegments { segments }.encode_to_vec();
        let with_lease = Some(PutOptions::new().with_lease(lease));
        call(url, client.put(key, value, with_lease)).await.map(drop)
    }
}
