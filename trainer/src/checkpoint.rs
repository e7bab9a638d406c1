//! Checkpoints: everything that a run needs to go on exactly where it was, on any number of ranks.
//!
//! A checkpoint is one directory, `step-0000001234/` below `--checkpoint-dir`:
//!
//! | file | what |
//! |---|---|
//! | `weights.safetensors` | the model's parameters and buffers, by their names |
//! | `training.safetensors` | the optimizer's state, the gradient scaler's and the schedule's, by theirs |
//! | `checkpoint.json` | [`Meta`]: the loader state, what was seen so far with its order digests, and what it all belongs to |
//! | `CHECKSUMS` | length and xxh3-128 of each of them, and of itself; written last |
//!
//! It promises that a directory of that name is whole: it is written beside its place, flushed and renamed ([`disk`]).
//! Damage that comes later is found by the checksums, and the checkpoint before it is used. One run at a time has a
//! directory ([`folder`]). Rank 0 alone reads and writes; the others get what it read ([`share`]), so the
//! directory need not be shared between machines. Training goes on while a checkpoint is written ([`writer`]).
//!
//! It does not decide when to write one.

pub(crate) mod args;
mod disk;
mod folder;
mod meta;
pub(crate) mod schedule;
mod share;
mod writer;

pub use folder::Folder;
pub use meta::{EpochSeen, Identity, Meta, digest_of};
pub use share::share;
pub use writer::Writer;

use tch::{Device, Tensor};

/// Tensors with their names.
pub type NamedTensors = Vec<(String, Tensor)>;

/// A run at the end of a step.
#[derive(Debug)]
pub struct Checkpoint {
    /// What it belongs to, and where it stands.
    pub meta: Meta,
    /// The model's parameters and buffers.
    pub weights: NamedTensors,
    /// What else the training needs: optimizer, scaler, schedule.
    pub training: NamedTensors,
}

/// A copy that later steps do not change, in the host's memory.
pub fn snapshot(tensors: NamedTensors) -> NamedTensors {
    // One copy, from wherever it is.
    let copy =
        |tensor: &Tensor| tensor.detach().to_device_(Device::Cpu, tensor.kind(), false, true).contiguous();
    tch::no_grad(|| tensors.into_iter().map(|(name, tensor)| (name, copy(&tensor))).collect())
}

/// Copies `from` into the living tensors `into`; both must have the same names and shapes. `what` is for the error.
pub fn restore(what: &str, into: &[(String, Tensor)], from: &[(String, Tensor)]) -> anyhow::Result<()> {
    use anyhow::{Context, ensure};
    for (name, _) in from {
        ensure!(
            into.iter().any(|(own, _)| own == name),
            "the checkpoint has {what} `{name}`, this run has not"
        );
    }
    for (name, tensor) in into {
        let saved = from.iter().find(|(saved, _)| saved == name).map(|(_, saved)| saved);
        let saved = saved.with_context(|| format!("the checkpoint lacks {what} `{name}`"))?;
        ensure!(
            saved.size() == tensor.size(),
            "{what} `{name}` has the shape {:?} in the checkpoint, but {:?} in this run",
            saved.size(),
            tensor.size()
        );
        tch::no_grad(|| tensor.shallow_clone().f_copy_(saved))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
