//! Strings and binaries as memoryviews: the bytes of each row where they lie, which Python may read only.
#![expect(unsafe_code, reason = "Python's buffer protocol is C's")]

use arrow::buffer::Buffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi::{Py_buffer, PyBuffer_FillInfo};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyMemoryView, PySlice};
use std::ffi::c_int;

/// Memory that Python reads and that stays until nobody has a view of it.
#[pyclass(frozen, module = "forebay._forebay")]
struct Memory(Buffer);

#[pymethods]
impl Memory {
    unsafe fn __getbuffer__(this: Bound<'_, Self>, view: *mut Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = &this.get().0;
        let length = isize::try_from(bytes.len()).map_err(|e| PyBufferError::new_err(e.to_string()))?;
        let (start, read_only) = (bytes.as_ptr().cast_mut().cast(), 1);
        // SAFETY: the view is the caller's to be filled. It is marked as not to be written to, and takes a
        // reference to this object, which keeps the bytes.
        match unsafe { PyBuffer_FillInfo(view, this.as_ptr(), start, length, read_only, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(this.py())),
        }
    }
}

/// The bytes between each offset and the next one; `None` where `is_valid` says so of the row.
pub(crate) fn between<'py>(
    py: Python<'py>,
    values: Buffer,
    offsets: &[i64],
    is_valid: impl Fn(usize) -> bool,
) -> PyResult<Bound<'py, PyList>> {
    let whole = PyMemoryView::from(Bound::new(py, Memory(values))?.as_any())?;
    let row = |(row, ends): (usize, &[i64])| match is_valid(row) {
        true => whole.get_item(PySlice::new(py, ends[0] as isize, ends[1] as isize, 1)).map(Some),
        false => Ok(None),
    };
    let rows = offsets.windows(2).enumerate().map(row).collect::<PyResult<Vec<_>>>()?;
    PyList::new(py, rows)
}
