//! The boundary to the C++ in `shim/`: this file and those under `ffi/` are the only ones of the crate with
//! `unsafe`.
//!
//! Each C++ object is held by one handle that frees it once; each call turns the shim's message into a
//! `String`. The rest of the crate sees safe functions only. The handles hold bare pointers and so are
//! neither `Send` nor `Sync`, but for the store's: c10d's groups and reducers want to be called from one
//! thread in one order.

#![expect(unsafe_code, reason = "calls into C++; every block says what makes it sound")]

mod cuda;
mod ddp;
pub(crate) mod foreach;
mod group;
mod profiler;
mod store;
mod stream;
mod tensor;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::time::Duration;

use tch::{Device, Kind, Tensor};

use crate::error::Failure;

pub(crate) use cuda::{NcclOptions, Plugin};
pub(crate) use ddp::{DdpHandle, DdpOptions, Hook, zero_grads};
pub(crate) use group::{GroupHandle, WorkHandle};
pub(crate) use profiler::{SpanHandle, profiler_start, profiler_stop};
pub(crate) use store::{StoreHandle, TcpStore};
pub(crate) use stream::{EventHandle, RawStream};
pub(crate) use tensor::{AutocastState, copy, pinned, record_stream, tensor_from_owner, to_device};

/// The first failure, as C++ told it.
pub(crate) type FfiResult<T> = Result<T, Failure>;

unsafe extern "C" {
    fn fb_free(memory: *mut c_void);
    fn fb_init_logging() -> *mut c_char;
    fn fb_exit(code: c_int) -> !;
}

/// Takes the shim's message, if there is one.
fn check(message: *mut c_char) -> FfiResult<()> {
    if message.is_null() {
        return Ok(());
    }
    // SAFETY: the shim returns null or a NUL-terminated string from strdup that is ours; it is read, then
    // freed once.
    let text = unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned();
    // SAFETY: see above; no reference to the string is left.
    unsafe { fb_free(message.cast()) };
    Err(Failure::thrown(&text))
}

fn c_string(what: &str, text: &str) -> FfiResult<CString> {
    CString::new(text).map_err(|_| Failure::own(format!("the {what} {text:?} contains a NUL byte")))
}

fn milliseconds(timeout: Duration) -> i64 {
    i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX)
}

/// tch's tensor handle is an `at::Tensor*`, which is what the shim takes.
fn handle(tensor: &Tensor) -> *mut c_void {
    tensor.as_ptr().cast_mut().cast()
}

fn handles(tensors: &[Tensor]) -> Vec<*mut c_void> {
    tensors.iter().map(handle).collect()
}

fn made(pointer: *mut c_void) -> FfiResult<NonNull<c_void>> {
    NonNull::new(pointer).ok_or_else(|| Failure::own("the shim made nothing"))
}

/// A tensor that the shim has just made, for tch to own.
///
/// # Safety
/// `pointer` is null or a fresh `at::Tensor*` on the heap that nobody else owns.
unsafe fn made_tensor(pointer: *mut c_void) -> FfiResult<Tensor> {
    let pointer = made(pointer)?;
    // SAFETY: the caller's promise; tch frees it.
    Ok(unsafe { Tensor::from_ptr(pointer.as_ptr().cast()) })
}

/// `device` as c10's type and index; the current device of a type has the index -1.
fn device_numbers(device: Device) -> (c_int, c_int) {
    match device {
        Device::Cpu => (0, -1),
        // An index beyond c10's range is no device either: 127 is refused by libtorch in its own words.
        Device::Cuda(index) => (1, c_int::try_from(index).unwrap_or(127).min(127)),
        Device::Mps => (13, -1),
        Device::Vulkan => (10, -1),
    }
}

/// The number of `kind` in `c10::ScalarType`, which tch keeps to itself.
fn scalar_type(kind: Kind) -> FfiResult<c_int> {
    Ok(match kind {
        Kind::Uint8 => 0,
        Kind::Int8 => 1,
        Kind::Int16 => 2,
        Kind::Int => 3,
        Kind::Int64 => 4,
        Kind::Half => 5,
        Kind::Float => 6,
        Kind::Double => 7,
        Kind::BFloat16 => 15,
        other => return Err(Failure::own(format!("no plain buffers of {other:?}"))),
    })
}

/// Applies the environment's log level.
pub(crate) fn init_logging() -> FfiResult<()> {
    // SAFETY: takes nothing; libtorch guards its own state.
    check(unsafe { fb_init_logging() })
}

/// Ends the process, and nothing else.
pub(crate) fn exit(code: u8) -> ! {
    // SAFETY: `_exit` may be called from any thread at any time.
    unsafe { fb_exit(code.into()) }
}
