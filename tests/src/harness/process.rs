//! The real binaries as child processes: found, started, watched, killed.
//!
//! [`Server`] is one `forebay-server` on free ports. Its log goes to a file; a WARN or ERROR line that the
//! test did not allow fails the test when the server is stopped or dropped. [`Run`] is any other binary, run
//! to its end. No child outlives the thread that started it.

mod log;
pub(crate) mod run;
mod server;
#[cfg(test)]
mod tests;
pub(crate) mod tie;

pub use run::{Ended, Run, Running, binary};
pub use server::{Server, ServerOptions};
