//! The boundary to the C++ in `shim/`: this file and the plugin's below it are the only ones of the crate
//! with `unsafe`.
//!
//! `cxx` checks both sides against [`bridge`]; what C++ throws comes back as a [`Failure`]. The rest of the
//! crate calls safe functions only. The objects are neither `Send` nor `Sync`, but for the store: c10d's
//! groups and reducers want to be called from one thread in one order.

#![expect(unsafe_code, reason = "calls into C++; every block says what makes it sound")]

mod plugin;

use std::ops::Deref;
use std::time::Duration;

use cxx::{CxxVector, UniquePtr};
use tch::{Device, Kind, Tensor};

use crate::error::Failure;

pub use plugin::NcclSettings;
pub(crate) use plugin::Plugin;

/// The first failure, as C++ told it.
pub(crate) type FfiResult<T> = Result<T, Failure>;

#[cxx::bridge(namespace = "forebay")]
pub(crate) mod bridge {
    /// How values of the ranks are combined, element by element.
    #[derive(Debug)]
    enum Op {
        /// Added up, integers too.
        Sum,
        /// Their mean; floating point only.
        Avg,
        /// The smallest of the ranks' values stays.
        Min,
        /// The largest of the ranks' values stays.
        Max,
        /// Multiplied with each other, integers too.
        Product,
    }

    /// How gradients travel between the ranks.
    #[derive(Debug)]
    enum Compression {
        /// Not rounded: they travel in their own type.
        None,
        /// Rounded to fp16, half the bytes: c10d's built-in hook (`BuiltinCommHookType::FP16_COMPRESS`).
        /// Large gradients overflow; scale the loss or take [`Compression::Bf16`].
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
        /// Walk the graph for parameters that a forward pass did not use (`find_unused_parameters`). Costs
        /// time; needed only if there are any, and not with a static graph.
        pub find_unused: bool,
        /// The same parameters are used in every pass, the same number of times (`static_graph`): unused and
        /// reused ones are found in the first pass and cost nothing later. [`crate::Ddp::backward`] must run
        /// that pass.
        pub static_graph: bool,
        /// Gradients are views into the buckets, which saves a copy of the model. `Tensor::zero_grad` and
        /// `Optimizer::zero_grad` panic on such views: use [`crate::zero_grads`], and not
        /// `Optimizer::backward_step`.
        pub gradient_as_bucket_view: bool,
        /// Before each forward pass that follows a synchronised one, every rank takes rank 0's buffers
        /// (BatchNorm's running statistics), as in Python (`broadcast_buffers`).
        pub broadcast_buffers: bool,
        /// Rounding of the gradients that are sent.
        pub compression: Compression,
        /// After the first ten, one pass in this many is timed for [`crate::Ddp::stats`]. On a CPU that takes
        /// some microseconds.
        pub sample_every: u32,
    }

    /// One pass's times in nanoseconds.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct PassTimes {
        /// From the start of the forward pass to that of the backward pass.
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
        /// What that pass took.
        pub last: PassTimes,
        /// The mean over the timed passes.
        pub mean: PassTimes,
    }

    /// A queue of work on one device, run in order. A clone is the same stream. It owns nothing: libtorch's
    /// streams live as long as the process.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Stream {
        /// As `c10::Stream` packs it.
        id: i64,
        /// `c10::DeviceType`.
        device_type: i32,
        /// The device's number.
        device_index: i32,
    }

    struct TensorRef<'a> {
        tensor: &'a AtTensor,
    }

    extern "Rust" {
        type Owner;
        fn bytes(self: &Owner) -> &[u8];
    }

    unsafe extern "C++" {
        include!("forebay-c10d/shim/shim.h");

        type AtTensor;
        fn init_logging() -> Result<()>;
        fn exit_at_once(code: i32);
        fn torch_version() -> String;

        type StoreHandle;
        fn tcp_store(
            host: &str,
            port: u16,
            world: i32,
            is_master: bool,
            wait_workers: bool,
            listen_fd: i32,
            timeout_ms: i64,
        ) -> Result<UniquePtr<StoreHandle>>;
        fn prefixed(self: &StoreHandle, prefix: &str) -> Result<UniquePtr<StoreHandle>>;
        fn connect_again(self: &StoreHandle) -> Result<UniquePtr<StoreHandle>>;
        fn port(self: &StoreHandle) -> Result<u16>;
        fn set(self: &StoreHandle, key: &str, value: &[u8]) -> Result<()>;
        fn get(self: &StoreHandle, key: &str) -> Result<Vec<u8>>;
        fn add(self: &StoreHandle, key: &str, amount: i64) -> Result<i64>;
        fn contains(self: &StoreHandle, key: &str) -> Result<bool>;
        fn remove(self: &StoreHandle, key: &str) -> Result<bool>;
        fn wait(self: &StoreHandle, keys: &[&str], timeout_ms: i64) -> Result<()>;

        type WorkHandle;
        fn wait(self: &WorkHandle, timeout_ms: i64) -> Result<()>;

        type GroupHandle;
        fn gloo_group(
            store: &StoreHandle,
            rank: i32,
            world: i32,
            timeout_ms: i64,
        ) -> Result<UniquePtr<GroupHandle>>;
        fn fail(self: &GroupHandle);
        fn all_reduce(self: &GroupHandle, tensor: &AtTensor, op: Op) -> Result<UniquePtr<WorkHandle>>;
        fn reduce_scatter(
            self: &GroupHandle,
            input: &AtTensor,
            output: &AtTensor,
            op: Op,
        ) -> Result<UniquePtr<WorkHandle>>;
        fn broadcast(self: &GroupHandle, tensor: &AtTensor, root: i32) -> Result<UniquePtr<WorkHandle>>;
        fn all_gather(
            self: &GroupHandle,
            tensor: &AtTensor,
            outputs: &[TensorRef<'_>],
        ) -> Result<UniquePtr<WorkHandle>>;
        fn gather(
            self: &GroupHandle,
            tensor: &AtTensor,
            outputs: &[TensorRef<'_>],
            root: i32,
        ) -> Result<UniquePtr<WorkHandle>>;
        fn send(self: &GroupHandle, tensor: &AtTensor, to: i32, tag: i32) -> Result<UniquePtr<WorkHandle>>;
        fn recv(self: &GroupHandle, tensor: &AtTensor, from: i32, tag: i32) -> Result<UniquePtr<WorkHandle>>;
        fn barrier(self: &GroupHandle) -> Result<UniquePtr<WorkHandle>>;

        type Reducer;
        fn make_reducer(
            group: &GroupHandle,
            parameters: &[TensorRef<'_>],
            buffers: &[TensorRef<'_>],
            settings: &DdpSettings,
        ) -> Result<UniquePtr<Reducer>>;
        fn before_forward(self: &Reducer) -> Result<()>;
        fn broadcast_buffers(self: &Reducer) -> Result<()>;
        fn before_backward(self: &Reducer, output: &AtTensor) -> Result<()>;
        fn backward(self: &Reducer, loss: &AtTensor, sync: bool) -> Result<()>;
        fn bucket_sizes(self: &Reducer) -> Result<Vec<i64>>;
        fn stats(self: &Reducer) -> Result<DdpStats>;
        fn zero_gradients(parameters: &[TensorRef<'_>], set_to_none: bool) -> Result<()>;

        fn foreach_scale(x: &[TensorRef<'_>], factor: f64) -> Result<()>;
        fn foreach_add_scaled(x: &[TensorRef<'_>], y: &[TensorRef<'_>], factor: f64) -> Result<()>;
        fn foreach_lerp(x: &[TensorRef<'_>], y: &[TensorRef<'_>], weight: f64) -> Result<()>;
        fn foreach_add_product(
            x: &[TensorRef<'_>],
            y: &[TensorRef<'_>],
            z: &[TensorRef<'_>],
            factor: f64,
        ) -> Result<()>;
        fn foreach_add_quotient(
            x: &[TensorRef<'_>],
            y: &[TensorRef<'_>],
            z: &[TensorRef<'_>],
            factor: f64,
        ) -> Result<()>;
        fn foreach_sums(
            x: &[TensorRef<'_>],
            y: &[TensorRef<'_>],
            factor: f64,
        ) -> Result<UniquePtr<CxxVector<AtTensor>>>;
        fn foreach_adam_denominators(
            squares: &[TensorRef<'_>],
            correction: f64,
            eps: f64,
        ) -> Result<UniquePtr<CxxVector<AtTensor>>>;
        fn foreach_norm(values: &[TensorRef<'_>]) -> Result<f64>;
        fn foreach_unscale(values: &[TensorRef<'_>], factor: f64) -> Result<bool>;

        fn tensor_over(owner: Box<Owner>, sizes: &[i64], like: &AtTensor) -> Result<UniquePtr<AtTensor>>;
        fn pinned(tensor: &AtTensor) -> Result<UniquePtr<AtTensor>>;

        type AutocastGuard;
        fn enter_autocast(gpu: i32, like: &AtTensor) -> Result<UniquePtr<AutocastGuard>>;

        fn stream_from_pool(gpu: i32, high_priority: bool) -> Result<Stream>;
        fn current_stream(gpu: i32) -> Result<Stream>;
        fn synchronize_stream(stream: &Stream) -> Result<()>;
        fn keep_for_stream(tensor: &AtTensor, stream: &Stream) -> Result<()>;
        type StreamGuard;
        fn switch_stream(stream: &Stream) -> Result<UniquePtr<StreamGuard>>;
        type EventHandle;
        fn make_event(gpu: i32, timing: bool) -> Result<UniquePtr<EventHandle>>;
        fn record_event(event: Pin<&mut EventHandle>, stream: &Stream) -> Result<()>;
        fn block_stream(event: &EventHandle, stream: &Stream) -> Result<()>;
        fn synchronize_event(event: &EventHandle) -> Result<()>;
        fn elapsed_ms(start: &EventHandle, end: &EventHandle) -> Result<f64>;

        fn start_profiler(cuda: bool, shapes: bool, memory: bool) -> Result<()>;
        fn stop_profiler(path: &str) -> Result<()>;
        type SpanHandle;
        fn begin_span(name: &str) -> Result<UniquePtr<SpanHandle>>;
    }
}

use bridge::{AtTensor, TensorRef};

// SAFETY: the pointer's reference count is atomic, and a TCP store (or a prefix over one) takes its own lock
// around every request; it is bound to no thread.
unsafe impl Send for bridge::StoreHandle {}

macro_rules! debug_by_name {
    ($($handle:ident)*) => {
        $(impl std::fmt::Debug for bridge::$handle {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($handle))
            }
        })*
    };
}
debug_by_name!(StoreHandle GroupHandle WorkHandle Reducer EventHandle SpanHandle);

/// Owns the bytes of a tensor.
pub(crate) struct Owner(pub Box<dyn Deref<Target = [u8]> + Send>);

impl Owner {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<cxx::Exception> for Failure {
    fn from(thrown: cxx::Exception) -> Self {
        Self::thrown(thrown.what())
    }
}

/// tch's tensor handle is an `at::Tensor*`, which is what the shim takes.
pub(crate) fn at(tensor: &Tensor) -> &AtTensor {
    // SAFETY: the object behind the handle lives as long as the handle, and is not moved.
    unsafe { &*tensor.as_ptr().cast::<AtTensor>() }
}

pub(crate) fn list(tensors: &[Tensor]) -> Vec<TensorRef<'_>> {
    tensors.iter().map(|tensor| TensorRef { tensor: at(tensor) }).collect()
}

/// A tensor that the shim has made, for tch to own.
pub(crate) fn owned(made: UniquePtr<AtTensor>) -> Tensor {
    // SAFETY: an `at::Tensor` on the heap that nobody else owns; tch frees it.
    unsafe { Tensor::from_ptr(made.into_raw().cast()) }
}

/// The same of many.
pub(crate) fn all_owned(made: UniquePtr<CxxVector<AtTensor>>) -> Vec<Tensor> {
    // SAFETY: live tensors, of which tch makes handles of its own.
    made.iter()
        .map(|one| unsafe { Tensor::clone_from_ptr(std::ptr::from_ref(one).cast_mut().cast()) })
        .collect()
}

/// An empty tensor of a kind: C++ takes the kind from it, for tch keeps the kinds' numbers to itself.
pub(crate) fn like(kind: Kind) -> Tensor {
    Tensor::empty([0], (kind, Device::Cpu))
}

/// A GPU's number, or -1 for the CPU.
pub(crate) fn gpu(device: Device) -> i32 {
    match device {
        Device::Cuda(index) => i32::try_from(index).unwrap_or(i32::MAX),
        _ => -1,
    }
}

pub(crate) fn milliseconds(timeout: Duration) -> i64 {
    i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX)
}
