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
    named(py, name, e.message)
}

/// The exception for memory that cannot be handed over as it was asked for: `Invalid`, and Python's
/// `BufferError`, which the array protocols want.
pub(crate) fn no_buffer(py: Python<'_>, message: String) -> PyErr {
    named(py, "NoBufferError", message)
}

fn named(py: Python<'_>, name: &str, message: String) -> PyErr {
    let class = py.import("forebay._errors").and_then(|module| module.getattr(name));
    match class.and_then(|class| Ok(class.cast_into::<PyType>()?)) {
        Ok(class) => PyErr::from_type(class, (message,)),
        Err(missing) => missing,
    }
}
