//! The process's one Tokio runtime, and waiting on it without the GIL.

use crate::{errors, notes, process};
use forebay_proto::{Error, Result};
use pyo3::prelude::*;
use std::pin::pin;
use std::sync::OnceLock;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

/// How often a wait looks for signals: Ctrl-C ends it within so long.
const TICK: Duration = Duration::from_millis(100);

static RUNTIME: OnceLock<(u32, Result<Runtime>)> = OnceLock::new();

/// The runtime, made when first used; `Closed` in a process that was forked after that.
pub(crate) fn runtime() -> Result<&'static Runtime> {
    let (of, runtime) = RUNTIME.get_or_init(|| {
        let runtime = Builder::new_multi_thread().thread_name("forebay").enable_all().build();
        let failed = |e| Error::full(format!("cannot start threads: {e}"));
        (std::process::id(), runtime.map_err(failed))
    });
    match *of == std::process::id() {
        true => runtime.as_ref().map_err(Clone::clone),
        false => Err(process::forked()),
    }
}

/// Waits without the GIL. Signals end the wait, and with it the work.
pub(crate) fn wait<T: Send>(py: Python<'_>, work: impl Future<Output = Result<T>> + Send) -> PyResult<T> {
    wait_and(py, work, |_| Ok(()))
}

/// [`wait`] that also does something ten times a second, with the GIL held.
pub(crate) fn wait_and<T: Send>(
    py: Python<'_>,
    work: impl Future<Output = Result<T>> + Send,
    mut tick: impl FnMut(Python<'_>) -> PyResult<()>,
) -> PyResult<T> {
    let runtime = runtime().map_err(|e| errors::raise(py, e))?;
    let mut work = pin!(work);
    loop {
        let done = py.detach(|| runtime.block_on(async { timeout(TICK, work.as_mut()).await }));
        if done.is_err() {
            py.check_signals()?;
        }
        notes::tell(py)?;
        match done {
            Ok(done) => return done.map_err(|e| errors::raise(py, e)),
            Err(_) => tick(py)?,
        }
    }
}
