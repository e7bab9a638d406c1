//! What the node and the tasks that talk to etcd tell each other.

use super::etcd::EtcdSettings;
use super::node_set::Member;
use forebay_proto::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long etcd does not answer before that is worth a warning.
const TELL: Duration = Duration::from_secs(3);

/// Whether this node wants to be in the topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    Stay,
    /// Takes no readers any more, but is still there for other nodes.
    Leave,
    /// Ends.
    Go,
}

/// How things stand with etcd.
#[derive(Debug, Clone)]
pub struct EtcdHealth {
    /// It answers.
    pub connected: bool,
    /// Since when that is so.
    pub since: Instant,
    /// Why it does not.
    pub error: String,
    /// That it does not was said in the log.
    pub told: bool,
    /// This node's key is there, under a lease that was kept alive when last tried.
    pub registered: bool,
    /// etcd's revision when this node last put its key. Earlier values of the key are a predecessor's.
    pub registered_at: i64,
    /// This node cannot be a member: another one has its name.
    pub refused: Option<Error>,
}

/// What the two tasks that talk to etcd share.
#[derive(Debug, Clone)]
pub struct EtcdContext {
    pub settings: Arc<EtcdSettings>,
    pub me: Member,
    pub health: watch::Sender<EtcdHealth>,
}

impl EtcdContext {
    /// Notes that etcd answered; says so if it did not before.
    pub fn reached(&self, url: &str) {
        let was = self.health.borrow().connected;
        if !was {
            tracing::info!(etcd = url, "etcd answers");
            self.health
                .send_modify(|h| (h.connected, h.since, h.error) = (true, Instant::now(), String::new()));
        }
    }

    /// Notes that etcd does not answer; says so if it has not for a while: a connection may just have broken.
    pub fn lost(&self, error: &str) {
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
    pub fn registered(&self, revision: i64) {
        self.health.send_modify(|h| (h.registered, h.registered_at) = (true, revision));
    }

    /// Notes that this node's key is gone, or may be.
    pub fn unregistered(&self) {
        self.health.send_if_modified(|h| std::mem::take(&mut h.registered));
    }

    pub fn refuse(&self, error: Error) {
        self.health.send_modify(|h| h.refused = Some(error));
    }
}
