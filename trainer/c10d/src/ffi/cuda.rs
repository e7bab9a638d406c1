//! The NCCL plugin, opened by `dlopen`; its interface is `shim/plugin.h`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::time::Duration;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW, Symbol};

use super::{FfiResult, GroupHandle, StoreHandle, check, milliseconds};
use crate::error::Failure;

/// `FB_PLUGIN_ABI`: the interface that this file is written for.
const ABI: c_int = 2;

unsafe extern "C" {
    fn fb_torch_version() -> *const c_char;
}

/// `FbNcclOptions` of the shim.
#[repr(C)]
pub(crate) struct NcclOptions {
    timeout_ms: i64,
    high_priority_stream: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
}

impl NcclOptions {
    pub fn new(timeout: Duration, high_priority_stream: bool, min_ctas: u16, max_ctas: u16) -> Self {
        Self {
            timeout_ms: milliseconds(timeout),
            high_priority_stream: high_priority_stream.into(),
            min_ctas: min_ctas.into(),
            max_ctas: max_ctas.into(),
        }
    }
}

type DeviceCount = unsafe extern "C" fn(*mut c_int) -> *mut c_char;
type AddNccl = unsafe extern "C" fn(*mut c_void, *mut c_void, c_int, *const NcclOptions) -> *mut c_char;

/// The plugin's functions. The library is never closed: libtorch's CUDA part has registered itself by then,
/// and keeps threads and destructors in it.
#[derive(Debug)]
pub(crate) struct Plugin {
    device_count: DeviceCount,
    add_nccl: AddNccl,
}

impl Plugin {
    /// Opens the plugin at `path` and checks that it was built for this program.
    pub fn open(path: &Path) -> FfiResult<Self> {
        // RTLD_GLOBAL: what libtorch_cuda defines must be seen by everything that libtorch opens later.
        // SAFETY: the plugin's own initialisers are libtorch's, which expect to be run like this; a file that
        // is no plugin fails in a check below, before anything of it is called.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
        let library =
            std::mem::ManuallyDrop::new(library.map_err(|error| Failure::own(loader_text(&error)))?);
        // SAFETY: the types are those of `plugin.h`; the number is the same in every version of the
        // interface.
        let abi: Symbol<unsafe extern "C" fn() -> c_int> = unsafe { symbol(&library, "fb_plugin_abi") }?;
        // SAFETY: takes nothing.
        let abi = unsafe { abi() };
        if abi != ABI {
            return Err(Failure::own(format!(
                "it has interface {abi}, but this program wants {ABI}: build both from the same tree"
            )));
        }
        // SAFETY: the number says that the types are those of `plugin.h`, here and below.
        let version: Symbol<unsafe extern "C" fn() -> *const c_char> =
            unsafe { symbol(&library, "fb_plugin_torch_version") }?;
        // SAFETY: both give constant strings.
        let (theirs, ours) = unsafe { (CStr::from_ptr(version()), CStr::from_ptr(fb_torch_version())) };
        if theirs != ours {
            return Err(Failure::own(format!(
                "it was built against libtorch {}, this program against {}",
                theirs.to_string_lossy(),
                ours.to_string_lossy()
            )));
        }
        // SAFETY: see above.
        let device_count: Symbol<DeviceCount> = unsafe { symbol(&library, "fb_plugin_device_count") }?;
        // SAFETY: see above.
        let add_nccl: Symbol<AddNccl> = unsafe { symbol(&library, "fb_plugin_add_nccl") }?;
        Ok(Self { device_count: *device_count, add_nccl: *add_nccl })
    }

    /// How many GPUs there are; the error says why there is none.
    pub fn device_count(&self) -> FfiResult<usize> {
        let mut count = 0;
        // SAFETY: the library stays open; `count` is written before the call returns.
        check(unsafe { (self.device_count)(&mut count) })?;
        Ok(usize::try_from(count).unwrap_or_default())
    }

    pub fn add_nccl(
        &self,
        group: &GroupHandle,
        store: &StoreHandle,
        device: usize,
        options: &NcclOptions,
    ) -> FfiResult<()> {
        let device = c_int::try_from(device).map_err(|_| Failure::own(format!("no CUDA device {device}")))?;
        // SAFETY: the library stays open, both handles are live, and the options are only read.
        check(unsafe { (self.add_nccl)(group.as_ptr(), store.as_ptr(), device, options) })
    }
}

/// # Safety
/// `T` is the type of what the library calls `name`.
unsafe fn symbol<T>(library: &Library, name: &str) -> FfiResult<Symbol<T>> {
    // SAFETY: the caller's promise.
    unsafe { library.get(name.as_bytes()) }
        .map_err(|_| Failure::own(format!("it has no {name}: it is no plugin of Forebay's")))
}

/// What the loader said, which names a library that is missing.
fn loader_text(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}
