//! What the node and the tasks that talk to etcd tell each other.

use super::node_set::Member;
use crate::settings::ClusterSettings;
use forebay_proto::Error;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;

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
#[derive(Debug, Clone, Default)]
pub struct EtcdHealth {
    /// Since when it does not answer, and why.
    pub silent: Option<(Instant, String)>,
    /// etcd's revision when this node last put its key, which is there under a lease that was kept alive when
    /// last tried. Earlier values of the key are a predecessor's. `None`: it is not there, or may be gone.
    pub registered_at: Option<i64>,
    /// This node cannot be a member: another one has its name.
    pub refused: Option<Error>,
}

/// What the two tasks that talk to etcd share.
#[derive(Debug, Clone)]
pub struct EtcdContext {
    pub settings: Arc<ClusterSettings>,
    pub me: Member,
    pub health: watch::Sender<EtcdHealth>,
}

impl EtcdContext {
    /// Notes that this node's key is gone, or may be.
    pub fn unregistered(&self) {
        self.health.send_if_modified(|h| h.registered_at.take().is_some());
    }

    pub fn refuse(&self, error: Error) {
        self.health.send_modify(|h| h.refused = Some(error));
    }
}
