//! Checkpoints: everything that a run needs to go on exactly where it was, on any number of ranks.
//!
//! A checkpoint is one directory, `step-0000001234/` below `--checkpoint-dir`:
//!
//! | file | what |
//! |---|---|
//! | `weights.safetensors` | the model's parameters and buffers, by their names |
//! | `training.safetensors` | the optimizer's state, the gradient scaler's and the schedule's, by theirs |
//! | `checkpoint.json` | [`Meta`]: the loader state, the order digests so far, and its run's identity |
//! | `CHECKSUMS` | length and xxh3-128 of each of them, and of itself; written last |
//!
//! It promises that a directory of that name is whole: it is written beside its place, flushed and renamed
//! ([`disk`]). Damage that comes later is found by the checksums, and the checkpoint before it is used. One
//! run at a time has a directory ([`folder`]). Rank 0 alone reads and writes; the others get what it read
//! ([`share`]), so the directory need not be shared between machines. Training goes on while a checkpoint is
//! written ([`writer`]).
//!
//! It does not decide when to write one.

pub(crate) mod args;
mod disk;
mod folder;
mod meta;
pub(crate) mod schedule;
mod share;
mod state;
mod writer;

pub use folder::Folder;
pub use meta::{Digests, EpochSeen, Identity, Meta, digest_of};
pub use share::share;
pub use state::{Checkpoint, restore, snapshot};
pub use writer::Writer;

#[cfg(test)]
mod tests;
