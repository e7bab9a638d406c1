//! `c10d::Store`.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::time::Duration;

use super::{FfiResult, c_string, check, fb_free, made, milliseconds};

unsafe extern "C" {
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
    fn fb_store_prefix(store: *mut c_void, prefix: *const c_char, out: *mut *mut c_void) -> *mut c_char;
    fn fb_store_clone(store: *mut c_void, out: *mut *mut c_void) -> *mut c_char;
    fn fb_store_port(store: *mut c_void, out: *mut u16) -> *mut c_char;
    fn fb_store_set(store: *mut c_void, key: *const c_char, data: *const u8, len: usize) -> *mut c_char;
    fn fb_store_get(
        store: *mut c_void,
        key: *const c_char,
        data: *mut *mut u8,
        len: *mut usize,
    ) -> *mut c_char;
    fn fb_store_add(store: *mut c_void, key: *const c_char, amount: i64, out: *mut i64) -> *mut c_char;
    fn fb_store_check(store: *mut c_void, key: *const c_char, out: *mut c_int) -> *mut c_char;
    fn fb_store_delete(store: *mut c_void, key: *const c_char, out: *mut c_int) -> *mut c_char;
    fn fb_store_wait(
        store: *mut c_void,
        keys: *const *const c_char,
        n: usize,
        timeout_ms: i64,
    ) -> *mut c_char;
    fn fb_store_free(store: *mut c_void);
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

// SAFETY: the pointer's reference count is atomic, and a TCP store (or a prefix over one) takes its own lock
// around every request; it is bound to no thread.
unsafe impl Send for StoreHandle {}

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

    pub fn prefixed(&self, prefix: &str) -> FfiResult<Self> {
        let prefix = c_string("prefix", prefix)?;
        let mut out = null_mut();
        // SAFETY: the handle is live; the new store holds its own reference to this one.
        check(unsafe { fb_store_prefix(self.as_ptr(), prefix.as_ptr(), &mut out) })?;
        made(out).map(Self)
    }

    /// The same store over a connection of its own.
    pub fn connect_again(&self) -> FfiResult<Self> {
        let mut out = null_mut();
        // SAFETY: the handle is live.
        check(unsafe { fb_store_clone(self.as_ptr(), &mut out) })?;
        made(out).map(Self)
    }

    pub(in crate::ffi) fn as_ptr(&self) -> *mut c_void {
        self.0.as_ptr()
    }

    pub fn port(&self) -> FfiResult<u16> {
        let mut port = 0;
        // SAFETY: the handle is live; `port` is written before the call returns.
        check(unsafe { fb_store_port(self.as_ptr(), &mut port) })?;
        Ok(port)
    }

    pub fn set(&self, key: &str, value: &[u8]) -> FfiResult<()> {
        let key = c_string("key", key)?;
        // SAFETY: the handle is live; key and value are only read during the call.
        check(unsafe { fb_store_set(self.as_ptr(), key.as_ptr(), value.as_ptr(), value.len()) })
    }

    pub fn get(&self, key: &str) -> FfiResult<Vec<u8>> {
        let key = c_string("key", key)?;
        let (mut data, mut len) = (null_mut(), 0);
        // SAFETY: the handle is live; the out parameters are written before a null message is returned.
        check(unsafe { fb_store_get(self.as_ptr(), key.as_ptr(), &mut data, &mut len) })?;
        // SAFETY: on success `data` is a malloc'd block of at least `len` initialised bytes that is ours.
        let value = unsafe { std::slice::from_raw_parts(data, len) }.to_vec();
        // SAFETY: see above; the copy above is the last use.
        unsafe { fb_free(data.cast()) };
        Ok(value)
    }

    pub fn add(&self, key: &str, amount: i64) -> FfiResult<i64> {
        let key = c_string("key", key)?;
        let mut sum = 0;
        // SAFETY: the handle is live; the key is only read during the call.
        check(unsafe { fb_store_add(self.as_ptr(), key.as_ptr(), amount, &mut sum) })?;
        Ok(sum)
    }

    pub fn contains(&self, key: &str) -> FfiResult<bool> {
        let key = c_string("key", key)?;
        let mut found = 0;
        // SAFETY: as in `add`.
        check(unsafe { fb_store_check(self.as_ptr(), key.as_ptr(), &mut found) })?;
        Ok(found != 0)
    }

    pub fn delete(&self, key: &str) -> FfiResult<bool> {
        let key = c_string("key", key)?;
        let mut deleted = 0;
        // SAFETY: as in `add`.
        check(unsafe { fb_store_delete(self.as_ptr(), key.as_ptr(), &mut deleted) })?;
        Ok(deleted != 0)
    }

    pub fn wait(&self, keys: &[&str], timeout: Duration) -> FfiResult<()> {
        let keys = keys.iter().map(|key| c_string("key", key)).collect::<FfiResult<Vec<_>>>()?;
        let pointers: Vec<_> = keys.iter().map(|key| key.as_ptr()).collect();
        // SAFETY: the handle is live; `pointers` and the strings behind them outlive the call.
        check(unsafe {
            fb_store_wait(self.as_ptr(), pointers.as_ptr(), pointers.len(), milliseconds(timeout))
        })
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        // SAFETY: made by the shim, freed here only; groups hold their own reference to the store.
        unsafe { fb_store_free(self.as_ptr()) }
    }
}
