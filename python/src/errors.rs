//! Errors as exceptions: one class for each kind, in `forebay._errors`.

use forebay_proto::{Error, Kind};
use pyo3::prelude::*;
use pyo3::types::PyType;

/// The exception of an error.
pub(crate) fn raise(py: Python<'_>, e: Error) -> PyErr {
    let name = match e.kind {
        Kind::NotFound => "NotFoundError",
        Kind::Invalid => "InvalidError",
        Kind::Denied => "DeniedError",
        Kind::Retry => "RetryError",
        Kind::Corrupt => "CorruptError",
        Kind::Changed => "ChangedError",
        Kind::Full => "FullError",
        Kind::Closed => "ClosedError",
    };
    let class = py.import("forebay._errors").and_then(|module| module.getattr(name));
    match class.and_then(|class| Ok(class.cast_into::<PyType>()?)) {
        Ok(class) => PyErr::from_type(class, (e.message,)),
        Err(missing) => missing,
    }
}
