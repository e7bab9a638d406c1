//! `c10::Stream` and `c10::Event` of any device.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{NonNull, null_mut};

use tch::Device;

use super::{FfiResult, check, device_numbers, made};

unsafe extern "C" {
    fn fb_stream_from_pool(
        device_type: c_int,
        device_index: c_int,
        high_priority: c_int,
        out: *mut RawStream,
    ) -> *mut c_char;
    fn fb_stream_current(device_type: c_int, device_index: c_int, out: *mut RawStream) -> *mut c_char;
    fn fb_stream_exchange(stream: *const RawStream, before: *mut RawStream) -> *mut c_char;
    fn fb_stream_synchronize(stream: *const RawStream) -> *mut c_char;
    fn fb_event_new(device_type: c_int, timing: c_int, out: *mut *mut c_void) -> *mut c_char;
    fn fb_event_record(event: *mut c_void, stream: *const RawStream) -> *mut c_char;
    fn fb_event_block(event: *mut c_void, stream: *const RawStream) -> *mut c_char;
    fn fb_event_synchronize(event: *mut c_void) -> *mut c_char;
    fn fb_event_elapsed_ms(start: *mut c_void, end: *mut c_void, out: *mut f64) -> *mut c_char;
    fn fb_event_free(event: *mut c_void);
}

/// A stream's name: `FbStream` of the shim. It owns nothing; libtorch's streams live as long as the process.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RawStream {
    id: i64,
    device_type: c_int,
    device_index: c_int,
}

impl RawStream {
    pub fn from_pool(device: Device, high_priority: bool) -> FfiResult<Self> {
        let (device_type, index) = device_numbers(device);
        let mut out = Self::default();
        // SAFETY: `out` is written before the call returns.
        check(unsafe { fb_stream_from_pool(device_type, index, c_int::from(high_priority), &mut out) })?;
        Ok(out)
    }

    pub fn current(device: Device) -> FfiResult<Self> {
        let (device_type, index) = device_numbers(device);
        let mut out = Self::default();
        // SAFETY: as in `from_pool`.
        check(unsafe { fb_stream_current(device_type, index, &mut out) })?;
        Ok(out)
    }

    /// Makes this the thread's current stream; gives the one that was.
    pub fn exchange(&self) -> FfiResult<Self> {
        let mut before = Self::default();
        // SAFETY: `self` is only read, `before` written before the call returns.
        check(unsafe { fb_stream_exchange(self, &mut before) })?;
        Ok(before)
    }

    pub fn synchronize(&self) -> FfiResult<()> {
        // SAFETY: only read.
        check(unsafe { fb_stream_synchronize(self) })
    }
}

/// An owned `c10::Event`.
#[derive(Debug)]
pub(crate) struct EventHandle(NonNull<c_void>);

impl EventHandle {
    pub fn new(device: Device, timing: bool) -> FfiResult<Self> {
        let mut out = null_mut();
        // SAFETY: takes numbers only.
        check(unsafe { fb_event_new(device_numbers(device).0, c_int::from(timing), &mut out) })?;
        made(out).map(Self)
    }

    pub fn record(&mut self, stream: &RawStream) -> FfiResult<()> {
        // SAFETY: the handle is live and borrowed mutably: events are not thread-safe.
        check(unsafe { fb_event_record(self.0.as_ptr(), stream) })
    }

    pub fn block(&self, stream: &RawStream) -> FfiResult<()> {
        // SAFETY: the handle is live.
        check(unsafe { fb_event_block(self.0.as_ptr(), stream) })
    }

    pub fn synchronize(&self) -> FfiResult<()> {
        // SAFETY: the handle is live.
        check(unsafe { fb_event_synchronize(self.0.as_ptr()) })
    }

    pub fn elapsed_ms(&self, end: &Self) -> FfiResult<f64> {
        let mut milliseconds = 0.0;
        // SAFETY: both handles are live.
        check(unsafe { fb_event_elapsed_ms(self.0.as_ptr(), end.0.as_ptr(), &mut milliseconds) })?;
        Ok(milliseconds)
    }
}

impl Drop for EventHandle {
    fn drop(&mut self) {
        // SAFETY: made by the shim, freed here only.
        unsafe { fb_event_free(self.0.as_ptr()) }
    }
}
