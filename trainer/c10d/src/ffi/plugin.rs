//! The NCCL plugin, opened by `dlopen`; its interface is `shim/plugin.h`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use super::FfiResult;
use super::bridge::{GroupHandle, StoreHandle, torch_version};
use crate::error::Failure;

/// `FB_PLUGIN_ABI`: the interface that this file is written for.
const ABI: c_int = 3;

unsafe extern "C" {
    fn free(memory: *mut c_void);
}

/// How NCCL runs, beside what its variables say; the defaults are PyTorch's. `FbNcclOptions` of the shim.
#[repr(C)]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NcclSettings {
    /// Collectives run on a stream of high priority: they start sooner beside heavy computation.
    pub high_priority_stream: bool,
    /// The least thread blocks per collective (`ncclConfig_t::minCTAs`); 0 leaves it to NCCL.
    pub min_ctas: u16,
    /// The most thread blocks per collective (`ncclConfig_t::maxCTAs`); 0 leaves it to NCCL.
    pub max_ctas: u16,
}

type Version = unsafe extern "C" fn() -> *const c_char;
type DeviceCount = unsafe extern "C" fn(*mut c_int) -> *mut c_char;
type AddNccl = unsafe extern "C" fn(
    *const GroupHandle,
    *const StoreHandle,
    c_int,
    i64,
    *const NcclSettings,
) -> *mut c_char;

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
        // SAFETY: it takes nothing, in every version of the interface.
        let abi = unsafe { symbol::<unsafe extern "C" fn() -> c_int>(&library, "fb_plugin_abi")?() };
        if abi != ABI {
            return Err(Failure::own(format!(
                "it has interface {abi}, but this program wants {ABI}: build both from the same tree"
            )));
        }
        // SAFETY: the number says that the types are those of `plugin.h`, here and below.
        let version = unsafe { symbol::<Version>(&library, "fb_plugin_torch_version")? };
        // SAFETY: it gives a constant string.
        let (theirs, ours) = (unsafe { CStr::from_ptr(version()) }.to_string_lossy(), torch_version());
        if theirs != ours {
            let text = format!("it was built against libtorch {theirs}, this program against {ours}");
            return Err(Failure::own(text));
        }
        // SAFETY: see above.
        let device_count = unsafe { symbol(&library, "fb_plugin_device_count")? };
        // SAFETY: see above.
        Ok(Self { device_count, add_nccl: unsafe { symbol(&library, "fb_plugin_add_nccl")? } })
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
        timeout_ms: i64,
        settings: &NcclSettings,
    ) -> FfiResult<()> {
        let device = c_int::try_from(device).map_err(|_| Failure::own(format!("no CUDA device {device}")))?;
        // SAFETY: the library stays open, both handles are live and begin with the pointers that are wanted
        // (`shim.h`), and the settings are only read.
        check(unsafe { (self.add_nccl)(group, store, device, timeout_ms, settings) })
    }
}

/// Takes the plugin's message, if there is one.
fn check(message: *mut c_char) -> FfiResult<()> {
    if message.is_null() {
        return Ok(());
    }
    // SAFETY: a NUL-terminated string from strdup that is ours; it is read, then freed once.
    let text = unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned();
    // SAFETY: see above; no reference to the string is left.
    unsafe { free(message.cast()) };
    Err(Failure::thrown(&text))
}

/// # Safety
/// `T` is the type of what the library calls `name`.
unsafe fn symbol<T: Copy>(library: &Library, name: &str) -> FfiResult<T> {
    // SAFETY: the caller's promise.
    unsafe { library.get::<T>(name.as_bytes()) }
        .map(|symbol| *symbol)
        .map_err(|_| Failure::own(format!("it has no {name}: it is no plugin of Forebay's")))
}

/// What the loader said, which names a library that is missing.
fn loader_text(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}
