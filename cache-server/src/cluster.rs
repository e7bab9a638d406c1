//! The other nodes of the cluster.
//!
//! * [`membership`]: which nodes there are, through etcd.
//! * [`peers`]: segments from another node.
//! * [`replicate`]: copies that other nodes are to hold.
//! * [`hot`]: extra copies of what is read more than one node can serve.

pub mod hot;
pub mod membership;
pub mod peers;
pub mod replicate;
