//! Opening a dataset, and telling people what they may not expect of it.

use forebay_client::{Access, Dataset, DatasetSpec};
use forebay_proto::Result;
use std::io::Write;

/// Opens the dataset. Its notes go to standard error, each once.
pub(crate) async fn open(access: &Access, spec: &DatasetSpec) -> Result<Dataset> {
    let dataset = Dataset::open(access, spec).await?;
    for note in &dataset.notes {
        // Standard error may be closed: then there is nobody to tell.
        writeln!(std::io::stderr(), "forebay: note: {note}").ok();
    }
    Ok(dataset)
}
