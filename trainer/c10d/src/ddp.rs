//! Distributed data parallel training: the real `c10d::Reducer` with its `c10d::Logger`.
//!
//! The parameters' autograd hooks fill buckets during the backward pass and all-reduce each as soon as it is
//! full, overlapping communication with computation. Gradients come out averaged over the ranks: make the
//! loss a mean over equal local batches, or weight it so.

use std::cell::Cell;
use std::time::{Duration, Instant};

use cxx::UniquePtr;
use tch::Tensor;

use crate::error::{Result, named};
use crate::ffi::bridge::{self, Compression, DdpSettings, DdpStats, Reducer};
use crate::ffi::{at, list};
use crate::group::ProcessGroup;

impl Default for DdpSettings {
    fn default() -> Self {
        Self {
            bucket_bytes: 25 << 20,
            first_bucket_bytes: 1 << 20,
            find_unused: false,
            static_graph: false,
            gradient_as_bucket_view: true,
            broadcast_buffers: true,
            compression: Compression::None,
            sample_every: 100,
        }
    }
}

/// Keeps the gradients of one model equal on all ranks.
///
/// Make the model, move and convert it, load its checkpoint and freeze the parameters that do not learn
/// *first*: the constructor takes the parameters as they are then.
///
/// Every rank must run the same number of passes. Python's `Join` is for ranks whose data end at different
/// times; Forebay's loader gives all ranks the same number of steps, so it is not wrapped.
#[derive(Debug)]
pub struct Ddp {
    // Before `group`: the reducer goes first.
    reducer: UniquePtr<Reducer>,
    group: ProcessGroup,
    sync: Cell<bool>,
    /// Whether the buffers may differ between the ranks: after each synchronised pass
    /// (`require_forward_param_sync`).
    buffers_due: Cell<bool>,
    buffers_time: Cell<Duration>,
}

impl Ddp {
    /// Checks that all ranks hold parameters of the same shapes, and gives them rank 0's values (and
    /// buffers').
    ///
    /// `parameters` must come in the same order on all ranks: `VarStore::trainable_variables()`, never
    /// `variables()`, whose order is random. So must `buffers`: sort them by name.
    pub fn new(
        group: &ProcessGroup,
        parameters: &[Tensor],
        buffers: &[Tensor],
        settings: &DdpSettings,
    ) -> Result<Self> {
        group.count();
        let made = bridge::make_reducer(group.handle(), &list(parameters), &list(buffers), settings);
        let reducer = group.named("make the reducer", made)?;
        let (sync, buffers_due) = (Cell::new(true), Cell::new(true));
        Ok(Self { reducer, group: group.clone(), sync, buffers_due, buffers_time: Cell::default() })
    }

    /// Runs the forward pass `f` and prepares the reducer for the backward pass of its result (the loss, or
    /// outputs from which it is computed).
    pub fn forward(&self, f: impl FnOnce() -> Tensor) -> Result<Tensor> {
        let sync = self.sync.get();
        self.group.count();
        if sync {
            self.group.named("forward", self.reducer.before_forward())?;
        }
        if self.buffers_due.replace(sync) {
            let began = Instant::now();
            self.group.named("broadcast the buffers", self.reducer.broadcast_buffers())?;
            self.buffers_time.set(self.buffers_time.get() + began.elapsed());
        }
        let output = f();
        if sync {
            self.group.named("forward", self.reducer.before_backward(at(&output)))?;
        }
        Ok(output)
    }

    /// The backward pass of `loss`, gradients reduced over the ranks on return. A peer that died is an error
    /// here.
    pub fn backward(&self, loss: &Tensor) -> Result<()> {
        self.group.count();
        self.group.named("backward", self.reducer.backward(at(loss), self.sync.get()))
    }

    /// Runs `f`, in which forward and backward passes only accumulate gradients locally; the first pass after
    /// it reduces the sum. Every rank must do so alike.
    pub fn no_sync<R>(&self, f: impl FnOnce() -> R) -> R {
        struct RestoreSync<'a>(&'a Cell<bool>, bool);
        impl Drop for RestoreSync<'_> {
            fn drop(&mut self) {
                self.0.set(self.1);
            }
        }
        let _restore = RestoreSync(&self.sync, self.sync.replace(false));
        f()
    }

    /// The bytes of each bucket. One bucket in the first iteration, rebuilt in the order of gradients
    /// afterwards.
    pub fn bucket_sizes(&self) -> Result<Vec<i64>> {
        self.group.named("bucket sizes", self.reducer.bucket_sizes())
    }

    /// The reducer's own measurements, the last synchronised pass among them if it was one of those timed. On
    /// a GPU this waits until that pass is through.
    pub fn stats(&self) -> Result<DdpStats> {
        self.group.named("reducer stats", self.reducer.stats())
    }

    /// How long this thread has stood in the broadcasts of the buffers since the last call: waiting for rank
    /// 0, or, on a GPU, only asking for them.
    pub fn take_buffers_time(&self) -> Duration {
        self.buffers_time.take()
    }
}

/// Clears gradients, which PyTorch accumulates from pass to pass. Works for views into DDP's buckets, as
/// torch's own `zero_grad` does not. `set_to_none` drops them; otherwise they are filled with 0.
pub fn zero_grads(parameters: &[Tensor], set_to_none: bool) -> Result<()> {
    bridge::zero_gradients(&list(parameters), set_to_none).map_err(named("zero_grads"))
}
