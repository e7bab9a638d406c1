//! Memory that CUDA devices read without a copy: its pages are registered, and stay where they are.
//!
//! This asks the driver's own library, which is there wherever a device is. Nothing of CUDA or torch is
//! linked.
#![expect(unsafe_code, reason = "functions of a C library are loaded and called")]

use forebay_dataset::pool::{Registrar, Registration};
use libloading::Library;
use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::ptr::null_mut;
use std::sync::{Arc, LazyLock};

const LIBRARY: &str = "libcuda.so.1";

/// The memory counts as registered for all devices.
const PORTABLE: c_uint = 1;

/// What each of the driver's functions returns; 0 if all went well.
type Outcome = c_int;
type Context = *mut c_void;

/// The first device that was asked for. Registered memory is there for all of them.
static DRIVER: LazyLock<parking_lot::Mutex<Option<Arc<Driver>>>> = LazyLock::new(Default::default);

/// The functions that are needed here, and a device's context, in which registering takes place.
struct Driver {
    push: unsafe extern "C" fn(Context) -> Outcome,
    pop: unsafe extern "C" fn(*mut Context) -> Outcome,
    register: unsafe extern "C" fn(*mut c_void, usize, c_uint) -> Outcome,
    unregister: unsafe extern "C" fn(*mut c_void) -> Outcome,
    /// As an address: any thread may use it.
    context: usize,
    /// CUDA cannot be used in a process that was forked from this one.
    process: u32,
    /// The functions are its own.
    _library: Library,
}

/// Registers memory with the driver; kept as long as memory is registered.
#[derive(Debug)]
struct HostMemory(Arc<Driver>);

/// What registers memory for a CUDA device; `None` if the driver cannot be used here: then torch copies
/// batches into memory of its own.
pub(crate) fn registrar(device: u32) -> Option<Arc<dyn Registrar>> {
    let mut driver = DRIVER.lock();
    if driver.as_ref().is_none_or(|driver| !driver.is_here()) {
        let opened = Driver::open(device);
        *driver =
            opened.map(Arc::new).inspect_err(|why| tracing::debug!(device, why, "no registered memory")).ok();
    }
    Some(Arc::new(HostMemory(driver.clone()?)))
}

impl Driver {
    fn open(device: u32) -> Result<Self, String> {
        let text = |e: libloading::Error| e.to_string();
        // SAFETY: the driver's library may be loaded at any time; torch has done so.
        let library = unsafe { Library::new(LIBRARY) }.map_err(text)?;
        // SAFETY: these are the signatures in cuda.h, of version 11 and later.
        unsafe {
            let init = *library.get::<unsafe extern "C" fn(c_uint) -> Outcome>(b"cuInit").map_err(text)?;
            let find = *library
                .get::<unsafe extern "C" fn(*mut c_int, c_int) -> Outcome>(b"cuDeviceGet")
                .map_err(text)?;
            let retain = *library
                .get::<unsafe extern "C" fn(*mut Context, c_int) -> Outcome>(b"cuDevicePrimaryCtxRetain")
                .map_err(text)?;
            let (mut number, mut context) = (0, null_mut());
            let device = c_int::try_from(device).map_err(|e| e.to_string())?;
            check("cuInit", init(0))?;
            check("cuDeviceGet", find(&raw mut number, device))?;
            // It stays until the process ends: torch uses the same.
            check("cuDevicePrimaryCtxRetain", retain(&raw mut context, number))?;
            Ok(Self {
                push: *library.get(b"cuCtxPushCurrent_v2").map_err(text)?,
                pop: *library.get(b"cuCtxPopCurrent_v2").map_err(text)?,
                register: *library.get(b"cuMemHostRegister_v2").map_err(text)?,
                unregister: *library.get(b"cuMemHostUnregister").map_err(text)?,
                context: context as usize,
                process: std::process::id(),
                _library: library,
            })
        }
    }

    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    /// Calls a function in the context; false if that, or the function, fails. At the process's end the
    /// driver may be gone, which it says.
    fn call(&self, function: impl FnOnce() -> Outcome) -> bool {
        // SAFETY: the context is one of this process, where the caller looked, and is put back below.
        if !self.is_here() || unsafe { (self.push)(self.context as Context) } != 0 {
            return false;
        }
        let (outcome, mut context) = (function(), null_mut());
        // SAFETY: the one that was pushed above.
        let popped = unsafe { (self.pop)(&raw mut context) };
        (outcome, popped) == (0, 0)
    }
}

impl Registrar for HostMemory {
    fn register(&self, bytes: &[u8]) -> Option<Registration> {
        let (driver, start, len) = (self.0.clone(), bytes.as_ptr() as usize, bytes.len());
        // SAFETY: the memory is there until the registration was dropped.
        let is_registered = driver.call(|| unsafe { (driver.register)(start as *mut c_void, len, PORTABLE) });
        if !is_registered {
            tracing::debug!(bytes = len, "CUDA does not register memory of a batch: it is copied instead");
        }
        is_registered.then(|| {
            Registration::new(move || {
                // SAFETY: it was registered above, and is not freed yet.
                driver.call(|| unsafe { (driver.unregister)(start as *mut c_void) });
            })
        })
    }
}

fn check(function: &str, outcome: Outcome) -> Result<(), String> {
    if outcome == 0 { Ok(()) } else { Err(format!("{function}: CUDA's error {outcome}")) }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Driver")
    }
}
