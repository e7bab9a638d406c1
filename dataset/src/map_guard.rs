//! What happens when a mapped page cannot be had: the file was cut, or the disk does not read it.
//!
//! The kernel sends SIGBUS, which ends a process. For an address in one of our maps the handler puts zeros in
//! place of the missing pages and marks the map as torn; the reader goes on, finds the mark when it is done,
//! and throws away what it made. For any other address the signal does what it did before.
#![expect(unsafe_code, reason = "signals are handled, and pages put in place of others")]

use parking_lot::Mutex;
use rustix::param::page_size;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{LazyLock, Once, OnceLock};

/// Maps guarded at once. More maps than this go unguarded: a disk cache keeps half as many.
const SLOTS_MAX: usize = 32 << 10;

static SLOTS: LazyLock<Vec<Slot>> = LazyLock::new(|| (0..SLOTS_MAX).map(|_| Slot::default()).collect());

/// Slots that no map has.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

static HANDLER: Once = Once::new();

/// What was done on SIGBUS before: a process that maps files may have a handler of its own.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

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
        let slot = FREE.lock().pop();
        if let Some(slot) = slot.map(|i| &SLOTS[i]) {
            slot.torn.store(false, Ordering::Relaxed);
            slot.set(start, end);
        }
        Self { slot, torn: AtomicBool::new(false) }
    }

    /// Whether a page of the map was missing.
    pub fn is_torn(&self) -> bool {
        // The slot is another map's once this one has ended: its mark was taken over then, and `torn` stays.
        let now = self.slot.is_some_and(|i| SLOTS[i].torn.load(Ordering::Acquire));
        self.torn.load(Ordering::Acquire) || now
    }

    /// The map is about to end.
    pub fn end(&self) {
        let Some(i) = self.slot else { return };
        self.torn.fetch_or(SLOTS[i].torn.load(Ordering::Acquire), Ordering::AcqRel);
        SLOTS[i].set(0, 0);
        FREE.lock().push(i);
    }
}

/// The addresses of a map. The handler may neither lock nor allocate, so it looks through plain slots: each
/// is a seqlock, so that it never sees one map's start with another one's end.
#[derive(Default)]
struct Slot {
    /// Odd while the addresses change.
    version: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    torn: AtomicBool,
}

impl Slot {
    /// Sets the addresses. One thread at a time: the one that has the slot.
    fn set(&self, start: usize, end: usize) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// The end of the map if it covers an address. `None` if the slot changes meanwhile: then its map is not
    /// the one that is being read, which lives as long as its reader. `between` is called after the start is
    /// read.
    fn end_if_covering(&self, address: usize, between: impl FnOnce()) -> Option<usize> {
        let before = self.version.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Relaxed);
        between();
        let end = self.end.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let after = self.version.load(Ordering::Relaxed);
        (before == after && before.is_multiple_of(2) && (start..end).contains(&address)).then_some(end)
    }
}

fn install() {
    // Asked and made here, so that the handler finds them.
    page_size();
    FREE.lock().extend(0..SLOTS.len());
    // SAFETY: an all-zero sigaction is a valid one, and its fields are set before it is used; the handler
    // only reads atomics and makes system calls.
    let installed = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        let mut before: libc::sigaction = std::mem::zeroed();
        let installed = libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before);
        // It is done once.
        BEFORE.set(before).ok();
        installed
    };
    if installed != 0 {
        tracing::warn!(
            "SIGBUS cannot be handled: a segment file that is cut from outside while it is read ends the process"
        );
    }
}

/// The first byte of the page that an address lies in.
fn page_of(address: usize, page_bytes: usize) -> usize {
    address & !(page_bytes - 1)
}

extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to a handler that was installed with SA_SIGINFO.
    let at = unsafe { (*info).si_addr() } as usize;
    let page = page_of(at, page_size());
    for slot in SLOTS.iter() {
        let Some(end) = slot.end_if_covering(at, || ()) else { continue };
        slot.torn.store(true, Ordering::Release);
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
    // SAFETY: an action that the kernel gave, or the default one, is valid; the access is tried again, and
    // does what it did before.
    unsafe {
        match BEFORE.get() {
            Some(before) => libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut()) as usize,
            None => libc::signal(libc::SIGBUS, libc::SIG_DFL),
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_is_given_to_another_map_while_it_is_read_covers_nothing() {
        let slot = Slot::default();
        slot.set(1000, 2000);
        assert_eq!(slot.end_if_covering(1500, || ()), Some(2000));
        assert_eq!([999, 2000].map(|at| slot.end_if_covering(at, || ())), [None; 2]);
        // The old start with the new end would cover what lies between the two maps, which is not ours.
        assert_eq!(slot.end_if_covering(5000, || slot.set(8000, 9000)), None);
        slot.set(1000, 2000);
        let ended_and_back = || {
            slot.set(0, 0);
            slot.set(1000, 9000);
        };
        assert_eq!(slot.end_if_covering(1500, ended_and_back), None);
    }

    #[test]
    fn pages_are_as_large_as_the_kernel_says() {
        assert_eq!(page_of(0x12_3456, 4 << 10), 0x12_3000);
        assert_eq!(page_of(0x12_3456, 64 << 10), 0x12_0000);
    }
}
