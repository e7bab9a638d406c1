//! Arrow's PyCapsule interface (<https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html>):
//! schemas, arrays and streams for pyarrow, pandas, Polars, DuckDB and others, without a copy.

use crate::errors;
use arrow::array::{Array, RecordBatchReader};
use arrow::datatypes::Schema;
use arrow::error::ArrowError;
use arrow::ffi::{FFI_ArrowSchema, to_ffi};
use arrow::ffi_stream::FFI_ArrowArrayStream;
use forebay_proto::Error;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// The capsules of a schema and an array.
pub(crate) type ArrayCapsules<'py> = (Bound<'py, PyCapsule>, Bound<'py, PyCapsule>);

/// A schema's capsule.
pub(crate) fn schema<'py>(py: Python<'py>, schema: &Schema) -> PyResult<Bound<'py, PyCapsule>> {
    let schema = FFI_ArrowSchema::try_from(schema).map_err(|e| not_exported(py, &e))?;
    PyCapsule::new_with_value(py, schema, c"arrow_schema")
}

/// An array's capsules; `schema` instead of the array's own type, where there is more to say.
pub(crate) fn array<'py>(
    py: Python<'py>,
    array: &dyn Array,
    schema: Option<&Schema>,
) -> PyResult<ArrayCapsules<'py>> {
    let (exported, own) = to_ffi(&array.to_data()).map_err(|e| not_exported(py, &e))?;
    let schema = schema.map_or(Ok(own), FFI_ArrowSchema::try_from).map_err(|e| not_exported(py, &e))?;
    let schema = PyCapsule::new_with_value(py, schema, c"arrow_schema")?;
    Ok((schema, PyCapsule::new_with_value(py, exported, c"arrow_array")?))
}

/// The capsule of a stream.
pub(crate) fn stream(
    py: Python<'_>,
    reader: impl RecordBatchReader + Send + 'static,
) -> PyResult<Bound<'_, PyCapsule>> {
    PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(reader)), c"arrow_array_stream")
}

fn not_exported(py: Python<'_>, e: &ArrowError) -> PyErr {
    errors::raise(py, Error::invalid(format!("Arrow's C interface has no form for this: {e}")))
}
