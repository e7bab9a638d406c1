//! The Kineto profiler and `at::RecordFunction`.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{NonNull, null, null_mut};

use super::{FfiResult, c_string, check, made};

unsafe extern "C" {
    fn fb_profiler_start(cuda: c_int, shapes: c_int, memory: c_int) -> *mut c_char;
    fn fb_profiler_stop(path: *const c_char) -> *mut c_char;
    fn fb_span_begin(name: *const c_char, out: *mut *mut c_void) -> *mut c_char;
    fn fb_span_end(span: *mut c_void) -> *mut c_char;
}

/// Starts it for this thread and the autograd threads that work for it.
pub(crate) fn profiler_start(cuda: bool, shapes: bool, memory: bool) -> FfiResult<()> {
    // SAFETY: takes numbers only; libtorch refuses a second start by itself.
    check(unsafe { fb_profiler_start(c_int::from(cuda), c_int::from(shapes), c_int::from(memory)) })
}

/// Stops it; the trace goes to `path`, or nowhere.
pub(crate) fn profiler_stop(path: Option<&str>) -> FfiResult<()> {
    let path = path.map(|path| c_string("path", path)).transpose()?;
    // SAFETY: null or a string that lives through the call.
    check(unsafe { fb_profiler_stop(path.as_ref().map_or(null(), |path| path.as_ptr())) })
}

/// An owned `at::RecordFunction` that has begun; its end is its destruction, on the same thread.
#[derive(Debug)]
pub(crate) struct SpanHandle(NonNull<c_void>);

impl SpanHandle {
    pub fn begin(name: &str) -> FfiResult<Self> {
        let name = c_string("name", name)?;
        let mut out = null_mut();
        // SAFETY: the name is copied during the call.
        check(unsafe { fb_span_begin(name.as_ptr(), &mut out) })?;
        made(out).map(Self)
    }
}

impl Drop for SpanHandle {
    fn drop(&mut self) {
        // A failure here means that a callback of the profiler failed: a span is lost, nothing else.
        // SAFETY: made by the shim, freed here only, on the thread that made it (the handle is not `Send`).
        let _ = check(unsafe { fb_span_end(self.0.as_ptr()) });
    }
}
