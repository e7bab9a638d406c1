//! Training batches: what a run reads, and the reader of its batches. Epochs are `forebay._loader`'s
//! business.

use crate::batch::Batch;
use crate::cuda;
use crate::dataset::Dataset;
use crate::errors;
use crate::plan::Plan;
use crate::process::OfProcess;
use crate::runtime::{self, runtime};
use forebay_client::loader::{EpochPlan, EpochSummary, Event, Loader, LoaderSettings, LoaderState, RunStart};
use forebay_client::rows::ColumnOrder;
use forebay_proto::plan::PlanKey;
use forebay_proto::{Error, Result};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What a loader reads and how.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Settings {
    from_here: LoaderSettings,
    /// One past the run's last epoch, wherever it begins: a run that was placed beyond it may come back.
    end: Option<u64>,
}

#[pymethods]
impl Settings {
    #[new]
    #[pyo3(signature = (*, seed, shuffle, ending, global_batch, rank, world, epochs, prefetch_bytes, patience_s))]
    #[expect(clippy::too_many_arguments, reason = "keywords, named at the one call")]
    fn new(
        py: Python<'_>,
        seed: u64,
        shuffle: &str,
        ending: &str,
        global_batch: u64,
        rank: u32,
        world: u32,
        epochs: Option<u64>,
        prefetch_bytes: u64,
        patience_s: f64,
    ) -> PyResult<Self> {
        let invalid = |e: String| errors::raise(py, Error::invalid(e));
        let patience = Duration::try_from_secs_f64(patience_s);
        let settings = LoaderSettings {
            seed,
            shuffle: shuffle.parse().map_err(|e| invalid(format!("shuffle: {e}")))?,
            ending: ending.parse().map_err(|e| invalid(format!("ending: {e}")))?,
            global_batch,
            rank,
            world,
            epochs,
            prefetch_bytes,
            patience: patience.map_err(|e| invalid(format!("patience_s={patience_s}: {e}")))?,
            ..LoaderSettings::default()
        };
        Ok(Self { from_here: settings, end: epochs })
    }

    #[getter]
    fn seed(&self) -> u64 {
        self.from_here.seed
    }

    #[getter]
    fn shuffle(&self) -> String {
        self.from_here.shuffle.to_string()
    }

    /// The same, beginning with another epoch. The last epoch stays the last.
    fn at_epoch(&self, epoch: u64) -> Self {
        let epochs = self.end.map(|end| end.saturating_sub(epoch));
        let settings = LoaderSettings { first_epoch: epoch, epochs, resume: None, ..self.from_here.clone() };
        Self { from_here: settings, end: self.end }
    }

    /// The same, going on from a state, with the state's seed and shuffle.
    fn resumed(&self, py: Python<'_>, state: &[u8]) -> PyResult<Self> {
        let mut settings = self.from_here.clone();
        settings.load_state_dict(state).map_err(|e| errors::raise(py, e))?;
        Ok(Self { from_here: settings, end: self.end })
    }

    /// Where a run begins: epoch, samples of it that are done, steps of it that are left, steps of other
    /// epochs.
    fn start(&self, py: Python<'_>, dataset: &Dataset) -> PyResult<(u64, u64, u64, u64)> {
        let start = dataset.get().and_then(|dataset| RunStart::of(dataset, &self.from_here));
        let RunStart { epoch, samples_done, steps_left, steps } = start.map_err(|e| errors::raise(py, e))?;
        Ok((epoch, samples_done, steps_left, steps))
    }

    /// The state of a run with some samples of an epoch done.
    fn state<'py>(
        &self,
        py: Python<'py>,
        dataset: &Dataset,
        epoch: u64,
        samples_done: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let manifest = dataset.get().map_err(|e| errors::raise(py, e))?.manifest.digest();
        let key = PlanKey { manifest, seed: self.from_here.seed, epoch, shuffle: self.from_here.shuffle };
        Ok(PyBytes::new(py, &LoaderState { key, samples_done, tokens_done: None }.to_bytes()))
    }

    /// What the steps of the first epoch would hold.
    fn plan(&self, py: Python<'_>, dataset: &Dataset) -> PyResult<Plan> {
        let plan = dataset.get().and_then(|dataset| EpochPlan::new(dataset, &self.from_here));
        plan.map(Plan).map_err(|e| errors::raise(py, e))
    }

    /// Starts reading. With the number of a CUDA device, the memory of batches is registered with it, where
    /// that can be: copies to the device may read it then for as long as the batch is kept.
    #[pyo3(signature = (dataset, *, cuda=None))]
    fn read(&self, py: Python<'_>, dataset: &Dataset, cuda: Option<u32>) -> PyResult<BatchReader> {
        let start = || -> Result<(ColumnOrder, Loader)> {
            let _entered = runtime()?.enter();
            let (dataset, registrar) = (dataset.get()?, cuda.and_then(cuda::registrar));
            let loader = Loader::start_registered(dataset, self.from_here.clone(), registrar)?;
            Ok((ColumnOrder::of(dataset)?, loader))
        };
        let (order, loader) = start().map_err(|e| errors::raise(py, e))?;
        let loader = OfProcess::new(Mutex::new(Some(loader)));
        Ok(BatchReader { loader, order, ended: Mutex::default(), is_closed: AtomicBool::new(false) })
    }
}

/// The batches of a run, one epoch after the other.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct BatchReader {
    loader: OfProcess<Mutex<Option<Loader>>>,
    order: ColumnOrder,
    /// The last epoch that was read to its end.
    ended: Mutex<Option<EpochSummary>>,
    /// Set by `close`; a `next` that waits on another thread looks at it ten times a second.
    is_closed: AtomicBool,
}

impl BatchReader {
    fn check_open(&self, py: Python<'_>) -> PyResult<()> {
        match self.is_closed.load(Ordering::Relaxed) {
            true => Err(errors::raise(py, Error::closed("this loader is closed: make a new one"))),
            false => Ok(()),
        }
    }
}

#[pymethods]
impl BatchReader {
    /// The next batch; None at an epoch's end. Without `wait` None as well if it is not there yet, or there
    /// is an error, which the next call with `wait` raises. `ClosedError` once it was closed, by any thread.
    #[pyo3(signature = (wait=true))]
    fn next(&self, py: Python<'_>, wait: bool) -> PyResult<Option<Py<Batch>>> {
        let loader = self.loader.get().map_err(|e| errors::raise(py, e))?;
        self.check_open(py)?;
        // Not `lock`: who holds it may need the GIL, which this thread holds.
        let mut loader = loader
            .try_lock()
            .ok_or_else(|| errors::raise(py, Error::invalid("another thread is reading from this loader")))?;
        let loader = loader
            .as_mut()
            .ok_or_else(|| errors::raise(py, Error::closed("this loader is closed: make a new one")))?;
        let event = match loader.ready() {
            Some(event) => Some(event),
            None if wait => runtime::wait_and(py, loader.next(), |py| self.check_open(py))?,
            None => None,
        };
        match event {
            Some(Event::Batch(batch)) => {
                let batch = Batch::new(batch, &self.order).map_err(|e| errors::raise(py, e))?;
                Py::new(py, batch).map(Some)
            }
            Some(Event::EpochEnd(summary)) => {
                *self.ended.lock() = Some(summary);
                Ok(None)
            }
            None => Ok(None),
        }
    }

    /// Raises `ClosedError` in a process that was forked after reading began.
    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        self.loader.get().map(drop).map_err(|e| errors::raise(py, e))
    }

    /// Of the last epoch that was read to its end: its number, this rank's order digest, samples and steps
    /// since the reader started.
    #[getter]
    fn ended(&self) -> Option<(u64, String, u64, u64)> {
        let summary = *self.ended.lock();
        summary.map(|EpochSummary { epoch, digest, samples, steps, .. }| {
            (epoch, digest.to_string(), samples, steps)
        })
    }

    /// Ends the streams. Where another thread waits for a batch, it ends its wait within a tenth of a
    /// second; the streams end when the last of both lets go of this.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let loader = self.loader.get().map_err(|e| errors::raise(py, e))?;
        self.is_closed.store(true, Ordering::Relaxed);
        let loader = loader.try_lock().map(|mut loader| loader.take());
        py.detach(|| drop(loader));
        Ok(())
    }
}
