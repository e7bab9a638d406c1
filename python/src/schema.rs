//! A schema, as every reader of Arrow takes it.

use crate::capsule;
use arrow::datatypes::{DataType, Field, Fields, SchemaRef};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// Names and types of columns.
#[pyclass(frozen, module = "forebay")]
pub(crate) struct Schema(pub SchemaRef);

#[pymethods]
impl Schema {
    /// The names of the columns, in their order.
    #[getter]
    fn names(&self) -> Vec<String> {
        self.0.fields().iter().map(|field| field.name().clone()).collect()
    }

    /// Their Arrow types, as text, in the same order.
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

    /// The columns that are said to hold tensors of a fixed shape, and such fields of structs and items of
    /// lists (`a.item`): their paths, how many values a row has (none if it is no list of a fixed length),
    /// and their metadata.
    fn fixed_shapes(&self) -> Vec<(String, Option<i32>, String)> {
        let mut shapes = Vec::new();
        self.0.fields().iter().for_each(|field| add_shapes(field, field.name().clone(), &mut shapes));
        shapes
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

fn add_shapes(field: &Field, path: String, shapes: &mut Vec<(String, Option<i32>, String)>) {
    if field.extension_type_name() == Some("arrow.fixed_shape_tensor") {
        let values = match field.data_type() {
            DataType::FixedSizeList(_, values) => Some(*values),
            _ => None,
        };
        let metadata = field.extension_type_metadata().unwrap_or_default();
        shapes.push((path.clone(), values, metadata.to_owned()));
    }
    match field.data_type() {
        DataType::Struct(fields) => {
            fields.iter().for_each(|inner| add_shapes(inner, format!("{path}.{}", inner.name()), shapes));
        }
        DataType::List(item) | DataType::LargeList(item) => add_shapes(item, format!("{path}.item"), shapes),
        _ => {}
    }
}
