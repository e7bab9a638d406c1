//! Distributed data parallel training: the real `c10d::Reducer` with its `c10d::Logger`.
//!
//! The parameters' autograd hooks fill buckets during the backward pass and all-reduce each as soon as it is full,
//! overlapping communication with computation. Gradients come out averaged over the ranks: make the loss a mean over
//! equal local batches, or weight it so.

use std::cell::Cell;

use tch::Tensor;

use crate::error::{Error, Result};
use crate::ffi::{self, DdpHandle, DdpOptions};
use crate::group::ProcessGroup;

/// How gradients are bucketed; the defaults are PyTorch's, except for the views.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DdpSettings {
    /// Gradients are reduced in buckets of about this many bytes.
    pub bucket_bytes: u64,
    /// The first bucket is smaller, so that communication starts early.
    pub first_bucket_bytes: u64,
    /// Walk the graph for parameters that a forward pass did not use. Costs time; needed only if there are any.
    pub find_unused: bool,
    /// Gradients are views into the buckets, which saves a copy of the model. `Tensor::zero_grad` and
    /// `Optimizer::zero_grad` panic on such views: use [`zero_grads`], and not `Optimizer::backward_step`.
    pub gradient_as_bucket_view: bool,
}

impl Default for DdpSettings {
    fn default() -> Self {
        Self {
            bucket_bytes: 25 << 20,
            first_bucket_bytes: 1 << 20,
            find_unused: false,
            gradient_as_bucket_view: true,
        }
    }
}

/// What the reducer measured, averaged over the iterations that it sampled. Times are in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DdpStats {
    /// Iterations seen.
    pub iterations: i64,
    /// Buckets reduced in the last iteration.
    pub buckets_reduced: i64,
    /// Forward pass.
    pub forward_compute_ns: i64,
    /// Backward pass.
    pub backward_compute_ns: i64,
    /// Communication during the backward pass.
    pub backward_comm_ns: i64,
    /// How much of both happened at the same time.
    pub backward_overlap_ns: i64,
}

/// Keeps the gradients of one model equal on all ranks.
///
/// Make the model, move and convert it, load its checkpoint and freeze what is to be frozen *first*: the constructor
/// takes the parameters as they are then.
#[derive(Debug)]
pub struct Ddp {
    // Before `group`: the reducer goes first.
    handle: DdpHandle,
    group: ProcessGroup,
    sync: Cell<bool>,
}

impl Ddp {
    /// Checks that all ranks hold parameters of the same shapes, and gives them rank 0's values (and buffers').
    ///
    /// `parameters` must come in the same order on all ranks: `VarStore::trainable_variables()`, never `variables()`,
    /// whose order is random.
    pub fn new(
        group: &ProcessGroup,
        parameters: &[Tensor],
        buffers: &[Tensor],
        settings: &DdpSettings,
    ) -> Result<Self> {
        let bytes = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let options = DdpOptions {
            bucket_bytes: bytes(settings.bucket_bytes),
            first_bucket_bytes: bytes(settings.first_bucket_bytes),
            find_unused: settings.find_unused,
            gradient_as_bucket_view: settings.gradient_as_bucket_view,
        };
        let made = DdpHandle::new(group.handle(), parameters, buffers, &options);
        let handle = group.named("make the reducer", made)?;
        Ok(Self { handle, group: group.clone(), sync: Cell::new(true) })
    }

    /// Runs the forward pass `f` and prepares the reducer for the backward pass of its result (the loss, or outputs
    /// from which it is computed).
    pub fn forward(&self, f: impl FnOnce() -> Tensor) -> Result<Tensor> {
        if !self.sync.get() {
            return Ok(f());
        }
        self.group.named("forward", self.handle.before_forward())?;
        let output = f();
        self.group.named("forward", self.handle.before_backward(&output))?;
        Ok(output)
    }

    /// The backward pass of `loss`, gradients reduced over the ranks on return. A peer that died is an error here.
    pub fn backward(&self, loss: &Tensor) -> Result<()> {
        loss.f_backward().map_err(|error| self.group.error("backward", &tch_message(&error)))
    }

    /// Runs `f`, in which forward and backward passes only accumulate gradients locally; the first pass after it
    /// reduces the sum. Every rank must do so alike.
    pub fn no_sync<R>(&self, f: impl FnOnce() -> R) -> R {
        struct Restore<'a>(&'a Cell<bool>, bool);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                self.0.set(self.1);
            }
        }
        let _restore = Restore(&self.sync, self.sync.replace(false));
        f()
    }

    /// The bytes of each bucket. One bucket in the first iteration, rebuilt in the order of gradients afterwards.
    pub fn bucket_sizes(&self) -> Result<Vec<i64>> {
        self.group.named("bucket sizes", self.handle.bucket_sizes())
    }

    /// The reducer's own measurements. c10d samples the first iterations and then every hundredth.
    pub fn stats(&self) -> Result<DdpStats> {
        let stat = |key| -> Result<i64> {
            Ok(self.group.named("reducer stats", self.handle.stat(key))?.unwrap_or_default())
        };
        Ok(DdpStats {
            iterations: stat("iteration")?,
            buckets_reduced: stat("num_buckets_reduced")?,
            forward_compute_ns: stat("avg_forward_compute_time")?,
            backward_compute_ns: stat("avg_backward_compute_time")?,
            backward_comm_ns: stat("avg_backward_comm_time")?,
            backward_overlap_ns: stat("avg_backward_compute_comm_overlap_time")?,
        })
    }
}

/// Clears gradients, which PyTorch accumulates from pass to pass. Works for views into DDP's buckets, as torch's own
/// `zero_grad` does not. `set_to_none` drops them; otherwise they are filled with 0.
pub fn zero_grads(parameters: &[Tensor], set_to_none: bool) -> Result<()> {
    ffi::zero_grads(parameters, set_to_none).map_err(|text| Error::new("zero_grads", None, &text))
}

/// tch's text is `Internal torch error: ...`; its own first words say nothing.
fn tch_message(error: &tch::TchError) -> String {
    match error {
        tch::TchError::Torch(text) => text.clone(),
        other => other.to_string(),
    }
}
