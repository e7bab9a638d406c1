//! A schema, as every reader of Arrow takes it.

use crate::capsule;
use arrow::datatypes::SchemaRef;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// Names and types of columns.
#[pyclass(frozen, module = "forebay")]
pub(crate) struct Schema(pub SchemaRef);

#[pymethods]
impl Schema {
    #[getter]
    fn names(&self) -> Vec<String> {
        self.0.fields().iter().map(|field| field.name().clone()).collect()
    }

    #[getter]
    fn types(&self) -> Vec<String> {
        self.0.fields().iter().map(|field| field.data_type().to_string()).collect()
    }

    fn __len__(&self) -> usize {
        self.0.fields().len()
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    fn __repr__(&self) -> String {
        let field = |(name, data_type): (String, String)| format!("{name}: {data_type}");
        self.names().into_iter().zip(self.types()).map(field).collect::<Vec<_>>().join("\n")
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        capsule::schema(py, &self.0)
    }
}
