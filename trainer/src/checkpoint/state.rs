//! The state of a run that a checkpoint holds, as tensors with names.

use tch::{Device, Tensor};

use super::meta::Meta;

/// Tensors and the names that a checkpoint has for them.
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

/// Copies `from` into the living tensors `into`; both must have the same names and shapes. `what` is for the
/// error.
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
