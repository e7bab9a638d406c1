//! What belongs to the process that made it: connections, tasks, threads. `fork()` copies the memory of these
//! but none of their threads, so in a forked process they are neither used nor dropped.

use forebay_proto::{Error, Result};

/// A value of the process that made it.
pub(crate) struct OfProcess<T> {
    process: u32,
    /// `None` once it was dropped.
    value: Option<T>,
}

impl<T> OfProcess<T> {
    pub fn new(value: T) -> Self {
        Self { process: std::process::id(), value: Some(value) }
    }

    /// The value; `Closed` in a forked process.
    pub fn get(&self) -> Result<&T> {
        self.value.as_ref().filter(|_| self.is_here()).ok_or_else(forked)
    }

    /// The same, to change it.
    pub fn get_mut(&mut self) -> Result<&mut T> {
        let is_here = self.is_here();
        self.value.as_mut().filter(|_| is_here).ok_or_else(forked)
    }

    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if !self.is_here() {
            std::mem::forget(self.value.take());
        }
    }
}

/// The error of a forked process.
pub(crate) fn forked() -> Error {
    Error::closed(
        "forebay was used before fork(), which copies none of its threads: start processes with \
         multiprocessing.set_start_method('forkserver') or 'spawn', or first use forebay in the child",
    )
}
