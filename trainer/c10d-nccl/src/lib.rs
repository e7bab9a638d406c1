//! The plugin that `forebay-c10d` opens by `dlopen` when a run asks for a GPU. It does two things.
//!
//! * Its need for `libtorch_cuda.so` brings PyTorch's CUDA kernels into the process. The program itself links
//!   `libtorch_cpu.so` alone, so it runs where there is no CUDA; until the plugin is open, libtorch knows no
//!   GPU.
//! * It adds the NCCL backend (`c10d::ProcessGroupNCCL`) to a group that the program has made.
//!
//! The work is C++, in `shim/nccl.cpp`; a cdylib exports Rust's functions only, so they are forwarded here.
//! The interface is `trainer/c10d/shim/plugin.h`, and its number is checked when the plugin is opened.

use std::ffi::{c_char, c_int, c_void};

unsafe extern "C" {
    fn fb_plugin_abi_impl() -> c_int;
    fn fb_plugin_torch_version_impl() -> *const c_char;
    fn fb_plugin_device_count_impl(out: *mut c_int) -> *mut c_char;
    fn fb_plugin_add_nccl_impl(
        group: *mut c_void,
        store: *mut c_void,
        device: c_int,
        timeout_ms: i64,
        options: *const c_void,
    ) -> *mut c_char;
}

/// The number of the interface.
#[unsafe(no_mangle)]
pub extern "C" fn fb_plugin_abi() -> c_int {
    // SAFETY: takes nothing, gives a constant.
    unsafe { fb_plugin_abi_impl() }
}

/// The release of libtorch that the plugin was compiled against: a constant string.
#[unsafe(no_mangle)]
pub extern "C" fn fb_plugin_torch_version() -> *const c_char {
    // SAFETY: takes nothing, gives a constant.
    unsafe { fb_plugin_torch_version_impl() }
}

/// Counts the GPUs; the message, if there is none, says why.
///
/// # Safety
/// `out` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_plugin_device_count(out: *mut c_int) -> *mut c_char {
    // SAFETY: the caller's promise.
    unsafe { fb_plugin_device_count_impl(out) }
}

/// Adds NCCL to a group, for the GPU `device`.
///
/// # Safety
/// `group` and `store` are handles of the shim, `options` an `FbNcclOptions`, all live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_plugin_add_nccl(
    group: *mut c_void,
    store: *mut c_void,
    device: c_int,
    timeout_ms: i64,
    options: *const c_void,
) -> *mut c_char {
    // SAFETY: the caller's promise.
    unsafe { fb_plugin_add_nccl_impl(group, store, device, timeout_ms, options) }
}
