//! This node's key in etcd: put under a lease, kept alive, put again when the lease is lost, marked on
//! leaving and taken away when the node ends. Beside it, under the same lease, the segments that this node's
//! readers are to spread.
//!
//! A lease that may be lost is not asked after: a new one is granted and the key moves to it. The old one
//! runs out with nothing attached.

use super::context::{EtcdContext, Intent};
use super::etcd::{BACKOFF, HOT, NODES, call, connect, failed, key};
use super::node_set::Member;
use etcd_client::{Client, Compare, CompareOp, PutOptions, Txn, TxnOp};
use forebay_proto::{Error, v1};
use prost::Message as _;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval, sleep, sleep_until};

/// Keeps this node's key as wished until the task is aborted.
pub(super) async fn run(
    context: EtcdContext,
    mut intents: watch::Receiver<Intent>,
    hot: watch::Receiver<Vec<v1::HotSegment>>,
) {
    let mut registrar = Registrar { context, hot, held_since: None, was_registered: false };
    let (mut attempt, mut backoff) = (0, BACKOFF);
    loop {
        let intent = intents.wait_for(|intent| *intent != Intent::Leave).await.map(|intent| *intent);
        if !matches!(intent, Ok(Intent::Stay)) {
            return;
        }
        match registrar.stay(attempt, &mut intents).await {
            Ok(()) => {
                backoff.reset();
                continue;
            }
            Err(error) => tracing::debug!(error, "this node's key in etcd cannot be kept, trying again"),
        }
        attempt += 1;
        if registrar.context.health.borrow().registered_at.is_some() {
            backoff.reset();
        }
        registrar.context.unregistered();
        sleep(backoff.next()).await;
    }
}

struct Registrar {
    context: EtcdContext,
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

/// What a registered node has to react to.
#[derive(Debug)]
enum RegistrarEvent<E> {
    /// `None`: the node is gone.
    Intent(Option<Intent>),
    /// The lease is to be kept alive.
    Beat,
    /// The lease's seconds to live; `None`: etcd ended the stream.
    Answer(Result<Option<i64>, E>),
    /// etcd did not answer in time.
    Silence,
    /// Other segments are hot.
    Hot,
}

/// The next event, the node's own intent first. `deadline` is that of the answer to the last beat; without
/// one no answer is due.
async fn next_event<E>(
    intents: &mut watch::Receiver<Intent>,
    hot: &mut watch::Receiver<Vec<v1::HotSegment>>,
    beat: &mut Interval,
    deadline: Option<Instant>,
    answer: impl Future<Output = Result<Option<i64>, E>>,
) -> RegistrarEvent<E> {
    tokio::select! {
        biased;
        changed = intents.changed() => {
            RegistrarEvent::Intent(changed.is_ok().then(|| *intents.borrow_and_update()))
        }
        answer = answer, if deadline.is_some() => RegistrarEvent::Answer(answer),
        () = sleep_until(deadline.unwrap_or_else(Instant::now).into()), if deadline.is_some() => {
            RegistrarEvent::Silence
        }
        // Before hot segments, which may change all the time.
        _ = beat.tick(), if deadline.is_none() => RegistrarEvent::Beat,
        Ok(()) = hot.changed() => RegistrarEvent::Hot,
    }
}

impl Registrar {
    /// Registers and stays until the node is to go, or to come back after it has left.
    async fn stay(&mut self, attempt: usize, intents: &mut watch::Receiver<Intent>) -> Result<(), String> {
        let (mut client, url) = connect(&self.context.settings, attempt).await?;
        let ttl = self.context.settings.lease_ttl_s;
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
        self.context.health.send_modify(|h| h.registered_at = Some(revision));
        tracing::info!(etcd = url, lease_ttl_s = ttl, node = self.context.me.name, "registered");
        let limit = Duration::from_secs(ttl);
        let (mut keeper, mut answers) = call(&url, client.lease_keep_alive(lease)).await?;
        self.hot.mark_changed();
        let mut beat = interval(limit / 3);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut deadline = None;
        loop {
            let answer = async { answers.message().await.map(|a| a.map(|a| a.ttl())) };
            match next_event(intents, &mut self.hot, &mut beat, deadline, answer).await {
                RegistrarEvent::Intent(Some(Intent::Leave)) => self.leave(&mut client, &url, lease).await?,
                RegistrarEvent::Intent(Some(Intent::Go)) => return self.go(&mut client, &url, lease).await,
                RegistrarEvent::Intent(Some(Intent::Stay) | None) => return Ok(()),
                RegistrarEvent::Beat => {
                    keeper.keep_alive().await.map_err(|e| failed(&url, &e))?;
                    deadline = Some(Instant::now() + limit);
                }
                RegistrarEvent::Answer(Ok(Some(ttl))) if ttl > 0 => deadline = None,
                RegistrarEvent::Answer(Ok(_)) => return Err(format!("{url}: the lease is lost")),
                RegistrarEvent::Answer(Err(e)) => return Err(failed(&url, &e)),
                RegistrarEvent::Silence => return Err(format!("{url}: no answer within {ttl} s")),
                RegistrarEvent::Hot => {
                    // Without it readers go on as they did. That etcd is away is logged elsewhere.
                    if let Err(error) = self.put_hot(&mut client, &url, lease).await {
                        tracing::info!(error, "readers could not be told of hot segments");
                    }
                }
            }
        }
    }

    /// Puts the key unless another process has the name. A predecessor at the same address is one that has
    /// ended.
    async fn put(&self, client: &mut Client, url: &str, lease: i64) -> Result<Put, String> {
        let me = &self.context.me;
        let key = key(&self.context.settings, NODES, &me.name);
        for _ in 0..3 {
            let found = call(url, client.get(key.as_str(), None)).await?.kvs().first().cloned();
            if let Some(other) = found.as_ref().and_then(|found| Member::read(&me.name, found.value())) {
                let predecessor = other.address == me.address && !self.was_registered;
                if other.instance != me.instance && !other.leaving && !predecessor {
                    return Ok(Put::Held(other));
                }
            }
            // 0: there is none.
            let revision = found.map_or(0, |found| found.mod_revision());
            let same = Compare::mod_revision(key.as_str(), CompareOp::Equal, revision);
            let with_lease = Some(PutOptions::new().with_lease(lease));
            let put = TxnOp::put(key.as_str(), me.value(), with_lease);
            let answer = call(url, client.txn(Txn::new().when([same]).and_then([put]))).await?;
            if answer.succeeded() {
                let header = answer.header().ok_or_else(|| format!("{url}: an answer without a header"))?;
                return Ok(Put::Done(header.revision()));
            }
        }
        Err(format!("{url}: the key {key} changes all the time"))
    }

    /// The name is another's: one that has died lets go of it when its lease runs out; a live one never does.
    fn held(&mut self, other: &Member) {
        let ttl = Duration::from_secs(self.context.settings.lease_ttl_s);
        let since = *self.held_since.get_or_insert_with(|| {
            tracing::info!(node = other.name, by = other.address, "the name is taken: waiting for its lease");
            Instant::now()
        });
        // Twice: the other one may have been started with a longer lease.
        if self.was_registered || since.elapsed() > 2 * ttl + Duration::from_secs(2) {
            self.context.refuse(Error::invalid(format!(
                "the node name `{}` is taken by a live node at {}: give this one another --node",
                other.name, other.address
            )));
        }
    }

    /// Says that this node takes no readers any more.
    async fn leave(&mut self, client: &mut Client, url: &str, lease: i64) -> Result<(), String> {
        let me = Member { leaving: true, ..self.context.me.clone() };
        let key = key(&self.context.settings, NODES, &me.name);
        let with_lease = Some(PutOptions::new().with_lease(lease));
        call(url, client.put(key, me.value(), with_lease)).await?;
        self.was_registered = false;
        self.context.unregistered();
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
    async fn put_hot(&mut self, client: &mut Client, url: &str, lease: i64) -> Result<(), String> {
        let segments = self.hot.borrow_and_update().clone();
        let key = key(&self.context.settings, HOT, &self.context.me.name);
        if segments.is_empty() {
            return call(url, client.delete(key, None)).await.map(drop);
        }
        let value = v1::HotSegments { segments }.encode_to_vec();
        let with_lease = Some(PutOptions::new().with_lease(lease));
        call(url, client.put(key, value, with_lease)).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use tokio::time::timeout;

    #[tokio::test]
    async fn a_node_that_waits_for_etcd_hears_that_it_is_to_leave() {
        let (intent, mut intents) = watch::channel(Intent::Stay);
        let (hot, mut hot_seen) = watch::channel(Vec::new());
        let mut beat = interval(Duration::from_secs(60));
        beat.tick().await;
        let deadline = Some(Instant::now() + Duration::from_secs(60));
        let mut next = async || {
            let answer = std::future::pending::<Result<_, Infallible>>();
            let next = next_event(&mut intents, &mut hot_seen, &mut beat, deadline, answer);
            timeout(Duration::from_secs(5), next).await.unwrap()
        };
        hot.send(vec![v1::HotSegment::default()]).unwrap();
        assert!(matches!(next().await, RegistrarEvent::Hot));
        hot.send(Vec::new()).unwrap();
        intent.send(Intent::Leave).unwrap();
        assert!(matches!(next().await, RegistrarEvent::Intent(Some(Intent::Leave))));
    }
}
