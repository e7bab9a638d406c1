//! One process of the training: which rank it is, how it meets the others, and how it ends.
//!
//! * [`env`]: which rank this is. [`launch`]: the ranks of this machine. [`rendezvous`]: where ranks come
//!   together. [`device`]: where they compute.
//! * [`session`]: what a rank has once it has joined.
//! * [`stop`]: how all ranks end after the same step. [`failure`]: how a rank tells why it ended.

pub(crate) mod device;
pub(crate) mod env;
pub(crate) mod failure;
pub(crate) mod launch;
pub(crate) mod rendezvous;
pub(crate) mod session;
pub(crate) mod stop;
