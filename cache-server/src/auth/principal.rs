//! Who a caller can be: its name, its roles, where it may read, what it may take.

use crate::allow::Allowed;
use serde::Deserialize;
use std::collections::BTreeSet;

/// What a principal may do. One role has nothing of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CallerRole {
    /// Reads what lies under its prefixes.
    Reader,
    /// Has it loaded, pinned and named.
    Loader,
    /// Sees all, drains nodes, frees, sets replicas.
    Operator,
    /// Reads figures of the node.
    Metrics,
    /// A node of the cluster.
    Peer,
}

impl CallerRole {
    /// As a policy has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Loader => "loader",
            Self::Operator => "operator",
            Self::Metrics => "metrics",
            Self::Peer => "peer",
        }
    }
}

/// What a principal may take, of each node.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PrincipalLimits {
    /// Datasets opened in a second.
    pub opens_per_s: Option<f64>,
    /// Bytes sent in a second.
    pub bytes_per_s: Option<u64>,
    /// Bytes of objects that are fetched in a second for what it reads.
    pub s3_bytes_per_s: Option<u64>,
    /// Bytes on the disks of what lies under its prefixes, for all readers.
    pub cache_bytes: Option<u64>,
    /// Batch streams and reads of objects at once.
    pub streams: Option<usize>,
}

/// Somebody whom the policy knows.
#[derive(Debug)]
pub struct Principal {
    pub name: String,
    pub roles: BTreeSet<CallerRole>,
    /// Where it may read; nothing lies under an empty list.
    pub prefixes: Allowed,
    pub limits: PrincipalLimits,
}

impl Principal {
    /// Whether it may all that another one may.
    pub fn may_all_of(&self, other: &Self) -> bool {
        self.name == other.name
            && self.roles.is_superset(&other.roles)
            && other.prefixes.roots().iter().all(|root| self.prefixes.covers(root))
    }
}
