//! Ties a child to this process, so that it never outlives it: not when a test is interrupted, nor when the
//! demo is told to stop.
//!
//! The tie is to the thread that starts the child: one that ends takes its children with it.
#![expect(unsafe_code, reason = "only the child itself can tie itself, between fork and exec")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Has the kernel kill the child when the thread that starts it has gone.
pub(crate) fn tie(command: &mut Command) {
    let parent = getpid();
    let tie = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may have ended before the tie was there.
        match getppid() == Some(parent) {
            true => Ok(()),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    };
    // SAFETY: two system calls and no memory taken: all of it may be done between fork and exec.
    unsafe { command.pre_exec(tie) };
}
