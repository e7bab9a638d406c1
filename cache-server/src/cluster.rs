//! The other nodes of the cluster.
//!
//! * [`membership`]: which nodes there are, through etcd.
//! * `ownership`: which of them own and hold which segments. `candidates`: whom to ask for one.
//! * [`peers`]: segments from another node.
//! * [`replicate`]: copies that other nodes are to hold.
//! * [`hot`]: extra copies of segments that are read more than one node can serve.

mod candidates;
pub(crate) mod hot;
pub(crate) mod membership;
pub(crate) mod ownership;
pub(crate) mod peers;
pub(crate) mod replicate;
