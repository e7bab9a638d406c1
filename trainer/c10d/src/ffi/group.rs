//! `c10d::ProcessGroup` and the collectives under way on it.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::time::Duration;

use tch::Tensor;

use super::{FfiResult, StoreHandle, check, handle, handles, made, milliseconds};

unsafe extern "C" {
    fn fb_group_gloo(
        store: *mut c_void,
        rank: c_int,
        world: c_int,
        timeout_ms: i64,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn fb_group_free(group: *mut c_void, failed: c_int);
    fn fb_group_all_reduce(
        group: *mut c_void,
        tensor: *mut c_void,
        op: c_int,
        work: *mut *mut c_void,
    ) -> *mut c_char;
    fn fb_group_reduce_scatter(
        group: *mut c_void,
        input: *mut c_void,
        output: *mut c_void,
        op: c_int,
        work: *mut *mut c_void,
    ) -> *mut c_char;
    fn fb_group_broadcast(
        group: *mut c_void,
        tensor: *mut c_void,
        root: c_int,
        work: *mut *mut c_void,
    ) -> *mut c_char;
    fn fb_group_all_gather(
        group: *mut c_void,
        tensor: *mut c_void,
        outputs: *const *mut c_void,
        count: usize,
        work: *mut *mut c_void,
    ) -> *mut c_char;
    fn fb_group_gather(
        group: *mut c_void,
        tensor: *mut c_void,
        outputs: *const *mut c_void,
        count: usize,
        root: c_int,
        work: *mut *mut c_void,
    ) -> *mut c_char;
    fn fb_group_send(
        group: *mut c_void,
        tensor: *mut c_void,
        to: c_int,
        tag: c_int,
        work: *mut *mut c_void,
    ) -> *mut c_char;
    fn fb_group_recv(
        group: *mut c_void,
        tensor: *mut c_void,
        from: c_int,
        tag: c_int,
        work: *mut *mut c_void,
    ) -> *mut c_char;
    fn fb_group_barrier(group: *mut c_void, work: *mut *mut c_void) -> *mut c_char;
    fn fb_work_wait(work: *mut c_void, timeout_ms: i64) -> *mut c_char;
    fn fb_work_free(work: *mut c_void);
}

/// An owned `intrusive_ptr<c10d::ProcessGroup>`; it keeps its store alive by itself.
#[derive(Debug)]
pub(crate) struct GroupHandle {
    pointer: NonNull<c_void>,
    /// An operation has failed: do not wait for peers when it goes.
    pub failed: Cell<bool>,
}

impl GroupHandle {
    pub fn gloo(store: &StoreHandle, rank: c_int, world: c_int, timeout: Duration) -> FfiResult<Self> {
        let mut out = null_mut();
        // SAFETY: the store's handle is live.
        check(unsafe { fb_group_gloo(store.as_ptr(), rank, world, milliseconds(timeout), &mut out) })?;
        Ok(Self { pointer: made(out)?, failed: Cell::new(false) })
    }

    pub(in crate::ffi) fn as_ptr(&self) -> *mut c_void {
        self.pointer.as_ptr()
    }

    pub fn all_reduce(&self, tensor: &Tensor, op: c_int) -> FfiResult<WorkHandle> {
        let mut work = null_mut();
        // SAFETY: both handles are live; the work holds its own reference to the tensor's storage.
        check(unsafe { fb_group_all_reduce(self.as_ptr(), handle(tensor), op, &mut work) })?;
        made(work).map(WorkHandle)
    }

    pub fn reduce_scatter(&self, input: &Tensor, output: &Tensor, op: c_int) -> FfiResult<WorkHandle> {
        let mut work = null_mut();
        // SAFETY: as in `all_reduce`.
        check(unsafe {
            fb_group_reduce_scatter(self.as_ptr(), handle(input), handle(output), op, &mut work)
        })?;
        made(work).map(WorkHandle)
    }

    pub fn broadcast(&self, tensor: &Tensor, root: c_int) -> FfiResult<WorkHandle> {
        let mut work = null_mut();
        // SAFETY: as in `all_reduce`.
        check(unsafe { fb_group_broadcast(self.as_ptr(), handle(tensor), root, &mut work) })?;
        made(work).map(WorkHandle)
    }

    pub fn all_gather(&self, tensor: &Tensor, outputs: &[Tensor]) -> FfiResult<WorkHandle> {
        let outputs = handles(outputs);
        let mut work = null_mut();
        // SAFETY: as in `all_reduce`; the array is only read during the call.
        check(unsafe {
            fb_group_all_gather(self.as_ptr(), handle(tensor), outputs.as_ptr(), outputs.len(), &mut work)
        })?;
        made(work).map(WorkHandle)
    }

    pub fn gather(&self, tensor: &Tensor, outputs: &[Tensor], root: c_int) -> FfiResult<WorkHandle> {
        let outputs = handles(outputs);
        let mut work = null_mut();
        // SAFETY: as in `all_gather`.
        check(unsafe {
            fb_group_gather(self.as_ptr(), handle(tensor), outputs.as_ptr(), outputs.len(), root, &mut work)
        })?;
        made(work).map(WorkHandle)
    }

    pub fn send(&self, tensor: &Tensor, to: c_int, tag: c_int) -> FfiResult<WorkHandle> {
        let mut work = null_mut();
        // SAFETY: as in `all_reduce`.
        check(unsafe { fb_group_send(self.as_ptr(), handle(tensor), to, tag, &mut work) })?;
        made(work).map(WorkHandle)
    }

    pub fn recv(&self, tensor: &Tensor, from: c_int, tag: c_int) -> FfiResult<WorkHandle> {
        let mut work = null_mut();
        // SAFETY: as in `all_reduce`.
        check(unsafe { fb_group_recv(self.as_ptr(), handle(tensor), from, tag, &mut work) })?;
        made(work).map(WorkHandle)
    }

    pub fn barrier(&self) -> FfiResult<WorkHandle> {
        let mut work = null_mut();
        // SAFETY: the handle is live.
        check(unsafe { fb_group_barrier(self.as_ptr(), &mut work) })?;
        made(work).map(WorkHandle)
    }
}

impl Drop for GroupHandle {
    fn drop(&mut self) {
        // A panic is a failure too: peers may never come to the collectives under way.
        let failed = self.failed.get() || std::thread::panicking();
        // SAFETY: made by the shim, freed here only; a reducer holds its own reference to the group.
        unsafe { fb_group_free(self.as_ptr(), failed.into()) }
    }
}

/// An owned collective under way, or through.
#[derive(Debug)]
pub(crate) struct WorkHandle(NonNull<c_void>);

impl WorkHandle {
    /// `None` waits for as long as the group's timeout lets it.
    pub fn wait(&self, timeout: Option<Duration>) -> FfiResult<()> {
        // SAFETY: the handle is live.
        check(unsafe { fb_work_wait(self.0.as_ptr(), timeout.map_or(-1, milliseconds)) })
    }
}

impl Drop for WorkHandle {
    fn drop(&mut self) {
        // SAFETY: made by the shim, freed here only; a collective still under way holds its own references.
        unsafe { fb_work_free(self.0.as_ptr()) }
    }
}
