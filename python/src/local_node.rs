//! A cache node of this user's on this machine: started where none runs, asked, ended.

use crate::errors;
use crate::process::OfProcess;
use crate::runtime::{runtime, wait};
use forebay_client::{LocalNodeSettings, LocalNodeStatus, SourceSettings};
use forebay_proto::{Error, Result};
use pyo3::prelude::*;
use serde_json::json;

/// The node that serves with some settings, whether it runs or not.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct LocalNode(OfProcess<forebay_client::LocalNode>);

/// The node for settings in JSON: how it is started, and how it reads the object store.
pub(crate) fn node(settings: &str, source: &str) -> Result<forebay_client::LocalNode> {
    let or_none = |text: &str| if text.is_empty() { "{}".to_owned() } else { text.to_owned() };
    let settings: LocalNodeSettings = serde_json::from_str(&or_none(settings))
        .map_err(|e| Error::invalid(format!("keywords for a cache node: {e}")))?;
    forebay_client::LocalNode::new(LocalNodeSettings { source: source_settings(source)?, ..settings })
}

/// How to read the object store, from JSON; empty means as the environment says.
pub(crate) fn source_settings(text: &str) -> Result<SourceSettings> {
    let text = if text.is_empty() { "{}" } else { text };
    serde_json::from_str(text).map_err(|e| Error::invalid(format!("keywords for the object store: {e}")))
}

#[pymethods]
impl LocalNode {
    #[new]
    fn new(py: Python<'_>, settings: &str, source: &str) -> PyResult<Self> {
        let made = || {
            let _entered = runtime()?.enter();
            node(settings, source)
        };
        Ok(Self(OfProcess::new(made().map_err(|e| errors::raise(py, e))?)))
    }

    fn start(&self, py: Python<'_>) -> PyResult<()> {
        wait(py, self.here(py)?.start())
    }

    fn stop(&self, py: Python<'_>) -> PyResult<bool> {
        wait(py, self.here(py)?.stop())
    }

    #[getter]
    fn endpoint(&self, py: Python<'_>) -> PyResult<&str> {
        Ok(self.here(py)?.url())
    }

    /// As JSON; None if no node runs.
    fn status(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let node = self.here(py)?;
        let Some(LocalNodeStatus { pid, status }) = wait(py, node.status())? else { return Ok(None) };
        let memory = status.memory.unwrap_or_default();
        let dir = status.dirs.first().map_or("", |dir| dir.path.as_str());
        let report = json!({
            "pid": pid,
            "version": status.version,
            "uptime_s": status.uptime_s,
            "cache_dir": dir,
            "cache_bytes_used": status.cache_bytes_used,
            "cache_bytes_limit": status.cache_bytes_limit,
            "memory_bytes_used": memory.resident_bytes,
            "memory_bytes_limit": memory.limit_bytes,
            "log": node.log(),
        });
        Ok(Some(report.to_string()))
    }
}

impl LocalNode {
    fn here(&self, py: Python<'_>) -> PyResult<&forebay_client::LocalNode> {
        self.0.get().map_err(|e| errors::raise(py, e))
    }
}
