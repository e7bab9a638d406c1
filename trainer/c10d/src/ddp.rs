//! Distributed data parallel training: the real `c10d::Reducer` with its `c10d::Logger`.
//!
//! The parameters' autograd hooks fill buckets during the backward pass and all-reduce each as soon as it is
//! full, overlapping communication with computation. Gradients come out averaged over the ranks: make the
//! loss a mean over equal local batches, or weight it so.

use std::cell::Cell;
use std::time::{Duration, Instant};

use tch::Tensor;

use crate::error::{Error, Result};
use crate::ffi::{self, DdpHandle, DdpOptions, Hook};
use crate::group::ProcessGroup;

/// How gradients travel between the ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Compression {
    /// As they are.
    #[default]
    None,
    /// Rounded to fp16, half the bytes: c10d's built-in hook (`BuiltinCommHookType::FP16_COMPRESS`). Large
    /// gradients overflow; scale the loss or take [`Compression::Bf16`].
    Fp16,
    /// Rounded to bf16, half the bytes: what Python's `bf16_compress_hook` does.
    Bf16,
}

/// How gradients are bucketed and reduced; the defaults are PyTorch's, except for the views.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DdpSettings {
    /// Gradients are reduced in buckets of about this many bytes (`bucket_cap_mb`).
    pub bucket_bytes: u64,
    /// The first bucket is smaller, so that communication starts early.
    pub first_bucket_bytes: u64,
    /// Walk the graph for parameters that a forward pass did not use (`find_unused_parameters`). Costs time;
    /// needed only if there are any, and not with a static graph.
    pub find_unused: bool,
    /// The same parameters are used in every pass, the same number of times (`static_graph`): unused and
    /// reused ones are found in the first pass and cost nothing later. [`Ddp::backward`] must run that pass.
    pub static_graph: bool,
    /// Gradients are views into the buckets, which saves a copy of the model. `Tensor::zero_grad` and
    /// `Optimizer::zero_grad` panic on such views: use [`zero_grads`], and not `Optimizer::backward_step`.
    pub gradient_as_bucket_view: bool,
    /// Before each forward pass that follows a synchronised one, every rank takes rank 0's buffers
    /// (BatchNorm's running statistics), as in Python (`broadcast_buffers`).
    pub broadcast_buffers: bool,
    /// Rounding of the gradients that are sent.
    pub compression: Compression,
    /// After the first ten, one pass in this many is timed for [`Ddp::stats`]. On a CPU that takes some
    /// microseconds.
    pub sample_every: u32,
}

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

/// One pass's times in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PassTimes {
    /// Forward pass.
    pub forward_compute_ns: i64,
    /// Backward pass, until the last gradient was there.
    pub backward_compute_ns: i64,
    /// From the first bucket's departure to the last one's arrival.
    pub backward_comm_ns: i64,
    /// How much of both happened at the same time.
    pub backward_overlap_ns: i64,
}

/// What the reducer measured (`torch::DDPLoggingData`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DdpStats {
    /// The pass that was timed last, counted from 1; 0 before the first.
    pub iteration: i64,
    /// Its times.
    pub last: PassTimes,
    /// The mean over the timed passes.
    pub mean: PassTimes,
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
    handle: DdpHandle,
    group: ProcessGroup,
    sync: Cell<bool>,
    /// Whether the buffers may differ between the ranks: after each synchronised pass
    /// (`require_forward_param_sync`).
    buffers_due: Cell<bool>,
    broadcasts_buffers: bool,
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
        let bytes = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let broadcasts_buffers = settings.broadcast_buffers && !buffers.is_empty();
        let options = DdpOptions {
            bucket_bytes: bytes(settings.bucket_bytes),
            first_bucket_bytes: bytes(settings.first_bucket_bytes),
            find_unused: settings.find_unused.into(),
            static_graph: settings.static_graph.into(),
            gradient_as_bucket_view: settings.gradient_as_bucket_view.into(),
            broadcast_buffers: broadcasts_buffers.into(),
            hook: match settings.compression {
                Compression::None => Hook::None,
                Compression::Fp16 => Hook::Fp16,
                Compression::Bf16 => Hook::Bf16,
            },
            sample_every: i32::try_from(settings.sample_every.max(1)).unwrap_or(i32::MAX),
        };
        group.count();
        let made = DdpHandle::new(group.handle(), parameters, buffers, &options);
        let handle = group.named("make the reducer", made)?;
        let (sync, buffers_due) = (Cell::new(true), Cell::new(true));
        let (group, buffers_time) = (group.clone(), Cell::default());
        Ok(Self { handle, group, sync, buffers_due, broadcasts_buffers, buffers_time })
    }

    /// Runs the forward pass `f` and prepares the reducer for the backward pass of its result (the loss, or
    /// outputs from which it is computed).
    pub fn forward(&self, f: impl FnOnce() -> Tensor) -> Result<Tensor> {
        let sync = self.sync.get();
        self.group.count();
        if sync {
            self.group.named("forward", self.handle.before_forward())?;
        }
        if self.buffers_due.replace(sync) && self.broadcasts_buffers {
            let began = Instant::now();
            self.group.named("broadcast the buffers", self.handle.broadcast_buffers())?;
            self.buffers_time.set(self.buffers_time.get() + began.elapsed());
        }
        let output = f();
        if sync {
            self.group.named("forward", self.handle.before_backward(&output))?;
        }
        Ok(output)
    }

    /// The backward pass of `loss`, gradients reduced over the ranks on return. A peer that died is an error
    /// here.
    pub fn backward(&self, loss: &Tensor) -> Result<()> {
        self.group.count();
        self.group.named("backward", self.handle.backward(loss, self.sync.get()))
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
        self.group.named("bucket sizes", self.handle.bucket_sizes())
    }

    /// The reducer's own measurements, the last synchronised pass among them if it was one of those timed. On
    /// a GPU this waits until that pass is through.
    pub fn stats(&self) -> Result<DdpStats> {
        self.group.named("reducer stats", self.handle.record())?;
        let values = self.handle.stats([
            c"iteration",
            c"forward_compute_time",
            c"backward_compute_time",
            c"backward_comm_time",
            c"backward_compute_comm_overlap_time",
            c"avg_forward_compute_time",
            c"avg_backward_compute_time",
            c"avg_backward_comm_time",
            c"avg_backward_compute_comm_overlap_time",
        ]);
        let values = self.group.named("reducer stats", values)?.map(|value| value.max(0));
        let times = |at: usize| PassTimes {
            forward_compute_ns: values[at],
            backward_compute_ns: values[at + 1],
            backward_comm_ns: values[at + 2],
            backward_overlap_ns: values[at + 3],
        };
        Ok(DdpStats { iteration: values[0], last: times(1), mean: times(5) })
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
    ffi::zero_grads(parameters, set_to_none).map_err(|failure| Error::new("zero_grads", None, failure))
}
