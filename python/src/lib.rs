//! The extension module behind the Python package `forebay`: datasets, rows and training batches.
//!
//! Thin on purpose: everything is done by `forebay-client`, and what users see (epochs, resuming, tensors) is
//! put together in Python (`python/forebay`). Here are the three things that Python cannot do: waiting
//! without the GIL (`runtime`), handing over memory without a copy (`capsule` for Arrow, `dlpack` for
//! tensors), and staying clear of a runtime whose threads did not come along through `fork()` (`process`).

// Only Python can load it: a program of tests could not be linked. `python/tests` tests it.
#![cfg(not(test))]

mod batch;
mod capsule;
mod column;
mod cuda;
mod dataset;
mod dlpack;
mod errors;
mod images;
mod loader;
mod local_node;
mod notes;
mod objects;
mod place;
mod plan;
mod process;
mod rows;
mod runtime;
mod schema;
mod views;

use pyo3::prelude::*;

/// As in the programs that read: glibc returns pages of messages to the kernel and faults them in again. Its
/// names have a prefix, so it serves the allocations of this library alone; Python's and torch's stay theirs.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[pymodule]
mod _forebay {
    #[pymodule_export]
    use crate::batch::{Batch, RecordBatch};
    #[pymodule_export]
    use crate::column::Column;
    #[pymodule_export]
    use crate::dataset::{Dataset, open};
    #[pymodule_export]
    use crate::images::{ImageDecoder, ImageForm};
    #[pymodule_export]
    use crate::loader::{BatchReader, Settings};
    #[pymodule_export]
    use crate::local_node::LocalNode;
    #[pymodule_export]
    use crate::objects::{ObjectVersion, Objects};
    #[pymodule_export]
    use crate::plan::Plan;
    #[pymodule_export]
    use crate::rows::RecordBatchReader;
    #[pymodule_export]
    use crate::schema::Schema;
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::notes::listen();
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
