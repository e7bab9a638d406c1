//! What happens when a mapped page cannot be had: the file was cut, or the disk does not read it.
//!
//! The kernel sends SIGBUS, which ends a process. For an address in one of our maps the handler puts zeros in
//! place of what is missing and marks the map as torn; the reader goes on, finds the mark when it is done,
//! and throws away what it made. For any other address the signal does what it always does.

use parking_lot::Mutex;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Maps guarded at once. More maps than this go unguarded: the disk cache keeps half as many.
const SLOTS_MAX: usize = 32 << 10;

/// A handler may neither lock nor allocate, so it looks through plain slots. `start` is 0 in free ones.
struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    torn: AtomicBool,
}

static SLOTS: [Slot; SLOTS_MAX] =
    [const { Slot { start: AtomicUsize::new(0), end: AtomicUsize::new(0), torn: AtomicBool::new(false) } };
        SLOTS_MAX];

/// Slots that were ever used, and those of them that are free again.
static USED: AtomicUsize = AtomicUsize::new(0);
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

static HANDLER: Once = Once::new();

/// Guards a map until it ends.
#[derive(Debug)]
pub struct Guard {
    slot: Option<usize>,
    torn: AtomicBool,
}

impl Guard {
    /// Guards these addresses.
    pub fn new(start: usize, end: usize) -> Self {
        HANDLER.call_once(install);
        let slot = {
            let mut free = FREE.lock();
            free.pop().or_else(|| {
                let next = USED.load(Ordering::Relaxed);
                (next < SLOTS_MAX).then(|| {
                    USED.store(next + 1, Ordering::Release);
                    next
                })
            })
        };
        if let Some(slot) = slot.map(|i| &SLOTS[i]) {
            slot.torn.store(false, Ordering::Relaxed);
            slot.end.store(end, Ordering::Relaxed);
            slot.start.store(start, Ordering::Release);
        }
        Self { slot, torn: AtomicBool::new(false) }
    }

    /// Whether a page of the map was missing.
    pub fn is_torn(&self) -> bool {
        let now = self.slot.is_some_and(|i| SLOTS[i].torn.load(Ordering::Acquire));
        self.torn.load(Ordering::Acquire) || now
    }

    /// The map is about to end.
    pub fn end(&self) {
        let Some(i) = self.slot else { return };
        self.torn.fetch_or(SLOTS[i].torn.load(Ordering::Acquire), Ordering::AcqRel);
        SLOTS[i].start.store(0, Ordering::Release);
        FREE.lock().push(i);
    }
}

fn install() {
    // SAFETY: an all-zero sigaction is a valid one, and its fields are set before it is used; the handler
    // only reads atomics and makes system calls.
    let installed = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut())
    };
    if installed != 0 {
        tracing::warn!(
            "SIGBUS cannot be handled: a segment file that is cut from outside while it is read ends the server"
        );
    }
}

extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to a handler that was installed with SA_SIGINFO.
    let at = unsafe { (*info).si_addr() } as usize;
    let used = USED.load(Ordering::Acquire).min(SLOTS_MAX);
    for slot in &SLOTS[..used] {
        let start = slot.start.load(Ordering::Acquire);
        let end = slot.end.load(Ordering::Relaxed);
        if start == 0 || at < start || at >= end {
            continue;
        }
        slot.torn.store(true, Ordering::Release);
        let page = at & !4095;
        // SAFETY: the pages from here to the map's end belong to a map of ours, which is read only; zeros
        // take their place.
        let got = unsafe {
            libc::mmap(
                page as *mut libc::c_void,
                end - page,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if got != libc::MAP_FAILED {
            return;
        }
    }
    // SAFETY: the default action is always valid; the access is tried again, and ends the process as it
    // should.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}
