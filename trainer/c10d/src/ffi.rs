//! The boundary to `shim/`: the only place of this crate with `unsafe` code.
//!
//! Each C++ object is held by one handle that frees it once; each call turns the shim's message into a `String`.
//! The rest of the crate sees safe functions only. The handles hold bare pointers and so are neither `Send` nor
//! `Sync`: c10d's groups and reducers want to be called from one thread in one order.

#![expect(unsafe_code, reason = "calls into C++; every block says what makes it sound")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::time::Duration;

use tch::{Kind, Tensor};

pub(crate) mod foreach;

/// The first failure's text, as C++ gave it.
pub(crate) type FfiResult<T> = Result<T, String>;

unsafe extern "C" {
    fn fb_free(memory: *mut c_void);
    fn fb_init_logging() -> *mut c_char;
    fn fb_store_tcp(
        host: *const c_char,
        port: u16,
        world: c_int,
        is_master: c_int,
        wait_workers: c_int,
        listen_fd: c_int,
        timeout_ms: i64,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn fb_store_port(store: *mut c_void, out: *mut u16) -> *mut c_char;
    fn fb_store_set(store: *mut c_void, key: *const c_char, data: *const u8, len: usize) -> *mut c_char;
    fn fb_store_get(
        store: *mut c_void,
        key: *const c_char,
        data: *mut *mut u8,
        len: *mut usize,
    ) -> *mut c_char;
    fn fb_store_wait(
        store: *mut c_void,
        keys: *const *const c_char,
        n: usize,
        timeout_ms: i64,
    ) -> *mut c_char;
    fn fb_store_free(store: *mut c_void);
    fn fb_group_gloo(
        store: *mut c_void,
        rank: c_int,
        world: c_int,
        timeout_ms: i64,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn fb_group_all_reduce(group: *mut c_void, tensor: *mut c_void, op: c_int) -> *mut c_char;
    fn fb_group_broadcast(group: *mut c_void, tensor: *mut c_void, root: c_int) -> *mut c_char;
    fn fb_group_all_gather(
        group: *mut c_void,
        tensor: *mut c_void,
        outputs: *const *mut c_void,
        count: usize,
    ) -> *mut c_char;
    fn fb_group_barrier(group: *mut c_void) -> *mut c_char;
    fn fb_group_free(group: *mut c_void);
    fn fb_ddp_new(
        group: *mut c_void,
        parameters: *const *mut c_void,
        parameter_count: usize,
        buffers: *const *mut c_void,
        buffer_count: usize,
        bucket_bytes: i64,
        first_bucket_bytes: i64,
        find_unused: c_int,
        gradient_as_bucket_view: c_int,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn fb_ddp_before_forward(ddp: *mut c_void) -> *mut c_char;
    fn fb_ddp_before_backward(ddp: *mut c_void, outputs: *const *mut c_void, count: usize) -> *mut c_char;
    fn fb_ddp_bucket_sizes(
        ddp: *mut c_void,
        out: *mut i64,
        capacity: usize,
        count: *mut usize,
    ) -> *mut c_char;
    fn fb_ddp_stat(ddp: *mut c_void, key: *const c_char, out: *mut i64, found: *mut c_int) -> *mut c_char;
    fn fb_ddp_free(ddp: *mut c_void);
    fn fb_zero_grads(parameters: *const *mut c_void, count: usize, set_to_none: c_int) -> *mut c_char;
    fn fb_tensor_from_owner(
        data: *mut c_void,
        sizes: *const i64,
        dimensions: usize,
        scalar_type: c_int,
        owner: *mut c_void,
        drop_owner: unsafe extern "C" fn(*mut c_void),
        out: *mut *mut c_void,
    ) -> *mut c_char;
}

/// Takes the shim's message, if there is one.
fn check(message: *mut c_char) -> FfiResult<()> {
    if message.is_null() {
        return Ok(());
    }
    // SAFETY: the shim returns null or a NUL-terminated string from strdup that is ours; it is read, then freed once.
    let text = unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned();
    // SAFETY: see above; no reference to the string is left.
    unsafe { fb_free(message.cast()) };
    Err(text)
}

fn c_string(what: &str, text: &str) -> FfiResult<CString> {
    CString::new(text).map_err(|_| format!("the {what} {text:?} contains a NUL byte"))
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
    NonNull::new(pointer).ok_or_else(|| "the shim made nothing".to_owned())
}

/// Applies the environment's log level.
pub(crate) fn init_logging() -> FfiResult<()> {
    // SAFETY: takes nothing; libtorch guards its own state.
    check(unsafe { fb_init_logging() })
}

/// Where a TCP store listens or connects to.
pub(crate) struct TcpStore<'a> {
    pub host: &'a str,
    pub port: u16,
    pub world: c_int,
    pub is_master: bool,
    pub wait_workers: bool,
    /// A bound and listening socket for the master to take over; it owns the descriptor from then on.
    pub listener: Option<std::net::TcpListener>,
    pub timeout: Duration,
}

/// An owned `intrusive_ptr<c10d::Store>`.
#[derive(Debug)]
pub(crate) struct StoreHandle(NonNull<c_void>);

impl StoreHandle {
    pub fn tcp(settings: TcpStore<'_>) -> FfiResult<Self> {
        use std::os::fd::IntoRawFd;
        let host = c_string("host", settings.host)?;
        let fd = settings.listener.map_or(-1, IntoRawFd::into_raw_fd);
        let (master, wait) = (c_int::from(settings.is_master), c_int::from(settings.wait_workers));
        let timeout = milliseconds(settings.timeout);
        let mut out = null_mut();
        // SAFETY: `host` lives through the call; `fd` is -1 or a descriptor that was released to the callee.
        check(unsafe {
            fb_store_tcp(host.as_ptr(), settings.port, settings.world, master, wait, fd, timeout, &mut out)
        })?;
        made(out).map(Self)
    }

    pub fn port(&self) -> FfiResult<u16> {
        let mut port = 0;
        // SAFETY: the handle is live; `port` is written before the call returns.
        check(unsafe { fb_store_port(self.0.as_ptr(), &mut port) })?;
        Ok(port)
    }

    pub fn set(&self, key: &str, value: &[u8]) -> FfiResult<()> {
        let key = c_string("key", key)?;
        // SAFETY: the handle is live; key and value are only read during the call.
        check(unsafe { fb_store_set(self.0.as_ptr(), key.as_ptr(), value.as_ptr(), value.len()) })
    }

    pub fn get(&self, key: &str) -> FfiResult<Vec<u8>> {
        let key = c_string("key", key)?;
        let (mut data, mut len) = (null_mut(), 0);
        // SAFETY: the handle is live; the out parameters are written before a null message is returned.
        check(unsafe { fb_store_get(self.0.as_ptr(), key.as_ptr(), &mut data, &mut len) })?;
        // SAFETY: on success `data` is a malloc'd block of at least `len` initialised bytes that is ours.
        let value = unsafe { std::slice::from_raw_parts(data, len) }.to_vec();
        // SAFETY: see above; the copy above is the last use.
        unsafe { fb_free(data.cast()) };
        Ok(value)
    }

    pub fn wait(&self, keys: &[&str], timeout: Duration) -> FfiResult<()> {
        let keys = keys.iter().map(|key| c_string("key", key)).collect::<FfiResult<Vec<_>>>()?;
        let pointers: Vec<_> = keys.iter().map(|key| key.as_ptr()).collect();
        // SAFETY: the handle is live; `pointers` and the strings behind them outlive the call.
        check(unsafe {
            fb_store_wait(self.0.as_ptr(), pointers.as_ptr(), pointers.len(), milliseconds(timeout))
        })
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        // SAFETY: made by the shim, freed here only; groups hold their own reference to the store.
        unsafe { fb_store_free(self.0.as_ptr()) }
    }
}

/// An owned `intrusive_ptr<c10d::ProcessGroup>`; it keeps its store alive by itself.
#[derive(Debug)]
pub(crate) struct GroupHandle(NonNull<c_void>);

impl GroupHandle {
    pub fn gloo(store: &StoreHandle, rank: c_int, world: c_int, timeout: Duration) -> FfiResult<Self> {
        let mut out = null_mut();
        // SAFETY: the store's handle is live.
        check(unsafe { fb_group_gloo(store.0.as_ptr(), rank, world, milliseconds(timeout), &mut out) })?;
        made(out).map(Self)
    }

    pub fn all_reduce(&self, tensor: &mut Tensor, op: c_int) -> FfiResult<()> {
        // SAFETY: both handles are live; the tensor is borrowed mutably while its storage is written.
        check(unsafe { fb_group_all_reduce(self.0.as_ptr(), handle(tensor), op) })
    }

    pub fn broadcast(&self, tensor: &mut Tensor, root: c_int) -> FfiResult<()> {
        // SAFETY: as in `all_reduce`.
        check(unsafe { fb_group_broadcast(self.0.as_ptr(), handle(tensor), root) })
    }

    pub fn all_gather(&self, tensor: &Tensor, outputs: &mut [Tensor]) -> FfiResult<()> {
        let outputs = handles(outputs);
        // SAFETY: all handles are live; the outputs are borrowed mutably while they are written.
        check(unsafe {
            fb_group_all_gather(self.0.as_ptr(), handle(tensor), outputs.as_ptr(), outputs.len())
        })
    }

    pub fn barrier(&self) -> FfiResult<()> {
        // SAFETY: the handle is live.
        check(unsafe { fb_group_barrier(self.0.as_ptr()) })
    }
}

impl Drop for GroupHandle {
    fn drop(&mut self) {
        // SAFETY: made by the shim, freed here only; a reducer holds its own reference to the group.
        unsafe { fb_group_free(self.0.as_ptr()) }
    }
}

/// The numbers and switches of a reducer.
pub(crate) struct DdpOptions {
    pub bucket_bytes: i64,
    pub first_bucket_bytes: i64,
    pub find_unused: bool,
    pub gradient_as_bucket_view: bool,
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
        // SAFETY: all handles are live; the shim copies the tensors' references and keeps none of these arrays.
        check(unsafe {
            fb_ddp_new(
                group.0.as_ptr(),
                parameters.as_ptr(),
                parameters.len(),
                buffers.as_ptr(),
                buffers.len(),
                options.bucket_bytes,
                options.first_bucket_bytes,
                c_int::from(options.find_unused),
                c_int::from(options.gradient_as_bucket_view),
                &mut out,
            )
        })?;
        made(out).map(Self)
    }

    pub fn before_forward(&self) -> FfiResult<()> {
        // SAFETY: the handle is live.
        check(unsafe { fb_ddp_before_forward(self.0.as_ptr()) })
    }

    pub fn before_backward(&self, output: &Tensor) -> FfiResult<()> {
        let outputs = [handle(output)];
        // SAFETY: both handles are live; the array is only read during the call.
        check(unsafe { fb_ddp_before_backward(self.0.as_ptr(), outputs.as_ptr(), outputs.len()) })
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

    pub fn stat(&self, key: &str) -> FfiResult<Option<i64>> {
        let key = c_string("key", key)?;
        let (mut value, mut found) = (0, 0);
        // SAFETY: the handle is live; the out parameters outlive the call.
        check(unsafe { fb_ddp_stat(self.0.as_ptr(), key.as_ptr(), &mut value, &mut found) })?;
        Ok((found != 0).then_some(value))
    }
}

impl Drop for DdpHandle {
    fn drop(&mut self) {
        // SAFETY: made by the shim, freed here only; the reducer takes its hooks off the parameters as it goes.
        unsafe { fb_ddp_free(self.0.as_ptr()) }
    }
}

/// Clears the gradients of `parameters`.
pub(crate) fn zero_grads(parameters: &[Tensor], set_to_none: bool) -> FfiResult<()> {
    let parameters = handles(parameters);
    // SAFETY: the handles are live; the array is only read during the call.
    check(unsafe { fb_zero_grads(parameters.as_ptr(), parameters.len(), c_int::from(set_to_none)) })
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
        other => return Err(format!("no plain buffers of {other:?}")),
    })
}

/// A tensor over the bytes of `owner`, which it owns. The caller has checked that they hold exactly `sizes` elements
/// of `kind` and are aligned for it.
pub(crate) fn tensor_from_owner<O>(owner: Box<O>, sizes: &[i64], kind: Kind) -> FfiResult<Tensor>
where
    O: std::ops::Deref<Target = [u8]> + Send + 'static,
{
    unsafe extern "C" fn drop_owner<O>(owner: *mut c_void) {
        // SAFETY: `owner` is the box that was leaked below, and libtorch calls this once, with the last reference.
        let owner = unsafe { Box::from_raw(owner.cast::<O>()) };
        // A panic must not reach C++: the process would abort without a word.
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(owner))).is_err() {
            eprintln!("the owner of a tensor's memory panicked while it was dropped");
        }
    }

    let scalar_type = scalar_type(kind)?;
    // The box does not move from here on, so the slice stays where it is even if the owner holds its bytes inline.
    let data = owner.as_ptr().cast_mut().cast();
    let owner = Box::into_raw(owner);
    let mut out = null_mut();
    // SAFETY: `data` is valid for the tensor's elements as long as the owner lives (checked by the caller), which is
    // until the storage's last view calls `drop_owner`; `O: Send`, as that may happen on an autograd thread.
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
    // SAFETY: a fresh at::Tensor on the heap, which tch frees.
    Ok(unsafe { Tensor::from_ptr(out.cast()) })
}
