//! Record batches: rows of a scan, and the batches of a loader.

use crate::capsule::{self, ArrayCapsules};
use crate::column::Column;
use crate::dlpack::{self, Tensor};
use crate::errors;
use crate::schema::Schema;
use arrow::array::{ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatchIterator, StructArray};
use arrow::buffer::ScalarBuffer;
use arrow::datatypes::Int64Type;
use forebay_client::rows::ColumnOrder;
use forebay_proto::{Error, Result};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::sync::Arc;

/// Rows: columns of one length.
#[pyclass(frozen, subclass, module = "forebay")]
pub(crate) struct RecordBatch {
    pub batch: arrow::array::RecordBatch,
    /// Whether nobody else reads the memory of its plain columns, strings and binaries: then tensors may
    /// share it, and be written to.
    pub is_own: bool,
}

#[pymethods]
impl RecordBatch {
    /// The names and types of its columns.
    #[getter]
    fn schema(&self) -> Schema {
        Schema(self.batch.schema())
    }

    /// How many rows each of its columns has.
    #[getter]
    fn num_rows(&self) -> usize {
        self.batch.num_rows()
    }

    fn __len__(&self) -> usize {
        self.batch.num_rows()
    }

    /// The names of its columns, in their order.
    fn keys(&self) -> Vec<String> {
        self.schema().0.fields().iter().map(|field| field.name().clone()).collect()
    }

    /// The column of this name. Raises `NotFoundError`, which names those that there are.
    fn __getitem__(&self, py: Python<'_>, name: &str) -> PyResult<Column> {
        let missing = || {
            let names = self.keys().join(", ");
            errors::raise(py, Error::not_found(format!("there is no column `{name}`: there are {names}")))
        };
        let array = self.batch.column_by_name(name).cloned().ok_or_else(missing)?;
        Ok(Column { name: name.to_owned(), array, is_own: self.is_own })
    }

    /// The columns in their order, as DLPack capsules, each with its number of columns: several that lie
    /// side by side are one capsule, their values one after the other. None for a column that has nulls or is
    /// no tensor.
    fn blocks<'py>(&self, py: Python<'py>) -> PyResult<Vec<(Option<Bound<'py, PyAny>>, usize)>> {
        let tensor = |array: &ArrayRef| {
            let plain = (array.null_count() == 0).then(|| Tensor::of(array.as_ref(), self.is_own));
            plain.and_then(Result::ok)
        };
        let block = |(tensor, columns): (Option<Tensor>, usize)| {
            let capsule = tensor.map(|tensor| dlpack::capsule(py, tensor, false)).transpose()?;
            Ok((capsule, columns))
        };
        let tensors = self.batch.columns().iter().map(tensor).collect();
        dlpack::blocks(tensors).into_iter().map(block).collect()
    }

    fn __repr__(&self) -> String {
        format!("{} rows of\n{}", self.num_rows(), self.schema().0)
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        capsule::schema(py, &self.batch.schema())
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<ArrayCapsules<'py>> {
        let _ = requested_schema;
        capsule::array(py, &StructArray::from(self.batch.clone()), Some(&self.batch.schema()))
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        capsule::stream(py, RecordBatchIterator::new([Ok(self.batch.clone())], self.batch.schema()))
    }
}

/// One rank's rows of a step.
#[pyclass(frozen, extends = RecordBatch, module = "forebay")]
pub(crate) struct Batch {
    /// The epoch that it belongs to, from 0.
    #[pyo3(get)]
    epoch: u64,
    /// The step, counted from the epoch's beginning.
    #[pyo3(get)]
    step: u64,
    /// Samples of the epoch that all ranks have read once this step is over.
    #[pyo3(get)]
    samples_done: u64,
    /// Rows without padding.
    #[pyo3(get)]
    real_rows: usize,
    digest: forebay_proto::digest::OrderDigest,
    sample_ids: ArrayRef,
    mask: Option<ArrayRef>,
}

impl Batch {
    /// With its columns in the order in which they were asked for.
    pub fn new(batch: forebay_client::Batch, order: &ColumnOrder) -> Result<PyClassInitializer<Self>> {
        let columns = order.apply(batch.columns)?;
        // Signed, as torch's indices are: a dataset has fewer than 2^63 rows.
        let sample_ids = ScalarBuffer::from(batch.sample_ids.into_inner());
        let sample_ids = Arc::new(Int64Array::new(sample_ids, None));
        let mask = batch.mask.map(|mask| Arc::new(BooleanArray::new(mask, None)) as ArrayRef);
        let this = Self {
            epoch: batch.epoch,
            step: batch.step,
            samples_done: batch.samples_done,
            real_rows: batch.real_rows,
            digest: batch.digest,
            sample_ids,
            mask,
        };
        Ok(PyClassInitializer::from(RecordBatch { batch: columns, is_own: true }).add_subclass(this))
    }
}

#[pymethods]
impl Batch {
    /// The order digest of its rows, 32 hexadecimal digits: docs/order.md defines it.
    #[getter]
    fn digest(&self) -> String {
        self.digest.to_string()
    }

    /// The first `limit` sample numbers.
    fn first_ids(&self, limit: usize) -> Vec<i64> {
        let ids = self.sample_ids.as_primitive::<Int64Type>().values();
        ids.iter().take(limit).copied().collect()
    }

    /// The number of each row's sample in the dataset, int64 `[rows]`.
    #[getter]
    fn sample_ids(&self) -> Column {
        Column { name: "sample_ids".to_owned(), array: self.sample_ids.clone(), is_own: false }
    }

    /// Bool `[rows]`, False for rows that are padding; None in a batch without any.
    #[getter]
    fn mask(&self) -> Option<Column> {
        let column =
            |array: &ArrayRef| Column { name: "mask".to_owned(), array: array.clone(), is_own: false };
        self.mask.as_ref().map(column)
    }
}
