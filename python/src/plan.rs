//! Which rows each step of an epoch holds, without reading them.

use crate::errors;
use forebay_client::loader::{EpochPlan, PlannedStep};
use pyo3::prelude::*;

/// The plan of an epoch, or of the rest of one.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Plan(pub EpochPlan);

#[pymethods]
impl Plan {
    #[getter]
    fn epoch(&self) -> u64 {
        self.0.epoch()
    }

    #[getter]
    fn steps(&self) -> u64 {
        self.0.steps()
    }

    /// Of a step: its rows' numbers in the dataset, which of them are not padding (None: all), and the
    /// epoch's samples that are done after it.
    fn step(&self, py: Python<'_>, step: u64) -> PyResult<(Vec<u64>, Option<Vec<bool>>, u64)> {
        let planned = py.detach(|| self.0.step(step));
        let PlannedStep { samples, mask, samples_done } = planned.map_err(|e| errors::raise(py, e))?;
        Ok((samples, mask, samples_done))
    }
}
