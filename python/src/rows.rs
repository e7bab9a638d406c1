//! Rows as a stream of record batches: iterated in Python, or handed to any reader of Arrow.

use crate::batch::RecordBatch;
use crate::process::OfProcess;
use crate::runtime::wait;
use crate::schema::Schema;
use crate::{capsule, errors};
use arrow::array::RecordBatchIterator;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use forebay_client::rows::RowStream;
use forebay_proto::Error;
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// Record batches, read once.
#[pyclass(frozen, module = "forebay")]
pub(crate) struct RecordBatchReader {
    schema: SchemaRef,
    rows: OfProcess<Mutex<Option<RowStream>>>,
}

impl RecordBatchReader {
    pub fn new(schema: SchemaRef, rows: RowStream) -> Self {
        Self { schema, rows: OfProcess::new(Mutex::new(Some(rows))) }
    }

    /// The rest of the rows.
    fn take(&self, py: Python<'_>) -> PyResult<RowStream> {
        let rows = self.rows.get().map_err(|e| errors::raise(py, e))?;
        // Not `lock`: who holds it may need the GIL, which this thread holds.
        let rows = rows.try_lock().and_then(|mut rows| rows.take());
        let gone =
            || Error::closed("these rows were read, closed, or are being read by another thread: scan again");
        rows.ok_or_else(|| errors::raise(py, gone()))
    }
}

#[pymethods]
impl RecordBatchReader {
    /// The schema of every batch.
    #[getter]
    fn schema(&self) -> Schema {
        Schema(self.schema.clone())
    }

    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    /// The next rows. Raises `ClosedError` after `close`, or while another thread reads.
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<RecordBatch>> {
        let mut rows = self.take(py)?;
        let next = wait(py, rows.try_next())?;
        if let Ok(place) = self.rows.get() {
            // At its end it stays there.
            *place.lock() = Some(if next.is_some() { rows } else { stream::empty().boxed() });
        }
        Ok(next.map(|batch| RecordBatch { batch, is_own: false }))
    }

    /// Ends the reading: nothing more is fetched.
    fn close(&self, py: Python<'_>) {
        self.take(py).ok();
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _e: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) {
        self.close(py);
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        capsule::schema(py, &self.schema)
    }

    /// The rest of the rows; the schema is never cast to another one.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        let mut rows = OfProcess::new(self.take(py)?);
        // The reader may come from any thread, with the GIL or without.
        let next = move || Python::attach(|py| pull(py, &mut rows)).transpose();
        capsule::stream(py, RecordBatchIterator::new(std::iter::from_fn(next), self.schema.clone()))
    }
}

fn pull(
    py: Python<'_>,
    rows: &mut OfProcess<RowStream>,
) -> Result<Option<arrow::array::RecordBatch>, ArrowError> {
    let rows = rows.get_mut().map_err(|e| ArrowError::CDataInterface(e.message))?;
    wait(py, rows.try_next()).map_err(|e| ArrowError::CDataInterface(e.to_string()))
}
