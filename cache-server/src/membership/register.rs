//! This node's key in etcd: put under a lease, kept alive, put again when the lease is lost, taken away on leaving.
//!
//! A lease that may be lost is not asked after: a new one is granted and the key moves to it. The old one runs out
//! with nothing attached.

use super::etcd::{PAUSES, call, connect, failed};
use super::roster::Member;
use super::{Shared, Wish};
use etcd_client::{Client, Compare, CompareOp, PutOptions, Txn, TxnOp, TxnOpResponse};
use forebay_proto::Error;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// Keeps this node's key as wished until the task is aborted.
pub(super) async fn run(shared: Shared, mut wishes: watch::Receiver<Wish>) {
    let mut registrar = Registrar { shared, held_since: None, was_registered: false };
    let (mut attempt, mut pause) = (0, PAUSES.0);
    while wishes.wait_for(|wish| *wish == Wish::Stay).await.map(|_| ()).is_ok() {
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
        registrar.shared.registered(false);
        sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

struct Registrar {
    shared: Shared,
    /// Since when the name is seen in another's hands.
    held_since: Option<Instant>,
    was_registered: bool,
}

/// How putting the key ended.
enum Put {
    Done,
    /// The name is another's.
    Held(Member),
}

impl Registrar {
    /// Registers and stays until leaving is wished for.
    async fn stay(&mut self, attempt: usize, wishes: &mut watch::Receiver<Wish>) -> Result<(), String> {
        let (mut client, url) = connect(&self.shared.settings, attempt).await?;
        let ttl = self.shared.settings.lease_ttl_s;
        let lease = call(&url, client.lease_grant(ttl as i64, None)).await?.id();
        if let Put::Held(other) = self.put(&mut client, &url, lease).await? {
            self.held(&other);
            call(&url, client.lease_revoke(lease)).await?;
            return Err(format!("the name {} is taken by {}", other.name, other.address));
        }
        self.held_since = None;
        self.was_registered = true;
        self.shared.registered(true);
        tracing::info!(etcd = url, lease_ttl_s = ttl, node = self.shared.me.name, "registered");
        let limit = Duration::from_secs(ttl);
        let (mut keeper, mut answers) = call(&url, client.lease_keep_alive(lease)).await?;
        loop {
            let leaving = async { wishes.wait_for(|wish| *wish == Wish::Leave).await.map(|_| ()) };
            if timeout(limit / 3, leaving).await.is_ok() {
                return self.leave(&mut client, &url, lease).await;
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
        let key = format!("{}{}", self.shared.settings.nodes(), me.name);
        let put = || TxnOp::put(key.as_str(), me.value(), Some(PutOptions::new().with_lease(lease)));
        let mut when = Compare::version(key.as_str(), CompareOp::Equal, 0);
        for _ in 0..3 {
            let get = TxnOp::get(key.as_str(), None);
            let txn = Txn::new().when([when]).and_then([put()]).or_else([get]);
            let answer = call(url, client.txn(txn)).await?;
            if answer.succeeded() {
                return Ok(Put::Done);
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

    /// Says that this node goes, then takes its key away.
    async fn leave(&mut self, client: &mut Client, url: &str, lease: i64) -> Result<(), String> {
        let me = Member { leaving: true, ..self.shared.me.clone() };
        let key = format!("{}{}", self.shared.settings.nodes(), me.name);
        let with_lease = Some(PutOptions::new().with_lease(lease));
        call(url, client.put(key, me.value(), with_lease)).await?;
        call(url, client.lease_revoke(lease)).await?;
        self.was_registered = false;
        self.shared.registered(false);
        tracing::info!("left the topology");
        Ok(())
    }
}
