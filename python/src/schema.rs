//! A schema, as every reader of Arrow takes it.

use crate::capsule;
use arrow::datatypes::{DataType, Fields, SchemaRef};
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

    /// The names of columns, and of the fields of structs with their structs' before them: `place.north`.
    fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        add_paths(self.0.fields(), "", &mut paths);
        paths
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

fn add_paths(fields: &Fields, prefix: &str, paths: &mut Vec<String>) {
    for field in fields {
        let path = format!("{prefix}{}", field.name());
        if let DataType::Struct(fields) = field.data_type() {
            add_paths(fields, &format!("{path}."), paths);
        }
        paths.push(path);
    }
}
