//! `c10d::Reducer` with its `c10d::Logger`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{NonNull, null_mut};

use tch::Tensor;

use super::{FfiResult, GroupHandle, check, handle, handles, made};

unsafe extern "C" {
    fn fb_ddp_new(
        group: *mut c_void,
        parameters: *const *mut c_void,
        parameter_count: usize,
        buffers: *const *mut c_void,
        buffer_count: usize,
        options: *const DdpOptions,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn fb_ddp_before_forward(ddp: *mut c_void) -> *mut c_char;
    fn fb_ddp_broadcast_buffers(ddp: *mut c_void) -> *mut c_char;
    fn fb_ddp_before_backward(ddp: *mut c_void, outputs: *const *mut c_void, count: usize) -> *mut c_char;
    fn fb_ddp_backward(ddp: *mut c_void, loss: *mut c_void, sync: c_int) -> *mut c_char;
    fn fb_ddp_bucket_sizes(
        ddp: *mut c_void,
        out: *mut i64,
        capacity: usize,
        count: *mut usize,
    ) -> *mut c_char;
    fn fb_ddp_record(ddp: *mut c_void) -> *mut c_char;
    fn fb_ddp_stats(ddp: *mut c_void, keys: *const *const c_char, count: usize, out: *mut i64)
    -> *mut c_char;
    fn fb_ddp_free(ddp: *mut c_void);
    fn fb_zero_grads(parameters: *const *mut c_void, count: usize, set_to_none: c_int) -> *mut c_char;
}

/// The communication hooks, by their numbers in the shim.
#[repr(i32)]
#[derive(Debug, Clone, Copy)]
pub(crate) enum Hook {
    None = 0,
    Fp16 = 1,
    Bf16 = 2,
}

/// The numbers and switches of a reducer: `FbDdpOptions` of the shim.
#[repr(C)]
pub(crate) struct DdpOptions {
    pub bucket_bytes: i64,
    pub first_bucket_bytes: i64,
    pub find_unused: c_int,
    pub static_graph: c_int,
    pub gradient_as_bucket_view: c_int,
    pub broadcast_buffers: c_int,
    pub hook: Hook,
    pub sample_every: c_int,
}

/// An owned reducer with its logger; it keeps its group alive by itself.
#[derive(Debug)]
pub(crate) struct DdpHandle(NonNull<c_void>);

impl DdpHandle {
    pub fn new(
        group: &GroupHandle,
        parameters: &[Tensor],
        buffers: &[Tensor],
        options: &DdpOptions,
    ) -> FfiResult<Self> {
        let (parameters, buffers) = (handles(parameters), handles(buffers));
        let mut out = null_mut();
        // SAFETY: all handles are live; the shim copies the tensors' references and the options, and keeps
        // none of these arrays.
        check(unsafe {
            fb_ddp_new(
                group.as_ptr(),
                parameters.as_ptr(),
                parameters.len(),
                buffers.as_ptr(),
                buffers.len(),
                options,
                &mut out,
            )
        })?;
        made(out).map(Self)
    }

    pub fn before_forward(&self) -> FfiResult<()> {
        // SAFETY: the handle is live.
        check(unsafe { fb_ddp_before_forward(self.0.as_ptr()) })
    }

    pub fn broadcast_buffers(&self) -> FfiResult<()> {
        // SAFETY: the handle is live.
        check(unsafe { fb_ddp_broadcast_buffers(self.0.as_ptr()) })
    }

    pub fn before_backward(&self, output: &Tensor) -> FfiResult<()> {
        let outputs = [handle(output)];
        // SAFETY: both handles are live; the array is only read during the call.
        check(unsafe { fb_ddp_before_backward(self.0.as_ptr(), outputs.as_ptr(), outputs.len()) })
    }

    pub fn backward(&self, loss: &Tensor, sync: bool) -> FfiResult<()> {
        // SAFETY: both handles are live.
        check(unsafe { fb_ddp_backward(self.0.as_ptr(), handle(loss), c_int::from(sync)) })
    }

    pub fn bucket_sizes(&self) -> FfiResult<Vec<i64>> {
        let mut count = 0;
        // SAFETY: the handle is live; a capacity of 0 writes nothing but the count.
        check(unsafe { fb_ddp_bucket_sizes(self.0.as_ptr(), null_mut(), 0, &mut count) })?;
        let mut sizes = vec![0; count];
        // SAFETY: the handle is live; at most `sizes.len()` numbers are written.
        check(unsafe { fb_ddp_bucket_sizes(self.0.as_ptr(), sizes.as_mut_ptr(), sizes.len(), &mut count) })?;
        sizes.truncate(count);
        Ok(sizes)
    }

    pub fn record(&self) -> FfiResult<()> {
        // SAFETY: the handle is live.
        check(unsafe { fb_ddp_record(self.0.as_ptr()) })
    }

    /// The logger's numbers of these names; 0 for those that it does not have.
    pub fn stats<const N: usize>(&self, keys: [&CStr; N]) -> FfiResult<[i64; N]> {
        let (keys, mut values) = (keys.map(CStr::as_ptr), [0; N]);
        // SAFETY: the handle and the strings are live; as many numbers are written as there are keys.
        check(unsafe { fb_ddp_stats(self.0.as_ptr(), keys.as_ptr(), N, values.as_mut_ptr()) })?;
        Ok(values)
    }
}

impl Drop for DdpHandle {
    fn drop(&mut self) {
        // SAFETY: made by the shim, freed here only; the reducer takes its hooks off the parameters as it
        // goes.
        unsafe { fb_ddp_free(self.0.as_ptr()) }
    }
}

/// Clears the gradients of `parameters`.
pub(crate) fn zero_grads(parameters: &[Tensor], set_to_none: bool) -> FfiResult<()> {
    let parameters = handles(parameters);
    // SAFETY: the handles are live; the array is only read during the call.
    check(unsafe { fb_zero_grads(parameters.as_ptr(), parameters.len(), c_int::from(set_to_none)) })
}
