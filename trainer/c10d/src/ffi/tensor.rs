//! Tensors over others' memory, pinned memory, copies that do not wait, and autocast.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use tch::{Device, Kind, Tensor};

use super::{FfiResult, RawStream, check, device_numbers, handle, made_tensor, scalar_type};

unsafe extern "C" {
    fn fb_tensor_from_owner(
        data: *mut c_void,
        sizes: *const i64,
        dimensions: usize,
        scalar_type: c_int,
        owner: *mut c_void,
        drop_owner: unsafe extern "C" fn(*mut c_void),
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn fb_tensor_pinned(
        sizes: *const i64,
        dimensions: usize,
        scalar_type: c_int,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn fb_tensor_copy(to: *mut c_void, from: *mut c_void, non_blocking: c_int) -> *mut c_char;
    fn fb_tensor_to_device(
        from: *mut c_void,
        device_type: c_int,
        device_index: c_int,
        non_blocking: c_int,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn fb_tensor_record_stream(tensor: *mut c_void, stream: *const RawStream) -> *mut c_char;
    fn fb_autocast_enter(device_type: c_int, scalar_type: c_int, before: *mut AutocastState) -> *mut c_char;
    fn fb_autocast_exit(before: *const AutocastState) -> *mut c_char;
}

/// A tensor over the bytes of `owner`, which it owns. The caller has checked that they hold exactly `sizes`
/// elements of `kind` and are aligned for it.
pub(crate) fn tensor_from_owner<O>(owner: Box<O>, sizes: &[i64], kind: Kind) -> FfiResult<Tensor>
where
    O: std::ops::Deref<Target = [u8]> + Send + 'static,
{
    unsafe extern "C" fn drop_owner<O>(owner: *mut c_void) {
        // SAFETY: `owner` is the box that was leaked below, and libtorch calls this once, with the last
        // reference.
        let owner = unsafe { Box::from_raw(owner.cast::<O>()) };
        // A panic must not reach C++: the process would abort without a word.
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(owner))).is_err() {
            eprintln!("the owner of a tensor's memory panicked while it was dropped");
        }
    }

    let scalar_type = scalar_type(kind)?;
    // The box does not move from here on, so the slice stays where it is even if the owner holds its bytes
    // inline.
    let data = owner.as_ptr().cast_mut().cast();
    let owner = Box::into_raw(owner);
    let mut out = null_mut();
    // SAFETY: `data` is valid for the tensor's elements as long as the owner lives (checked by the caller),
    // which is until the storage's last view calls `drop_owner`; `O: Send`, as that may happen on an autograd
    // thread.
    let result = check(unsafe {
        fb_tensor_from_owner(
            data,
            sizes.as_ptr(),
            sizes.len(),
            scalar_type,
            owner.cast(),
            drop_owner::<O>,
            &mut out,
        )
    });
    if let Err(message) = result {
        // SAFETY: on failure the shim has not taken the owner.
        drop(unsafe { Box::from_raw(owner) });
        return Err(message);
    }
    // SAFETY: a fresh tensor of the shim.
    unsafe { made_tensor(out) }
}

/// A tensor in page-locked memory, its values undefined.
pub(crate) fn pinned(sizes: &[i64], kind: Kind) -> FfiResult<Tensor> {
    let mut out = null_mut();
    // SAFETY: the sizes are only read during the call.
    check(unsafe { fb_tensor_pinned(sizes.as_ptr(), sizes.len(), scalar_type(kind)?, &mut out) })?;
    // SAFETY: a fresh tensor of the shim.
    unsafe { made_tensor(out) }
}

/// Copies the values of `from` into the storage of `to`.
pub(crate) fn copy(to: &mut Tensor, from: &Tensor, non_blocking: bool) -> FfiResult<()> {
    // SAFETY: both handles are live; libtorch holds the storages of a copy under way, pinned ones included.
    check(unsafe { fb_tensor_copy(handle(to), handle(from), c_int::from(non_blocking)) })
}

/// `from` on `device`.
pub(crate) fn to_device(from: &Tensor, device: Device, non_blocking: bool) -> FfiResult<Tensor> {
    let (device_type, index) = device_numbers(device);
    let mut out = null_mut();
    // SAFETY: as in `copy`.
    check(unsafe {
        fb_tensor_to_device(handle(from), device_type, index, c_int::from(non_blocking), &mut out)
    })?;
    // SAFETY: a fresh tensor of the shim.
    unsafe { made_tensor(out) }
}

/// Keeps the storage of `tensor` until `stream` has done what it holds now.
pub(crate) fn record_stream(tensor: &Tensor, stream: &RawStream) -> FfiResult<()> {
    // SAFETY: the handle is live; the stream is only read.
    check(unsafe { fb_tensor_record_stream(handle(tensor), stream) })
}

/// The thread's autocast settings before they were changed: `FbAutocast` of the shim.
#[repr(C)]
#[derive(Debug, Clone, Default)]
pub(crate) struct AutocastState {
    device_type: c_int,
    enabled: c_int,
    scalar_type: c_int,
    cache: c_int,
}

impl AutocastState {
    pub fn enter(device: Device, kind: Kind) -> FfiResult<Self> {
        let mut before = Self::default();
        // SAFETY: `before` is written before the call returns.
        check(unsafe { fb_autocast_enter(device_numbers(device).0, scalar_type(kind)?, &mut before) })?;
        Ok(before)
    }

    pub fn restore(&self) -> FfiResult<()> {
        // SAFETY: only read.
        check(unsafe { fb_autocast_exit(self) })
    }
}
