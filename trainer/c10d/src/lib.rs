//! PyTorch's own distributed training, from Rust: c10d's stores, process groups and DDP reducer over `tch`
//! tensors.
//!
//! Nothing is reimplemented: [`Store`] is `c10d::TCPStore`, [`ProcessGroup`] is `c10d::ProcessGroup` on Gloo,
//! and [`Ddp`] drives the `c10d::Reducer` that `torch.nn.parallel.DistributedDataParallel` drives, through a
//! small C++ shim that is compiled against libtorch's headers. A run therefore gives the parameters that
//! Python gives, bit for bit, and can share a group with Python ranks.
//!
//! Beside it stands what tch leaves out of libtorch and training needs: [`autocast`], a [`Profiler`],
//! [`Stream`]s, [`pinned`] memory, tensors over others' memory ([`tensor_from_owner`]), and arithmetic over
//! many tensors at once ([`foreach`]).
//!
//! The crate promises that every C++ exception becomes an [`Error`] of one line that names the operation, the
//! rank that saw it and, where a peer is to blame, that peer; and that nothing unwinds across the boundary.
//! `unsafe` is confined to `ffi.rs` and the files below it.
//!
//! It does not do launching, checkpoints or models. Calls block the thread unless they say otherwise; keep
//! them off async executors.
//!
//! Each process should run its torch kernels on its share of the cores (`tch::set_num_threads`,
//! `OMP_NUM_THREADS`).

mod autocast;
mod cuda;
mod ddp;
mod error;
mod ffi;
pub mod foreach;
mod group;
mod heartbeat;
mod profiler;
mod reach;
mod store;
mod stream;
mod tensor;

pub use autocast::autocast;
pub use cuda::{Cuda, PLUGIN_FILE, PLUGIN_VARIABLE};
pub use ddp::{Ddp, zero_grads};
pub use error::{Error, Result};
pub use ffi::NcclSettings;
pub use ffi::bridge::{Compression, DdpSettings, DdpStats, Op, PassTimes, Stream};
pub use group::{ProcessGroup, Work};
pub use profiler::{Profiler, ProfilerSettings, Span};
pub use store::Store;
pub use stream::Event;
pub use tensor::{pinned, tensor_from_owner};

/// Applies `TORCH_CPP_LOG_LEVEL` (`INFO`, `WARNING`, `ERROR` or `FATAL`), as Python does when it imports
/// torch.
///
/// libtorch logs most of the errors that it raises, with their stacks; here they come back as [`Error`]s
/// anyway, so `FATAL` keeps stderr readable.
pub fn init_logging() -> Result<()> {
    ffi::bridge::init_logging().map_err(error::named("init_logging"))
}

/// Ends the process at once: no destructor runs, neither Rust's nor C++'s. With a GPU that waits for a lost
/// peer those would wait as well.
pub fn exit(code: u8) -> ! {
    ffi::bridge::exit_at_once(code.into());
    unreachable!("the process has ended")
}
